"""Elements of arrays in a plan: they start in order, and have the public id of their array."""

from dataclasses import replace

from scheduling.engine.model import ELEMENT_ID_STEP, public_id
from tests.engine.scenario import cluster, decide, job, node, reason, running_on


def elements(array: int, number: int, **shape: object):
    return tuple(replace(job(array, **shape), id=array + n * ELEMENT_ID_STEP) for n in range(number))  # type: ignore[arg-type]


def test_array_elements_start_in_their_order() -> None:
    new_plan = decide(replace(cluster(node(1, gpus=2)), jobs=elements(7, 5)))
    assert [placement.job_id for placement in new_plan.placements] == [7, 7 + ELEMENT_ID_STEP]


def test_hidden_elements_count_as_ahead() -> None:
    state = running_on(cluster(node(1)), job(9, gpus=8))
    waiting = (*elements(7, 2, gpus=2, age=999), job(8, gpus=2, priority=400))
    new_plan = decide(replace(state, jobs=waiting, behind=((7 + ELEMENT_ID_STEP, 98),)))
    message = reason(new_plan, 8).evidence
    assert (message["jobs_ahead"], message["gpus_ahead"]) == (100, 200)


def test_promised_element_is_named_by_its_array() -> None:
    state = running_on(cluster(node(1)), job(9, gpus=4, minutes=60))
    new_plan = decide(
        replace(state, jobs=(*elements(7, 2, gpus=4, age=9999), *elements(5, 1, gpus=8, age=99_999), job(3, gpus=2)))
    )
    assert new_plan.reservation is not None
    assert public_id(new_plan.reservation.job_id) == 5
    assert reason(new_plan, 3).evidence["holder"] == "job 5"
