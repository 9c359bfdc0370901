"""Elements of arrays in a plan: jobs that come in their order, and that people know by their array."""

from dataclasses import replace

from scheduling.engine.model import ELEMENT_ID_STEP, public_id
from tests.engine.scenario import cluster, decide, job, node, reason, running_on


def elements(array: int, number: int, **shape: object):
    return tuple(replace(job(array, **shape), id=array + n * ELEMENT_ID_STEP) for n in range(number))  # type: ignore[arg-type]


def test_the_next_elements_start_in_their_order() -> None:
    made = decide(replace(cluster(node(1, gpus=2)), jobs=elements(7, 5)))
    assert [placement.job_id for placement in made.placements] == [7, 7 + ELEMENT_ID_STEP]


def test_those_that_are_not_shown_count_as_ahead() -> None:
    state = running_on(cluster(node(1)), job(9, gpus=8))
    waiting = (*elements(7, 2, gpus=2, age=999), job(8, gpus=2, priority=400))
    made = decide(replace(state, jobs=waiting, behind=((7 + ELEMENT_ID_STEP, 98),)))
    told = reason(made, 8).evidence
    assert (told["jobs_ahead"], told["gpus_ahead"]) == (100, 200)


def test_an_element_that_holds_the_reservation_is_known_by_its_array() -> None:
    state = running_on(cluster(node(1)), job(9, gpus=4, minutes=60))
    made = decide(
        replace(state, jobs=(*elements(7, 2, gpus=4, age=9999), *elements(5, 1, gpus=8, age=99_999), job(3, gpus=2)))
    )
    assert made.reservation is not None
    assert public_id(made.reservation.job_id) == 5
    assert reason(made, 3).evidence["holder"] == "job 5"
