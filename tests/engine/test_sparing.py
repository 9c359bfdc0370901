"""Predicted ends and preemption (A70): spare the job that is about to end, and wait for it if that is cheaper."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.model import Job, Plan, Policy, Snapshot
from scheduling.engine.preemption.sparing import MAX_SPARED_SECONDS
from scheduling.engine.whatif.estimate import estimates
from tests.engine import states
from tests.engine.scenario import NOW, cluster, decide, job, node, running_on
from tests.engine.stopping import AT_ONCE

URGENT = job(1, 1, priority=1000, age=100)


def predicted(snapshot: Snapshot, ends: dict[int, float]) -> Snapshot:
    """Return the snapshot with predicted ends, in seconds from now."""
    return replace(
        snapshot,
        running=tuple(
            replace(entry, predicted_end_at=NOW + ends[entry.job_id]) if entry.job_id in ends else entry
            for entry in snapshot.running
        ),
    )


def victims(new_plan: Plan) -> list[tuple[int, ...]]:
    return [preemption.victims for preemption in new_plan.preemptions]


def full(*ids: int, nodes: int = 1, seconds: float = 60.0) -> Snapshot:
    gpus = len(ids) // nodes
    jobs = [job(id, 1, priority=300) for id in ids]
    return running_on(cluster(*[node(n, gpus) for n in range(1, nodes + 1)]), *jobs, now=NOW - seconds)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("ending", [11, 12])
def test_preemption_spares_the_job_about_to_end_among_equals(nodes: int, ending: int) -> None:
    # Both have lost more than the waiting job would wait, had they no time left: so a victim is due.
    state = predicted(full(11, 12, nodes=nodes), {ending: 300.0, 23 - ending: 5000.0})
    assert victims(decide(replace(state, jobs=(URGENT,)), AT_ONCE)) == [(23 - ending,)]


def test_preemption_prefers_less_loss_to_a_later_end() -> None:
    state = predicted(running_on(full(11, seconds=90.0, nodes=1)), {})
    state = running_on(cluster(node(1, 2)), job(11, 1, priority=300), now=NOW - 90)
    state = predicted(running_on(state, job(12, 1, priority=300), now=NOW - 60), {12: 80.0, 11: 5000.0})
    assert victims(decide(replace(state, jobs=(URGENT,)), AT_ONCE)) == [(12,)]


@pytest.mark.parametrize(("ends_in", "preempts"), [(60.0, False), (3599.0, False), (3601.0, True)])
def test_preemption_waits_if_the_wait_is_shorter_than_the_work_it_would_lose(ends_in: float, preempts: bool) -> None:
    state = predicted(full(11, seconds=3600.0), {11: ends_in})
    assert bool(decide(replace(state, jobs=(URGENT,)), AT_ONCE).preemptions) is preempts


def test_preemption_waits_for_as_many_ends_as_the_job_needs() -> None:
    state = full(11, 12, seconds=3600.0)
    waiting = (job(1, 2, priority=1000, age=100),)
    both = predicted(state, {11: 60.0, 12: 120.0})
    assert not decide(replace(both, jobs=waiting), AT_ONCE).preemptions
    one = predicted(state, {11: 60.0})
    assert victims(decide(replace(one, jobs=waiting), AT_ONCE))


def test_preemption_is_put_off_for_a_limited_time() -> None:
    """A70: wrong predictions delay a preemption by at most half an hour."""
    state = predicted(full(11, seconds=7200.0), {11: 60.0})
    early, late = [replace(URGENT, queued_at=NOW - MAX_SPARED_SECONDS + shift) for shift in (1.0, -1.0)]
    assert not decide(replace(state, jobs=(early,)), AT_ONCE).preemptions
    assert victims(decide(replace(state, jobs=(late,)), AT_ONCE)) == [(11,)]


def without_predictions(snapshot: Snapshot) -> Snapshot:
    jobs = tuple(replace(entry, predicted_seconds=None) for entry in snapshot.jobs)
    return replace(predicted(snapshot, {}), jobs=jobs)


def guessed(waiting: Job, seconds: float) -> Job:
    return replace(waiting, predicted_seconds=seconds)


@settings(max_examples=100, deadline=None)
@given(states.snapshots(), st.lists(st.floats(1.0, 1e6), min_size=12, max_size=12))
def test_predictions_change_no_plan_of_a_policy_that_orders_without_them(
    snapshot: Snapshot, seconds: list[float]
) -> None:
    """A70: without preemption, predicted ends and run times change nothing: no start, no promise, no reason."""
    plain = without_predictions(snapshot)
    ends = {entry.job_id: seconds[number % 12] for number, entry in enumerate(plain.running)}
    jobs = tuple(guessed(entry, seconds[number % 12]) for number, entry in enumerate(plain.jobs))
    with_ends = replace(predicted(plain, ends), jobs=jobs)
    for name in ("fair", "priority"):
        policy = Policy(name=name, preemption=False)
        assert decide(with_ends, policy) == decide(plain, policy)


@settings(max_examples=100, deadline=None)
@given(states.snapshots(), st.lists(st.floats(1.0, 1e6), min_size=12, max_size=12))
def test_predictions_stop_no_job_that_is_not_stopped_without_them(snapshot: Snapshot, seconds: list[float]) -> None:
    """A70: they may put a preemption off or choose another victim, and never add a preemption."""
    plain = without_predictions(snapshot)
    ends = {entry.job_id: seconds[number % 12] for number, entry in enumerate(plain.running)}
    for waiting in plain.jobs:
        alone = replace(plain, jobs=(waiting,), reserved_job_id=None)
        if not decide(alone, AT_ONCE).preemptions:
            assert not decide(predicted(alone, ends), AT_ONCE).preemptions


def test_estimate_uses_predictions_for_its_median_and_limits_for_its_bound() -> None:
    """A70: `p90_at` is made of upper bounds, whatever is predicted."""
    state = running_on(cluster(node(1, 1)), job(11, 1, minutes=100), now=NOW - 60)
    state = replace(state, jobs=(job(1, 1, minutes=100), job(2, 1, minutes=100)))
    plain = estimates(state, Policy(), NOW, [1, 2], typical=0.5)
    jobs = tuple(guessed(entry, 600.0) for entry in state.jobs)
    foreseen = estimates(replace(predicted(state, {11: 300.0}), jobs=jobs), Policy(), NOW, [1, 2], typical=0.5)
    assert [foreseen[id].p50_at for id in (1, 2)] == [NOW + 300, NOW + 900]
    assert [foreseen[id].p90_at for id in (1, 2)] == [plain[id].p90_at for id in (1, 2)]
