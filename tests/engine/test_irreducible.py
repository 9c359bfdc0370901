"""A60: what a counterfactual or an estimate names is needed: without any one of it the job does not start."""

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusched.protocol import reasons
from scheduling.engine.explain.irreducible import irreducible
from scheduling.engine.forward import restored
from scheduling.engine.model import Policy, RunningJob, Snapshot
from scheduling.engine.whatif.blockers import Blocker, blockers, restorable
from scheduling.engine.whatif.changes import Change, apply
from scheduling.engine.whatif.counterfactual import obstacles
from scheduling.engine.whatif.estimate import Forecasts
from scheduling.engine.whatif.questions import Present, outlook
from scheduling.engine.whatif.smallest import OF_SETS
from tests.engine import states
from tests.engine.scenario import NOW, cluster, decide, gpu, job, node, running_on, started

in_small_states = settings(
    max_examples=int(os.environ.get("ENGINE_EXAMPLES", "100")),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)


@given(st.sets(st.frozensets(st.integers(0, 11), max_size=5), max_size=4))
def test_an_irreducible_part_is_enough_and_none_of_it_can_be_left_out(ways: set[frozenset[int]]) -> None:
    """A60: enough is what holds all of one of the ways."""

    def is_enough(part: Sequence[int]) -> bool:
        return any(way <= set(part) for way in ways)

    result = irreducible(range(12), is_enough, 1000)
    assert (result is None) == (not ways)
    if result is not None:
        assert is_enough(list(result))
        assert not any(is_enough([entry for entry in result if entry != left_out]) for left_out in result)


def test_no_item_can_be_left_out_where_more_items_may_spoil_it() -> None:
    """A plan with more ended jobs may start another one first."""

    def is_enough(part: Sequence[int]) -> bool:
        return {1, 2} <= set(part) and not (0 in part and 5 not in part)

    result = irreducible(range(6), is_enough, 1000)
    assert result is not None and is_enough(list(result))
    assert not any(is_enough([entry for entry in result if entry != left_out]) for left_out in result)


def test_irreducible_returns_none_after_too_many_tries() -> None:
    assert irreducible(range(100), lambda part: {3, 50, 99} <= set(part), 5) is None


def full_cluster(nodes: int) -> Snapshot:
    """Each node holds eight jobs of one GPU, and nothing is free."""
    holders = [job(100 + number, minutes=10 + number) for number in range(8 * nodes)]
    return running_on(cluster(*(node(number) for number in range(1, nodes + 1))), *holders)


def test_one_of_sixty_four_running_jobs_is_enough_for_one_gpu() -> None:
    """A60"""
    state = replace(full_cluster(8), jobs=(job(1),))
    [step] = obstacles(state, Policy(), NOW, 1)
    assert step.change is not None and step.starts
    assert (step.change.change, step.change.to) == ("jobs_ended", 1)
    assert step.change.jobs == (100,)  # the first that ends


def test_eight_gpus_together_need_the_eight_jobs_of_one_node() -> None:
    """A60"""
    state = replace(full_cluster(8), jobs=(job(1, gpus=8, ranks=1),))
    steps = [step for step in obstacles(state, Policy(), NOW, 1) if step.change]
    assert [(step.change.change, step.change.to) for step in steps if step.change] == [("jobs_ended", 8)]


def test_one_of_many_closed_nodes_is_named() -> None:
    """A60: one that reports rather than one that is lost."""
    nodes = [node(1, is_open=False, is_online=False), *(node(number, is_open=False) for number in range(2, 203))]
    [step] = obstacles(cluster(*nodes, jobs=[job(1, gpus=8)]), Policy(), NOW, 1)
    assert step.change is not None and step.starts
    assert (step.change.to, step.change.names) == (1, ("n2",))
    sentence = reasons.change_sentence("nodes_opened", 1, names=step.change.names)
    assert sentence == "with node n2 back in service it would start"


def test_only_the_unhealthy_devices_that_are_needed_count() -> None:
    """A60"""
    sick = [gpu(100 + number, is_healthy=False) for number in range(8)]
    [step] = obstacles(cluster(node(1, gpus=sick), jobs=[job(1, gpus=3)]), Policy(), NOW, 1)
    assert step.change is not None and step.starts
    assert (step.change.change, step.change.to, step.change.names) == ("devices_well", 3, ("n1",))


@pytest.mark.parametrize(
    ("change", "to", "names", "clause"),
    [
        ("jobs_ended", 5, [7, 8, 9, 12], "after the end of jobs 7, 8, 9 and 2 more"),
        ("jobs_ended", 1, [7], "after the end of job 7"),
        ("jobs_ended", 4, [], "after the end of the 4 jobs in its way"),
        ("jobs_ended", 1, [], "after the end of the 1 job in its way"),
        ("nodes_opened", 2, ["a", "b"], "with nodes a and b back in service"),
        ("devices_well", 2, ["a"], "with 2 faulty devices on node a back in service"),
        ("devices_cool", 1, ["a"], "if 1 device on node a were not slowed down by heat"),
    ],
)
def test_a_sentence_names_three_and_counts_the_rest(change: str, to: int, names: list[object], clause: str) -> None:
    """A60"""
    assert reasons.change_sentence(change, to, names=names) == f"{clause} it would start"


@in_small_states
@given(states.snapshots(), states.policies)
def test_no_item_of_a_counterfactual_can_be_left_out(snapshot: Snapshot, policy: Policy) -> None:
    """A60: by planning again without it, for each waiting job of each state."""
    for reason in decide(snapshot, policy).reasons:
        present = snapshot
        for step in obstacles(snapshot, policy, NOW, reason.job_id):
            change = step.change
            if change is None:
                break
            if change.change in OF_SETS and step.starts:
                assert reason.job_id in started(decide(apply(present, reason.job_id, change), policy))
                for fewer in _with_one_less(change):
                    assert reason.job_id not in started(decide(apply(present, reason.job_id, fewer), policy)), change
            present = apply(present, reason.job_id, change)


def _with_one_less(change: Change) -> list[Change]:
    jobs = [
        replace(change, jobs=tuple(job_id for job_id in change.jobs if job_id != left_out)) for left_out in change.jobs
    ]
    return jobs + [
        replace(change, ids=tuple(entry for entry in change.ids if entry != left_out)) for left_out in change.ids
    ]


def test_an_estimate_names_the_jobs_whose_end_it_depends_on() -> None:
    """A60: of eight that end before it only the seven that hold resources it needs beside the last one."""
    state = replace(full_cluster(2), jobs=(job(1, gpus=8),))
    result = outlook(Present(state, Policy(), NOW), 1, 0.5)
    assert result.estimate is not None and result.estimate.jobs_ending == 8
    assert result.blockers == tuple(Blocker(100 + number, 1) for number in range(8))


def test_jobs_that_end_before_but_elsewhere_block_nothing() -> None:
    """A60: the short jobs of the first node end first; the job needs the second one."""
    holders = [job(10 + n, minutes=5 + n, node_selector=(("zone", "a"),)) for n in range(8)]
    large = job(30, gpus=8, minutes=60, node_selector=(("zone", "b"),))
    state = running_on(cluster(node(1, labels={"zone": "a"}), node(2, labels={"zone": "b"})), *holders, large)
    state = replace(state, jobs=(job(1, gpus=4, node_selector=(("zone", "b"),)),))
    result = outlook(Present(state, Policy(), NOW), 1, 0.5)
    assert result.estimate is not None and result.estimate.jobs_ending == 9
    assert result.blockers == (Blocker(30, 1),)


def test_job_that_takes_the_place_first_is_the_blocker() -> None:
    """A60: the one that runs now ends, another starts there, and only when that has ended does the last one start."""
    state = running_on(cluster(node(1)), job(9, gpus=8, minutes=10))
    state = replace(state, jobs=(job(2, gpus=8, age=9999, minutes=20), job(1, gpus=8, age=0)))
    result = outlook(Present(state, Policy(), NOW), 1, 0.5)
    assert result.blockers == (Blocker(2, 1),)


@in_small_states
@given(states.snapshots(), states.policies)
def test_no_blocker_of_an_estimate_can_be_left_out(snapshot: Snapshot, policy: Policy) -> None:
    """A60: with all that are not named still running the job starts at its time; with one more it does not."""
    forecasts = Forecasts(snapshot, policy, NOW, decide(snapshot, policy))
    estimates = forecasts.estimates([waiting_job.id for waiting_job in snapshot.jobs], typical=0.5)
    for job_id, estimate in estimates.items():
        start = forecasts.start(job_id)
        if estimate.p90_at is None or start is None:
            continue
        ended = restorable(start.snapshot, start.ended)
        named = blockers(start, job_id, policy)
        assert named is not None
        needed = {entry.job_id for entry in named}

        def starts(
            still: list[RunningJob], job_id: int = job_id, snapshot: Snapshot = start.snapshot, now: float = start.now
        ) -> bool:
            running = [
                entry if entry.ends_by is None else replace(entry, ends_by=max(entry.ends_by, now + 1))
                for entry in still
            ]
            return job_id in started(decide(restored(snapshot, running), policy, now))

        other_jobs = [entry for entry in ended if entry.job_id not in needed]
        assert starts(other_jobs)
        for entry in ended:
            if entry.job_id in needed:
                assert not starts([*other_jobs, entry])
