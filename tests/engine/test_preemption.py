"""Victims of a preemption, and the resources withheld for the nominated job."""

from dataclasses import replace

from scheduling.engine.model import Policy, Tenant
from tests.engine import oracle
from tests.engine.scenario import NOW, ask, cluster, decide, gpu, job, node, reason, running_on, started
from tests.engine.stopping import AT_ONCE, nominated_jobs, with_stopping


def test_a_higher_band_preempts_a_lower_one_and_not_its_equal() -> None:
    full = running_on(cluster(node(1, 2)), job(11, 1, priority=300), job(12, 1, priority=900))
    new_plan = decide(replace(full, jobs=(job(1, 1, priority=999),)), AT_ONCE)
    assert [preemption.victims for preemption in new_plan.preemptions] == [(11,)]
    assert new_plan.preemptions[0].rule == "priority"
    assert not decide(replace(full, jobs=(job(1, 2, priority=999),)), AT_ONCE).preemptions


def test_guarantee_is_reclaimed_from_a_borrowing_tenant() -> None:
    """A16: the tenant under its guarantee stops a borrower, whatever the priorities; two within guarantees do not stop
    each other."""
    owed, borrower = Tenant(1, "owed", guaranteed_gpus=2), Tenant(2, "borrower", guaranteed_gpus=2)
    full = running_on(
        cluster(node(1, 4), tenants=(owed, borrower)), *[job(n, 1, tenant=2, priority=900) for n in (11, 12, 13, 14)]
    )
    waiting = tuple(job(n, 1, tenant=1, priority=500) for n in (1, 2, 3))
    new_plan = decide(replace(full, jobs=waiting), AT_ONCE)
    assert [(preemption.job_id, preemption.rule) for preemption in new_plan.preemptions] == [
        (1, "reclaim"),
        (2, "reclaim"),
    ]
    assert {reason(new_plan, n).code for n in (1, 2)} == {"reclaim_pending"}
    assert reason(new_plan, 3).code != "reclaim_pending"


def test_online_takes_back_what_batch_borrows() -> None:
    """A05: of the online capacity, and no more than that; batch keeps its own."""
    policy = replace(AT_ONCE, online_percent=50)
    full = running_on(cluster(node(1, 4)), *[job(n, 1) for n in (11, 12, 13, 14)])
    online = tuple(replace(job(n, 1), is_online=True) for n in (1, 2, 3))
    new_plan = decide(replace(full, jobs=online), policy)
    assert [(preemption.job_id, preemption.rule) for preemption in new_plan.preemptions] == [
        (1, "online"),
        (2, "online"),
    ]
    assert not decide(replace(full, jobs=online), AT_ONCE).preemptions


def test_preemption_loses_the_least_work() -> None:
    """Of equals the one with the shortest run is stopped, and a checkpoint makes a long run cheap."""
    full = running_on(cluster(node(1, 2)), job(11, 1, priority=300), now=NOW - 9000)
    full = running_on(full, job(12, 1, priority=300), now=NOW - 3000)
    urgent = (job(1, 1, priority=1000),)
    assert decide(replace(full, jobs=urgent), AT_ONCE).preemptions[0].victims == (12,)
    saved = tuple(
        replace(running_job, saved_at=NOW - 60) if running_job.job_id == 11 else running_job
        for running_job in full.running
    )
    new_plan = decide(replace(full, jobs=urgent, running=saved), AT_ONCE).preemptions[0]
    assert (new_plan.victims, new_plan.lost_gpu_seconds) == ((11,), 60.0)


def test_one_large_victim_on_one_node_rather_than_small_ones_everywhere() -> None:
    """No job is stopped on nodes that the preemptor does not use."""
    full = running_on(cluster(node(1, 2), node(2, 2)), *[job(n, 1, priority=300) for n in (11, 12, 13, 14)])
    new_plan = decide(replace(full, jobs=(job(1, 2, priority=1000),)), AT_ONCE)
    (preemption,) = new_plan.preemptions
    assert set(preemption.victims) in ({11, 12}, {13, 14})


def test_preemption_respects_the_delay_and_the_minimum_run_time() -> None:
    policy = Policy(min_runtime_seconds=600, preemption_delay_seconds=60)
    full = running_on(cluster(node(1, 1)), job(11, 1, priority=300), now=NOW - 500)
    young = decide(replace(full, jobs=(job(1, 1, priority=1000, age=500),)), policy)
    assert (young.preemptions, reason(young, 1).code) == ((), "preempt_delay")
    assert reason(young, 1).evidence["at"] == "1970-01-12T13:48:20Z"
    later = decide(replace(full, jobs=(job(1, 1, priority=1000, age=500),)), policy, NOW + 101)
    assert later.preemptions
    new_state = decide(replace(full, jobs=(job(1, 1, priority=1000, age=0),)), policy, NOW + 30)
    assert (new_state.preemptions, reason(new_state, 1).code) == ((), "preempt_delay")


def test_released_resources_are_kept_for_the_nominated_job() -> None:
    """Neither a job that comes first in order nor a new one takes the resources released for another."""
    full = running_on(
        cluster(node(1, 2), tenants=(Tenant(2, "t2"),)), job(11, 1, priority=300), job(12, 1, priority=300)
    )
    snapshot = replace(full, jobs=(job(1, 2, priority=1000),))
    new_plan = decide(snapshot, AT_ONCE)
    half_way = replace(
        with_stopping(snapshot, new_plan.preemptions),
        claims=new_plan.claims,
        jobs=(*snapshot.jobs, job(2, 1, tenant=2, priority=2000, age=0)),
    )
    half_way = oracle.without(half_way, [11])
    waits = decide(half_way, AT_ONCE)
    assert (started(waits), nominated_jobs(waits), waits.preemptions) == (set(), {1}, ())
    assert reason(waits, 1).code == "reclaim_pending"
    done = decide(oracle.without(half_way, [12]), AT_ONCE)
    assert started(done) == {1}


def test_cancelled_victim_still_releases_to_the_nominated_job() -> None:
    full = running_on(cluster(node(1, 1)), job(11, 1, priority=300))
    snapshot = replace(full, jobs=(job(1, 1, priority=1000),))
    after = with_stopping(snapshot, decide(snapshot, AT_ONCE).preemptions)
    cancelled = replace(after, running=tuple(replace(running_job, stopping_for=None) for running_job in after.running))
    new_plan = decide(replace(cancelled, jobs=(*after.jobs, job(2, 1, priority=2000))), AT_ONCE)
    assert nominated_jobs(new_plan) == {1}


def test_no_job_is_stopped_when_ending_jobs_suffice() -> None:
    """A14: no preemption without a gain."""
    full = running_on(cluster(node(1, 2)), job(11, 1, priority=300), job(12, 1, priority=300))
    ending = tuple(replace(running_job, is_stopping=running_job.job_id == 11) for running_job in full.running)
    urgent = (job(1, 1, priority=1000),)
    assert not decide(replace(full, jobs=urgent, running=ending), AT_ONCE).preemptions
    assert decide(replace(full, jobs=urgent), AT_ONCE).preemptions


def test_job_queues_again_when_its_nomination_fails() -> None:
    """The devices went out of service meanwhile: the job waits like any other."""
    full = running_on(cluster(node(1, 1)), job(11, 1, priority=300))
    snapshot = replace(full, jobs=(job(1, 1, priority=1000),))
    after = with_stopping(snapshot, decide(snapshot, AT_ONCE).preemptions)
    sick = oracle.without(after, [11])
    sick = replace(sick, nodes=tuple(replace(each_node, is_open=False) for each_node in sick.nodes))
    new_plan = decide(sick, AT_ONCE)
    assert (new_plan.claims, reason(new_plan, 1).code) == ((), "maintenance")


def test_preemption_can_be_turned_off() -> None:
    full = running_on(cluster(node(1, 1)), job(11, 1, priority=300))
    snapshot = replace(full, jobs=(job(1, 1, priority=1000),))
    assert not decide(snapshot, replace(AT_ONCE, preemption=False)).preemptions
    assert decide(snapshot, AT_ONCE).preemptions


def test_a_gang_preempts_over_nodes() -> None:
    gang = job(1, priority=1000, request=ask(4, gang=True, ranks=2))
    full = running_on(cluster(node(1, 2), node(2, 2), node(3, 2)), *[job(n, 1, priority=300) for n in range(11, 17)])
    (preemption,) = decide(replace(full, jobs=(gang,)), AT_ONCE).preemptions
    assert len(preemption.victims) == 4
    assert len({rank.node_id for rank in preemption.ranks}) == 2


def test_gang_spares_victims_that_it_does_not_need() -> None:
    """A14: the order of preference passes over node 3 before nodes 1 and 2 have capacity."""
    gang = job(1, priority=1000, request=ask(4, gang=True, ranks=2))
    full = cluster(node(1, 2), node(2, 2), node(3, 2))
    for at, first in ((900, 11), (600, 21)):
        full = running_on(full, *[job(n, 1, priority=300) for n in (first, first + 1, first + 2)], now=NOW - at)
    by_node: dict[int, list[int]] = {rank.node_id: [] for running_job in full.running for rank in running_job.ranks}
    for running_job in full.running:
        by_node[running_job.ranks[0].node_id].append(running_job.job_id)
    # On each node the first runs for a short time, the second for long: preferred are the first of all three.
    short = {ids[0] for ids in by_node.values()}
    running = tuple(
        replace(running_job, started_at=NOW - (10 if running_job.job_id in short else 999))
        for running_job in full.running
    )
    (preemption,) = decide(replace(full, jobs=(gang,), running=running), AT_ONCE).preemptions
    assert len(preemption.victims) == 4
    assert len([id for id in preemption.victims if id in short]) == 2


def test_preemption_respects_budgets_and_opt_outs_of_tenants() -> None:
    for opted_out in (
        Tenant(2, "t2", preemptions_left=0),
        Tenant(2, "t2", allow_preemption=False),
        Tenant(2, "t2", guaranteed_gpus=2),
    ):
        full = running_on(
            cluster(node(1, 2), tenants=(opted_out,)), *[job(n, 1, tenant=2, priority=300) for n in (11, 12)]
        )
        assert not decide(replace(full, jobs=(job(1, 1, priority=1000),)), AT_ONCE).preemptions
    one_left = replace(
        full, tenants=tuple(replace(tenant, guaranteed_gpus=0, preemptions_left=1) for tenant in full.tenants)
    )
    waiting = (job(1, 1, priority=1000), job(2, 1, priority=1000))
    assert len(decide(replace(one_left, jobs=waiting), AT_ONCE).preemptions) == 1


def test_each_nominated_job_starts_in_its_own_place() -> None:
    """The first would fit the second's place better, which is the only one that the second can use."""
    small, large = node(1, [gpu(1, 40_000, "X")]), node(2, [gpu(2, 80_000, "Y")])
    full = running_on(cluster(small, large), job(11, 1, priority=300, request=ask(gpu_models=("X",))))
    full = running_on(full, job(12, 1, priority=100))
    waiting = (job(1, 1, priority=2000), job(2, priority=1000, request=ask(gpu_models=("X",))))
    new_plan = decide(replace(full, jobs=waiting), AT_ONCE)
    assert [(preemption.job_id, preemption.victims) for preemption in new_plan.preemptions] == [(1, (12,)), (2, (11,))]
    free = oracle.without(with_stopping(replace(full, jobs=waiting), new_plan.preemptions), [11, 12])
    assert started(decide(free, AT_ONCE)) == {1, 2}


def test_online_and_batch_do_not_stop_each_other_in_turns() -> None:
    """A15: batch of a higher band does not take from online what it would have to borrow."""
    policy = replace(AT_ONCE, online_percent=50)
    nodes = (node(1, [gpu(1, 80_000, "A100")]), node(2, [gpu(20 + n, 80_000, "H100") for n in range(7)]))
    only = ask(gpu_models=("A100",))
    full = running_on(cluster(*nodes), job(3, priority=1000, request=ask(4, gpu_models=("H100",))))
    full = running_on(full, replace(job(1, priority=300, request=only), is_online=True))
    running = tuple(replace(running_job, is_online=running_job.job_id == 1) for running_job in full.running)
    new_plan = decide(replace(full, running=running, jobs=(job(2, priority=1000, request=only),)), policy)
    assert not new_plan.preemptions


def test_budgets_are_not_spent_on_victims_that_cannot_help() -> None:
    """The other tenant may lose one of its two, and only the A100 helps; the H100 comes first in order."""
    tenants = (Tenant(1, "t1", guaranteed_gpus=1), Tenant(2, "t2", guaranteed_gpus=1))
    mixed = node(1, [gpu(1, 80_000, "A100"), gpu(2, 80_000, "H100")])
    full = running_on(cluster(mixed, tenants=tenants), job(11, tenant=2, request=ask(gpu_models=("A100",))))
    full = running_on(full, job(12, tenant=2, request=ask(gpu_models=("H100",))), now=NOW)
    for model, victim in (("A100", 11), ("H100", 12)):
        new_plan = decide(replace(full, jobs=(job(1, request=ask(gpu_models=(model,))),)), AT_ONCE)
        assert [preemption.victims for preemption in new_plan.preemptions] == [(victim,)]


def test_hanging_job_is_not_expected_to_end() -> None:
    full = running_on(cluster(node(1, 1), node(2, 1)), job(11, priority=300), job(12, priority=300))
    for ends_by, stopped in ((NOW + 5, []), (NOW - 3600, [(12,)])):
        running = tuple(
            replace(running_job, is_stopping=running_job.job_id == 11, ends_by=ends_by) for running_job in full.running
        )
        new_plan = decide(replace(full, running=running, jobs=(job(1, priority=1000),)), AT_ONCE)
        assert [preemption.victims for preemption in new_plan.preemptions] == stopped
