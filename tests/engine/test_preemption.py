"""Preemption and reclaim: the preemptor then fits, nobody is stopped for nothing, and it comes to an end."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.model import Claim, Job, Plan, Policy, Preemption, Running, Snapshot, Tenant
from scheduling.engine.ordering import band
from tests.engine import oracle, states
from tests.engine.scenario import (
    NOW,
    advance,
    ask,
    cluster,
    decide,
    job,
    node,
    reason,
    running_on,
    started,
)
from tests.engine.test_invariants import in_small_states

AT_ONCE = Policy(min_runtime_seconds=0, preemption_delay_seconds=0)


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
        assert oracle.is_legal(preemptor.request, preemption.ranks, free.nodes, AT_ONCE)
    assert claimants(made) == {one.job_id for one in made.preemptions}
    later = decide(_given_back(_told(after, made.preemptions), {}), AT_ONCE)
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
            assert not any(True for _ in oracle.legal_placements(request, free.nodes, AT_ONCE))


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
@given(contended())
def test_preemption_comes_to_an_end(snapshot: Snapshot) -> None:
    """A15: nothing is submitted and nothing ends by itself; after a bounded number of cycles nobody is stopped."""
    known = {one.id: one for one in snapshot.jobs}
    now, stopped = NOW, 0
    tenants = tuple(replace(one, preemptions_left=None) for one in snapshot.tenants)
    snapshot = replace(snapshot, tenants=tenants, running=tuple(replace(one, ends_by=None) for one in snapshot.running))
    quiet = 0
    for _ in range(60):
        made = decide(snapshot, AT_ONCE, now)
        stopped += sum(len(one.victims) for one in made.preemptions)
        quiet = 0 if made.preemptions or made.placements else quiet + 1
        if quiet == 2:
            return
        snapshot = replace(_told(advance(snapshot, made, now), made.preemptions), claims=made.claims)
        snapshot = _given_back(snapshot, known)
        now += 60
    raise AssertionError(f"{stopped} stopped and still going on")


def test_a_higher_band_preempts_a_lower_one_and_not_its_equal() -> None:
    full = running_on(cluster(node(1, 2)), job(11, 1, priority=300), job(12, 1, priority=900))
    made = decide(replace(full, jobs=(job(1, 1, priority=999),)), AT_ONCE)
    assert [one.victims for one in made.preemptions] == [(11,)]
    assert made.preemptions[0].rule == "priority"
    assert not decide(replace(full, jobs=(job(1, 2, priority=999),)), AT_ONCE).preemptions


def test_a_guarantee_is_reclaimed_from_who_borrows() -> None:
    """A16: the tenant that is owed stops a borrower, whatever the priorities; two within guarantees leave each other."""
    owed, borrower = Tenant(1, "owed", guaranteed_gpus=2), Tenant(2, "borrower", guaranteed_gpus=2)
    full = running_on(
        cluster(node(1, 4), tenants=(owed, borrower)), *[job(n, 1, tenant=2, priority=900) for n in (11, 12, 13, 14)]
    )
    waiting = tuple(job(n, 1, tenant=1, priority=500) for n in (1, 2, 3))
    made = decide(replace(full, jobs=waiting), AT_ONCE)
    assert [(one.job_id, one.rule) for one in made.preemptions] == [(1, "reclaim"), (2, "reclaim")]
    assert {reason(made, n).code for n in (1, 2)} == {"reclaim_pending"}
    assert reason(made, 3).code != "reclaim_pending"


def test_online_takes_back_what_batch_borrows() -> None:
    """A05: of the online part, and no more than that; batch keeps its own."""
    policy = replace(AT_ONCE, online_percent=50)
    full = running_on(cluster(node(1, 4)), *[job(n, 1) for n in (11, 12, 13, 14)])
    online = tuple(replace(job(n, 1), is_online=True) for n in (1, 2, 3))
    made = decide(replace(full, jobs=online), policy)
    assert [(one.job_id, one.rule) for one in made.preemptions] == [(1, "online"), (2, "online")]
    assert not decide(replace(full, jobs=online), AT_ONCE).preemptions


def test_the_least_is_lost() -> None:
    """Of equals the one that has run shortest is stopped, and a checkpoint makes a long run cheap."""
    full = running_on(cluster(node(1, 2)), job(11, 1, priority=300), now=NOW - 9000)
    full = running_on(full, job(12, 1, priority=300), now=NOW - 3000)
    urgent = (job(1, 1, priority=1000),)
    assert decide(replace(full, jobs=urgent), AT_ONCE).preemptions[0].victims == (12,)
    saved = tuple(replace(one, saved_at=NOW - 60) if one.job_id == 11 else one for one in full.running)
    made = decide(replace(full, jobs=urgent, running=saved), AT_ONCE).preemptions[0]
    assert (made.victims, made.lost_gpu_seconds) == ((11,), 60.0)


def test_one_large_victim_on_one_node_rather_than_small_ones_everywhere() -> None:
    """Nobody is stopped on nodes that the preemptor does not come to."""
    full = running_on(cluster(node(1, 2), node(2, 2)), *[job(n, 1, priority=300) for n in (11, 12, 13, 14)])
    made = decide(replace(full, jobs=(job(1, 2, priority=1000),)), AT_ONCE)
    (preemption,) = made.preemptions
    assert set(preemption.victims) in ({11, 12}, {13, 14})


def test_nobody_is_stopped_before_the_delay_or_the_minimum_run_time() -> None:
    policy = Policy(min_runtime_seconds=600, preemption_delay_seconds=60)
    full = running_on(cluster(node(1, 1)), job(11, 1, priority=300), now=NOW - 500)
    young = decide(replace(full, jobs=(job(1, 1, priority=1000, age=500),)), policy)
    assert (young.preemptions, reason(young, 1).code) == ((), "preempt_delay")
    assert reason(young, 1).evidence["at"] == "1970-01-12T13:48:20Z"
    later = decide(replace(full, jobs=(job(1, 1, priority=1000, age=500),)), policy, NOW + 101)
    assert later.preemptions
    fresh = decide(replace(full, jobs=(job(1, 1, priority=1000, age=0),)), policy, NOW + 30)
    assert (fresh.preemptions, reason(fresh, 1).code) == ((), "preempt_delay")


def test_what_is_given_back_is_kept_for_the_claimant() -> None:
    """A job that comes first in order does not take what others were stopped for, nor do jobs that arrive meanwhile."""
    full = running_on(
        cluster(node(1, 2), tenants=(Tenant(2, "t2"),)), job(11, 1, priority=300), job(12, 1, priority=300)
    )
    snapshot = replace(full, jobs=(job(1, 2, priority=1000),))
    made = decide(snapshot, AT_ONCE)
    half_way = replace(
        _told(snapshot, made.preemptions),
        claims=made.claims,
        jobs=(*snapshot.jobs, job(2, 1, tenant=2, priority=2000, age=0)),
    )
    half_way = oracle.without(half_way, [11])
    waits = decide(half_way, AT_ONCE)
    assert (started(waits), claimants(waits), waits.preemptions) == (set(), {1}, ())
    assert reason(waits, 1).code == "reclaim_pending"
    done = decide(oracle.without(half_way, [12]), AT_ONCE)
    assert started(done) == {1}


def test_a_victim_that_is_cancelled_meanwhile_gives_back_to_the_claimant_all_the_same() -> None:
    full = running_on(cluster(node(1, 1)), job(11, 1, priority=300))
    snapshot = replace(full, jobs=(job(1, 1, priority=1000),))
    told = _told(snapshot, decide(snapshot, AT_ONCE).preemptions)
    cancelled = replace(told, running=tuple(replace(one, stopping_for=None) for one in told.running))
    made = decide(replace(cancelled, jobs=(*told.jobs, job(2, 1, priority=2000))), AT_ONCE)
    assert claimants(made) == {1}


def test_nobody_is_stopped_for_who_need_only_wait_for_what_ends_anyway() -> None:
    """A14: evictions that gain nothing."""
    full = running_on(cluster(node(1, 2)), job(11, 1, priority=300), job(12, 1, priority=300))
    ending = tuple(replace(one, is_stopping=one.job_id == 11) for one in full.running)
    urgent = (job(1, 1, priority=1000),)
    assert not decide(replace(full, jobs=urgent, running=ending), AT_ONCE).preemptions
    assert decide(replace(full, jobs=urgent), AT_ONCE).preemptions


def test_a_claim_that_comes_to_nothing_waits_in_line() -> None:
    """The devices went out of service meanwhile: the job is an ordinary one again."""
    full = running_on(cluster(node(1, 1)), job(11, 1, priority=300))
    snapshot = replace(full, jobs=(job(1, 1, priority=1000),))
    told = _told(snapshot, decide(snapshot, AT_ONCE).preemptions)
    sick = oracle.without(told, [11])
    sick = replace(sick, nodes=tuple(replace(one, is_open=False) for one in sick.nodes))
    made = decide(sick, AT_ONCE)
    assert (made.claims, reason(made, 1).code) == ((), "maintenance")


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


def claimants(made: Plan) -> set[int]:
    return {claim.job_id for claim in made.claims}


def _told(snapshot: Snapshot, preemptions: tuple[Preemption, ...]) -> Snapshot:
    """The victims have been told to stop."""
    victim_of = {id: one.job_id for one in preemptions for id in one.victims}
    return replace(
        snapshot,
        running=tuple(
            replace(one, is_stopping=True, stopping_for=victim_of[one.job_id]) if one.job_id in victim_of else one
            for one in snapshot.running
        ),
        claims=tuple(Claim(one.job_id, one.ranks) for one in preemptions),
    )


def _given_back(snapshot: Snapshot, known: dict[int, Job]) -> Snapshot:
    """What was told to stop has stopped and waits again, with its queue time."""
    gone = [one for one in snapshot.running if one.is_stopping]
    return replace(
        oracle.without(snapshot, [one.job_id for one in gone]),
        jobs=(*snapshot.jobs, *[_waiting_again(one, known) for one in gone]),
    )


def _waiting_again(one: Running, known: dict[int, Job]) -> Job:
    return known.setdefault(
        one.job_id, Job(one.job_id, one.tenant_id, one.request, one.priority, queued_at=NOW - 10_000 - one.job_id)
    )


def _preemptor_of(snapshot: Snapshot, preemptions: tuple[Preemption, ...], victim: Running) -> int:
    (job_id,) = [one.job_id for one in preemptions if victim.job_id in one.victims]
    return next(one.tenant_id for one in snapshot.jobs if one.id == job_id)


def _gained(snapshot: Snapshot, made: Plan, tenant_id: int) -> int:
    """GPUs that jobs of the tenant start with or have been promised in this plan."""
    starts = {one.job_id for one in made.placements} | claimants(made)
    return sum(one.request.gpu_count for one in snapshot.jobs if one.id in starts and one.tenant_id == tenant_id)
