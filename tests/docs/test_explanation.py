"""Check every number of docs/explanation.md against the engine (A54)."""

from dataclasses import replace
from math import log

from scheduling.engine.model import Plan, Policy, Snapshot, Tenant
from scheduling.engine.queue.fairshare import average_gpus
from scheduling.engine.queue.ordering import aged_priority
from tests.docs.reading import text_of
from tests.engine.scenario import NOW, cluster, decide, job, node, reason, running_on, started

TEXT = " ".join(text_of("docs/explanation.md").split())
NLP, VISION = Tenant(1, "nlp", weight=1.0), Tenant(2, "vision", weight=3.0)
AT_ONCE = Policy(min_runtime_seconds=0, preemption_delay_seconds=0)
DAY = 86_400.0


def says(text: str) -> bool:
    return text in TEXT


def split(nlp: Tenant) -> tuple[int, int]:
    """Return the GPUs that nlp and vision get on a node of 8, with eight waiting jobs each."""
    jobs = [job(10 * tenant + n, tenant=tenant, age=0) for tenant in (1, 2) for n in range(8)]
    ids = started(decide(cluster(node(1), jobs=jobs, tenants=(nlp, VISION))))
    return len([id for id in ids if id < 20]), len([id for id in ids if id >= 20])


def test_shares_decide_turns() -> None:
    nlp, vision = split(NLP)
    assert (nlp, vision) == (2, 6)
    assert says(f"nlp holds {nlp} GPUs and vision {vision}")
    assert says(f"{nlp} / 1 = {nlp / NLP.weight:.2f} and {vision} / 3 = {vision / VISION.weight:.2f}")


def test_past_use_counts_and_decays() -> None:
    used = 2 * 8 * 24
    after = [average_gpus(used * 3600.0 / 2**weeks, Policy()) for weeks in range(3)]
    assert says(f"{used} GPU-hours. Use fades with a half-life of {Policy().usage_half_life_seconds / DAY:g} days")
    assert says(f"as if nlp held {after[0]:.2f} GPUs for ever")
    assert says(f"A week later the two days count for {after[1]:.2f} GPUs, after two weeks for {after[2]:.2f}")
    assert after[0] == used * 3600 * log(2) / (7 * DAY)
    nlp, vision = split(replace(NLP, usage_gpu_seconds=used * 3600.0))
    assert says(f"nlp gets {nlp} GPU and vision {vision}: {nlp + after[0]:.2f} / 1 = {nlp + after[0]:.2f}")
    assert says(f"against {vision} / 3 = {vision / 3:.2f}")


def test_tenant_without_work_reserves_nothing() -> None:
    jobs = [job(n, age=0) for n in range(1, 9)]
    assert len(started(decide(cluster(node(1), jobs=jobs, tenants=(NLP, VISION))))) == 8
    assert says("nlp gets all 8 GPUs")


def test_guarantee_is_reclaimed() -> None:
    nlp, vision = Tenant(1, "nlp", guaranteed_gpus=2), Tenant(2, "vision", guaranteed_gpus=2)
    full = running_on(cluster(node(1, 4), tenants=(nlp, vision)), *[job(n, tenant=2) for n in (11, 12, 13, 14)])
    plan = decide(replace(full, jobs=tuple(job(n) for n in (1, 2, 3))), AT_ONCE)
    assert [preemption.rule for preemption in plan.preemptions] == ["reclaim", "reclaim"]
    assert sum(len(preemption.victims) for preemption in plan.preemptions) == 2
    assert reason(plan, 3).code != "reclaim_pending"
    assert says("Two of vision's jobs are stopped, by the rule `reclaim`. The third job of nlp waits")


def test_aging_ends_at_the_band() -> None:
    def stands(minutes: float) -> float:
        return aged_priority(500, NOW - minutes * 60, Policy(), NOW)

    assert says(f"stands at {stands(180):g} after three hours, and from 8 hours and 19 minutes on at {stands(1e6):g}")
    assert stands(8 * 60 + 18) < stands(8 * 60 + 19) == stands(1e6) == 999


def promised() -> Plan:
    full = running_on(cluster(node(1)), job(99, gpus=4, minutes=60))
    return decide(replace(full, jobs=(job(1, gpus=8), job(2, gpus=2, minutes=30), job(3, gpus=2, minutes=90))))


def test_large_job_gets_a_reservation() -> None:
    plan = promised()
    assert plan.reservation is not None and plan.reservation.job_id == 1
    assert says(f"is promised the node in {(plan.reservation.at - NOW) / 60:g} minutes")
    assert started(plan) == {2}
    assert says(f"waits with the reason `{reason(plan, 3).code}`, though 2 GPUs are free")


def victims(full: Snapshot) -> tuple[tuple[int, ...], float]:
    [plan] = decide(replace(full, jobs=(job(1, priority=2000),)), AT_ONCE).preemptions
    return plan.victims, plan.lost_gpu_seconds


def test_preemption_loses_the_least_work() -> None:
    full = running_on(cluster(node(1, 2)), job(11, priority=300), now=NOW - 9000)
    full = running_on(full, job(12, priority=300), now=NOW - 3000)
    assert victims(full) == ((12,), 3000)
    assert says("Job 11 has run for 150 minutes, job 12 for 50") and (9000 / 60, 3000 / 60) == (150, 50)
    assert says("would lose 9000 GPU-seconds of work, stopping job 12 loses 3000: job 12 is stopped")
    saved = tuple(replace(running, saved_at=NOW - 60) if running.job_id == 11 else running for running in full.running)
    assert victims(replace(full, running=saved)) == ((11,), 60)
    assert says("only 60 GPU-seconds would be lost with it, and job 11 would be stopped instead")
    assert says(f"safe for its first {Policy().min_runtime_seconds / 60:g} minutes")
    assert says(f"must have waited for {Policy().preemption_delay_seconds / 60:g} minute")
