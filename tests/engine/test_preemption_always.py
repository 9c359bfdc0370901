"""In every small state: the preemptor then fits, nobody is stopped for nothing, and it comes to an end."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.model import Job, Plan, Preemption, RunningJob, Snapshot, Tenant
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.engine.queue.ordering import band
from tests.engine import oracle, states
from tests.engine.scenario import NOW, advance, decide, started
from tests.engine.stopping import AT_ONCE, claimants, given_back, told
from tests.engine.test_invariants import in_small_states


def contended() -> st.SearchStrategy[Snapshot]:
    """Small clusters where much runs, at low priorities and beyond guarantees, and more urgent jobs wait."""
    return st.integers(0, 2**40).map(lambda seed: _contended(Random(seed)))


def _contended(rng: Random) -> Snapshot:
    nodes = tuple(states._node(rng, id, is_plain=True) for id in range(1, 1 + rng.choice([1, 2, 3])))
    tenants = tuple(_tenant(rng, id) for id in (1, 2, 3))
    earlier = tuple(_job(rng, id, (300, 500)) for id in range(11, 11 + rng.randint(2, 6)))
    before = Snapshot(earlier, (), nodes, tenants)
    at = NOW - rng.choice([30, 4000])
    after = advance(before, decide(before, replace(AT_ONCE, preemption=False), at), at)
    running = tuple(replace(one, preemptible=rng.random() < 0.9) for one in after.running)
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
    made = decide(snapshot, AT_ONCE)
    after = advance(snapshot, made)
    for preemption in made.preemptions:
        (preemptor,) = [one for one in snapshot.jobs if one.id == preemption.job_id]
        free = oracle.without(after, list(preemption.victims))
        assert oracle.is_legal(preemptor.request, preemption.ranks, free.nodes, AT_ONCE, free.running)
    assert claimants(made) == {one.job_id for one in made.preemptions}
    later = decide(given_back(told(after, made.preemptions), {}), AT_ONCE)
    assert claimants(made) <= started(later)


@in_small_states
@given(contended())
def test_no_victim_can_be_spared(snapshot: Snapshot) -> None:
    """A14: with any one of the victims kept, no legal placement is left for the preemptor; with all kept neither."""
    snapshot = replace(snapshot, jobs=snapshot.jobs[:1], reserved_job_id=None)
    for preemption in decide(snapshot, AT_ONCE).preemptions:
        request = snapshot.jobs[0].request
        for spared in preemption.victims:
            free = oracle.without(snapshot, [one for one in preemption.victims if one != spared])
            assert not any(True for _ in oracle.legal_placements(request, free.nodes, AT_ONCE, free.running))


@in_small_states
@given(contended())
def test_only_those_who_may_be_stopped_are(snapshot: Snapshot) -> None:
    """A14, A16: opt-outs, budgets, bands and the guarantees of other tenants hold for every victim."""
    made = decide(snapshot, AT_ONCE)
    tenants = {one.id: one for one in snapshot.tenants}
    running = {one.job_id: one for one in snapshot.running}
    held = {id: sum(one.request.gpu_count for one in snapshot.running if one.tenant_id == id) for id in tenants}
    for preemption in made.preemptions:
        (preemptor,) = [one for one in snapshot.jobs if one.id == preemption.job_id]
        assert tenants[preemptor.tenant_id].can_preempt_others
        for victim in (running[id] for id in preemption.victims):
            assert victim.preemptible and tenants[victim.tenant_id].allow_preemption
            if band(victim.priority) >= band(preemptor.priority):
                assert preemption.rule == "reclaim" and victim.tenant_id != preemptor.tenant_id
    stopped = [running[id] for preemption in made.preemptions for id in preemption.victims]
    assert len({one.job_id for one in stopped}) == len(stopped)
    for tenant in snapshot.tenants:
        lost = [one for one in stopped if one.tenant_id == tenant.id]
        assert tenant.preemptions_left is None or len(lost) <= tenant.preemptions_left
        by_others = [one for one in lost if _preemptor_of(snapshot, made.preemptions, one) != tenant.id]
        if by_others:
            left = held[tenant.id] - sum(one.request.gpu_count for one in by_others)
            assert left + _gained(snapshot, made, tenant.id) >= tenant.guaranteed_gpus


@in_small_states
@given(contended(), st.sampled_from(LIVE_POLICIES), st.sampled_from([0, 0, 30, 50]))
def test_preemption_comes_to_an_end(snapshot: Snapshot, name: str, online_percent: int) -> None:
    """A15: nothing is submitted and nothing ends by itself; after a bounded number of cycles nobody is stopped."""
    policy = replace(AT_ONCE, name=name, online_percent=online_percent)
    known = {one.id: one for one in snapshot.jobs}
    now, stopped = NOW, 0
    tenants = tuple(replace(one, preemptions_left=None) for one in snapshot.tenants)
    snapshot = replace(snapshot, tenants=tenants, running=tuple(replace(one, ends_by=None) for one in snapshot.running))
    quiet = 0
    for _ in range(60):
        made = decide(snapshot, policy, now)
        stopped += sum(len(one.victims) for one in made.preemptions)
        quiet = 0 if made.preemptions or made.placements else quiet + 1
        if quiet == 2:
            return
        snapshot = replace(told(advance(snapshot, made, now), made.preemptions), claims=made.claims)
        snapshot = given_back(snapshot, known)
        now += 60
    raise AssertionError(f"{stopped} stopped and still going on")


def _preemptor_of(snapshot: Snapshot, preemptions: tuple[Preemption, ...], victim: RunningJob) -> int:
    (job_id,) = [one.job_id for one in preemptions if victim.job_id in one.victims]
    return next(one.tenant_id for one in snapshot.jobs if one.id == job_id)


def _gained(snapshot: Snapshot, made: Plan, tenant_id: int) -> int:
    """GPUs that jobs of the tenant start with or have been promised in this plan."""
    starts = {one.job_id for one in made.placements} | claimants(made)
    return sum(one.request.gpu_count for one in snapshot.jobs if one.id in starts and one.tenant_id == tenant_id)
