"""Preemption in every small state: the preemptor then fits, no job is stopped in vain, and preemption ends."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.model import Job, Plan, Preemption, RunningJob, Snapshot, Tenant
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.engine.queue.ordering import band
from tests.engine import oracle, states
from tests.engine.scenario import NOW, advance, decide, started
from tests.engine.stopping import AT_ONCE, given_back, nominated_jobs, with_stopping
from tests.engine.test_invariants import in_small_states


def contended() -> st.SearchStrategy[Snapshot]:
    """Make small clusters where many jobs run, at low priorities and beyond guarantees, and more urgent jobs wait."""
    return st.integers(0, 2**40).map(lambda seed: _contended(Random(seed)))


def _contended(rng: Random) -> Snapshot:
    nodes = tuple(states._node(rng, id, is_plain=True) for id in range(1, 1 + rng.choice([1, 2, 3])))
    tenants = tuple(_tenant(rng, id) for id in (1, 2, 3))
    earlier = tuple(_job(rng, id, (300, 500)) for id in range(11, 11 + rng.randint(2, 6)))
    before = Snapshot(earlier, (), nodes, tenants)
    at = NOW - rng.choice([30, 4000])
    after = advance(before, decide(before, replace(AT_ONCE, preemption=False), at), at)
    running = tuple(replace(running_job, preemptible=rng.random() < 0.9) for running_job in after.running)
    waiting = tuple(_job(rng, id, (300, 500, 1000)) for id in range(1, 1 + rng.randint(1, 5)))
    return replace(after, jobs=waiting, running=running, reserved_job_id=rng.choice([None, None, waiting[0].id]))


def _job(rng: Random, id: int, priorities: tuple[int, ...]) -> Job:
    return replace(
        states._job(rng, id, is_plain=True),
        tenant_id=rng.choice([1, 1, 2, 3]) if id > 10 else rng.choice([1, 2, 2, 3]),
        priority=rng.choice(priorities),
        is_online=rng.random() < 0.3,
        eligible_at=0.0,
    )


def _tenant(rng: Random, id: int) -> Tenant:
    return Tenant(
        id,
        f"t{id}",
        guaranteed_gpus=rng.choice([0, 1, 2, 3]),
        max_gpus=rng.choice([None, None, 4]),
        allow_preemption=rng.random() < 0.9,
        can_preempt_others=rng.random() < 0.9,
        preemptions_left=rng.choice([None, None, None, 0, 1]),
    )


@in_small_states
@given(contended())
def test_the_preemptor_then_fits_and_starts(snapshot: Snapshot) -> None:
    """A14: on the board without its victims its ranks are legal, and when they have gone the next plan starts it."""
    new_plan = decide(snapshot, AT_ONCE)
    after = advance(snapshot, new_plan)
    for preemption in new_plan.preemptions:
        (preemptor,) = [waiting_job for waiting_job in snapshot.jobs if waiting_job.id == preemption.job_id]
        free = oracle.without(after, list(preemption.victims))
        assert oracle.is_legal(preemptor.request, preemption.ranks, free.nodes, AT_ONCE, free.running)
    assert nominated_jobs(new_plan) == {preemption.job_id for preemption in new_plan.preemptions}
    later = decide(given_back(with_stopping(after, new_plan.preemptions), {}), AT_ONCE)
    assert nominated_jobs(new_plan) <= started(later)


@in_small_states
@given(contended())
def test_no_victim_can_be_spared(snapshot: Snapshot) -> None:
    """A14: with any one of the victims kept, no legal placement is left for the preemptor; with all kept neither."""
    snapshot = replace(snapshot, jobs=snapshot.jobs[:1], reserved_job_id=None)
    for preemption in decide(snapshot, AT_ONCE).preemptions:
        request = snapshot.jobs[0].request
        for spared in preemption.victims:
            free = oracle.without(snapshot, [victim for victim in preemption.victims if victim != spared])
            assert not any(True for _ in oracle.legal_placements(request, free.nodes, AT_ONCE, free.running))


@in_small_states
@given(contended())
def test_only_allowed_victims_are_stopped(snapshot: Snapshot) -> None:
    """A14, A16: opt-outs, budgets, bands and the guarantees of other tenants hold for every victim."""
    new_plan = decide(snapshot, AT_ONCE)
    tenants = {tenant.id: tenant for tenant in snapshot.tenants}
    running = {running_job.job_id: running_job for running_job in snapshot.running}
    gpus_held = {
        id: sum(running_job.request.gpu_count for running_job in snapshot.running if running_job.tenant_id == id)
        for id in tenants
    }
    for preemption in new_plan.preemptions:
        (preemptor,) = [waiting_job for waiting_job in snapshot.jobs if waiting_job.id == preemption.job_id]
        assert tenants[preemptor.tenant_id].can_preempt_others
        for victim in (running[id] for id in preemption.victims):
            assert victim.preemptible and tenants[victim.tenant_id].allow_preemption
            if band(victim.priority) >= band(preemptor.priority):
                assert preemption.rule == "reclaim" and victim.tenant_id != preemptor.tenant_id
    stopped = [running[id] for preemption in new_plan.preemptions for id in preemption.victims]
    assert len({entry.job_id for entry in stopped}) == len(stopped)
    for tenant in snapshot.tenants:
        lost = [entry for entry in stopped if entry.tenant_id == tenant.id]
        assert tenant.preemptions_left is None or len(lost) <= tenant.preemptions_left
        by_others = [entry for entry in lost if _preemptor_of(snapshot, new_plan.preemptions, entry) != tenant.id]
        if by_others:
            left = gpus_held[tenant.id] - sum(entry.request.gpu_count for entry in by_others)
            assert left + _gained(snapshot, new_plan, tenant.id) >= tenant.guaranteed_gpus


@in_small_states
@given(contended(), st.sampled_from(LIVE_POLICIES), st.sampled_from([0, 0, 30, 50]))
def test_preemption_comes_to_an_end(snapshot: Snapshot, name: str, online_percent: int) -> None:
    """A15: nothing is submitted and nothing ends by itself; after a bounded number of cycles no job is stopped."""
    policy = replace(AT_ONCE, name=name, online_percent=online_percent)
    jobs_by_id = {waiting_job.id: waiting_job for waiting_job in snapshot.jobs}
    now, stopped = NOW, 0
    tenants = tuple(replace(tenant, preemptions_left=None) for tenant in snapshot.tenants)
    snapshot = replace(
        snapshot, tenants=tenants, running=tuple(replace(running_job, ends_by=None) for running_job in snapshot.running)
    )
    quiet = 0
    for _ in range(60):
        new_plan = decide(snapshot, policy, now)
        stopped += sum(len(preemption.victims) for preemption in new_plan.preemptions)
        quiet = 0 if new_plan.preemptions or new_plan.placements else quiet + 1
        if quiet == 2:
            return
        snapshot = replace(
            with_stopping(advance(snapshot, new_plan, now), new_plan.preemptions), claims=new_plan.claims
        )
        snapshot = given_back(snapshot, jobs_by_id)
        now += 60
    raise AssertionError(f"{stopped} stopped and still going on")


def _preemptor_of(snapshot: Snapshot, preemptions: tuple[Preemption, ...], victim: RunningJob) -> int:
    (job_id,) = [preemption.job_id for preemption in preemptions if victim.job_id in preemption.victims]
    return next(waiting_job.tenant_id for waiting_job in snapshot.jobs if waiting_job.id == job_id)


def _gained(snapshot: Snapshot, new_plan: Plan, tenant_id: int) -> int:
    """Return the GPUs that jobs of the tenant start with or have been promised in this plan."""
    starts = {placement.job_id for placement in new_plan.placements} | nominated_jobs(new_plan)
    return sum(
        waiting_job.request.gpu_count
        for waiting_job in snapshot.jobs
        if waiting_job.id in starts and waiting_job.tenant_id == tenant_id
    )
