"""A job for which others were stopped waits for its own place, and takes none that is promised."""

from dataclasses import replace

import pytest

from scheduling.engine.forward import started as after_start
from scheduling.engine.forward import stopping
from scheduling.engine.model import Plan, Snapshot, Tenant
from tests.engine.scenario import NOW, cluster, decide, job, node, nodes_of, running_on, started
from tests.engine.stopping import AT_ONCE


def committed(snapshot: Snapshot, new_plan: Plan) -> Snapshot:
    """Return the snapshot of the next cycle, if nothing else happens."""
    after = stopping(after_start(snapshot, new_plan.placements, NOW), new_plan.preemptions, new_plan.claims)
    return replace(after, reserved_job_id=new_plan.reservation.job_id if new_plan.reservation else None)


def promised_beside_victim() -> Snapshot:
    """A gang is promised the nodes 1 and 2, of which 2 is free; an urgent job stops job 13 on node 3."""
    state = running_on(cluster(node(1, 1), tenants=[Tenant(2, "t2")]), job(12, minutes=5, tenant=2))
    state = running_on(replace(state, nodes=(*state.nodes, node(3, 1))), job(13, priority=300, tenant=2))
    jobs = (job(1, 2, gang=True, ranks=2, priority=300), job(2, tenant=2, priority=1000))
    return replace(state, nodes=(*state.nodes, node(2, 1)), jobs=jobs)


def test_nominated_job_leaves_free_gpus_to_the_promise() -> None:
    """A12, A14: it has its own place as soon as its victim has ended."""
    state = promised_beside_victim()
    first = decide(state, AT_ONCE)
    assert [entry.victims for entry in first.preemptions] == [(13,)]
    assert first.reservation is not None and first.reservation.at == NOW + 300
    second = decide(committed(state, first), AT_ONCE)
    assert not second.placements and second.claims == first.claims
    assert second.reservation == first.reservation


@pytest.mark.parametrize(("late", "starts"), [(0, False), (100, True)])
def test_nominated_job_takes_another_place_only_if_its_victim_hangs(late: float, starts: bool) -> None:
    """A job that has not stopped long after its grace period may never stop."""
    state = promised_beside_victim()
    after = committed(state, decide(state, AT_ONCE))
    running = tuple(replace(entry, ends_by=NOW) if entry.is_stopping else entry for entry in after.running)
    new_plan = decide(replace(after, running=running), AT_ONCE, NOW + late)
    assert (2 in started(new_plan)) is starts
    assert nodes_of(new_plan, 2) == [2] if starts else not started(new_plan)
