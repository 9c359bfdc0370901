"""Replays in discrete time: who starts when under which policy, and what preemption costs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduling.engine.model import Policy
from scheduling.simulator.runs.cluster import Cluster, never_fitting
from scheduling.simulator.runs.srtf import replay_srtf
from scheduling.simulator.runs.statistics import figures
from scheduling.simulator.runs.trace_replay import Run, replay
from scheduling.simulator.traces.jobs import TraceJob
from scheduling.simulator.traces.predictions import with_predictions

HOUR = 3600.0


def asked(id: int, at: float, gpus: int, hours: float, *, tenant: str = "all", priority: int = 500) -> TraceJob:
    """`at`: hours after the beginning."""
    return TraceJob(id, f"j{id}", at * HOUR, gpus, hours * HOUR, tenant=tenant, priority=priority)


def ran(run: Run) -> dict[int, tuple[float, float]]:
    """Job -> hours of its first start and of its end."""
    return {result.job.id: (result.first_started_at / HOUR, result.ended_at / HOUR) for result in run.results}


def under(policy: str, jobs: Sequence[TraceJob], nodes: int = 1, **settings: object) -> Run:
    made = Policy(name=policy, **settings)  # type: ignore[arg-type]
    if policy == "srtf":
        return replay_srtf(with_predictions(jobs, "oracle", 0), Cluster(nodes, 8), made, charge_seconds=36.0)
    return replay(with_predictions(jobs, "oracle", 0), Cluster(nodes, 8), made, charge_seconds=36.0)


BLOCKED = [asked(1, 0, 4, 10), asked(2, 1, 8, 1), asked(3, 2, 4, 1)]


def test_fifo_head_blocks_jobs_that_would_fit() -> None:
    assert ran(under("fifo", BLOCKED)) == {1: (0, 10), 2: (10, 11), 3: (11, 12)}


@pytest.mark.parametrize("policy", ["fair", "shortest", "srtf"])
def test_times_before_0_are_times_like_others(policy: str) -> None:
    """Such as those of a trace whose times count from its middle, or of dates before 1970."""
    early = [replace(job, submitted_at=job.submitted_at - 100 * HOUR) for job in BLOCKED]
    as_usual = {id: (start - 100, end - 100) for id, (start, end) in ran(under(policy, BLOCKED)).items()}
    assert ran(under(policy, early)) == as_usual


def test_under_shortest_small_jobs_pass_freely() -> None:
    assert ran(under("shortest", BLOCKED))[3] == (2, 3)


def test_shortest_starts_the_least_gpu_time_first() -> None:
    jobs = [asked(1, 0, 8, 10), asked(2, 1, 8, 3), asked(3, 2, 8, 1), asked(4, 3, 4, 5)]
    assert ran(under("shortest", jobs)) == {1: (0, 10), 3: (10, 11), 4: (11, 16), 2: (16, 19)}


def stream(days: int) -> list[TraceJob]:
    """One large job, and two small ones each hour that together always leave too little room for it."""
    small = [asked(100 + hour, hour, 4, 1.5) for hour in range(24 * days)]
    return sorted([asked(1, 0.5, 8, 2), *small], key=lambda job: job.submitted_at)


def test_a_starving_job_gets_its_turn_under_shortest() -> None:
    """A12: without a promise the stream passes the large job to the end."""
    assert ran(under("overtaking", stream(4)))[1][0] > 95
    # Four GPUs are held by a job of one hour's age: (4 + 8 x 2) / 8 hours of work and a drain of one. Then the devices
    # stay free until what runs has ended, for 1.5 hours at most.
    assert ran(under("shortest", stream(4)))[1][0] <= 0.5 + 3.5 + 1.5


def test_starving_depends_on_the_load_only() -> None:
    """A12: jobs a hundred times as long wait a hundred times as long; nothing else changes."""
    slow = [replace(job, submitted_at=100 * job.submitted_at, run_seconds=100 * job.run_seconds) for job in stream(4)]
    plain = ran(under("shortest", stream(4), aging_points_per_minute=0.0))
    slowed = ran(under("shortest", slow, aging_points_per_minute=0.0))
    assert slowed == pytest.approx({id: pytest.approx((100 * start, 100 * end)) for id, (start, end) in plain.items()})


def test_srtf_preempts_for_less_that_remains_and_charges_for_it() -> None:
    run = under("srtf", [asked(1, 0, 8, 10), asked(2, 1, 8, 2)])
    first, second = run.results
    assert (second.first_started_at, second.ended_at) == (1 * HOUR, 3 * HOUR)
    assert first.preemptions == 1
    # Nine hours and 36 seconds were left when it was preempted.
    assert first.ended_at == pytest.approx(12 * HOUR + 36)
    assert first.wait_seconds == pytest.approx(2 * HOUR)


def test_srtf_does_not_preempt_nearly_finished_jobs() -> None:
    assert ran(under("srtf", [asked(1, 0, 8, 3), asked(2, 2, 8, 2)])) == {1: (0, 3), 2: (3, 5)}


def test_a_higher_band_preempts_in_the_live_policies_and_the_victim_goes_on_later() -> None:
    run = under("fair", [asked(1, 0, 8, 4, priority=100), asked(2, 1, 8, 1, priority=1500)])
    victim, urgent = run.results
    # The policy's delay before preemption has to pass first.
    assert 1 * HOUR <= urgent.first_started_at <= 1 * HOUR + 120
    assert victim.preemptions == 1
    assert victim.ended_at == pytest.approx(5 * HOUR + 36)


def test_quotas_and_weights_of_tenants_hold() -> None:
    jobs = [asked(id, 0, 1, 1, tenant="ab"[id % 2]) for id in range(1, 33)]
    run = replay(jobs, Cluster(1, 8, quotas={"a": 2}), Policy())
    assert max(ends for id, (_, ends) in ran(run).items() if id % 2) == pytest.approx(3)
    assert max(ends for id, (_, ends) in ran(run).items() if id % 2 == 0) == pytest.approx(8)
    heavy = replay(jobs, Cluster(1, 8, weights={"b": 3.0}), Policy())
    at_once = [id for id, (starts, _) in ran(heavy).items() if starts == 0]
    assert sum(id % 2 for id in at_once) == 6


def test_past_use_counts_under_fair() -> None:
    """A17: who had the cluster for itself comes second afterwards."""
    alone = [asked(id, 0, 8, 5, tenant="a") for id in (1, 2)]
    both = [asked(10 + n, 9, 1, 1, tenant="ab"[n % 2]) for n in range(16)]
    run = under("fair", [*alone, *both], usage_half_life_seconds=10 * HOUR)
    first = [
        result.job.tenant for result in run.results if result.job.gpus == 1 and result.first_started_at == 10 * HOUR
    ]
    assert len(first) == 8 and first.count("b") >= 6


def test_a_gang_takes_whole_nodes() -> None:
    jobs = [asked(1, 0, 1, 5), asked(2, 1, 16, 1), asked(3, 1.5, 8, 1)]
    assert ran(under("shortest", jobs, nodes=3))[2] == (1, 2)
    assert ran(under("shortest", jobs, nodes=2))[2] == (5, 6)


def test_jobs_that_can_never_start_are_separated() -> None:
    jobs = [asked(1, 0, 8, 1), asked(2, 0, 17, 1), asked(3, 0, 16, 1), asked(4, 0, 3, 1, tenant="small")]
    never_fit = never_fitting(Cluster(2, 8, quotas={"small": 2}), jobs, Policy())
    assert [job.id for job in never_fit] == [2, 4]


def test_the_same_jobs_give_the_same_run() -> None:
    jobs = [asked(id, id * 0.37 % 7, 1 + id % 8, 0.1 + id % 5) for id in range(1, 120)]
    jobs.sort(key=lambda job: (job.submitted_at, job.id))
    assert ran(under("shortest", jobs)) == ran(under("shortest", jobs))


def test_progress_is_reported_and_the_timeline_ends_empty() -> None:
    reported: list[int] = []
    jobs = [asked(id, id * 0.5, 4, 1) for id in range(1, 101)]
    run = replay(jobs, Cluster(1, 8), Policy(), progress=reported.append)
    assert reported == sorted(reported) and reported
    assert run.timeline[-1][1:] == (0, 0)


def test_figures_count_waiting_completion_and_use() -> None:
    jobs = [asked(1, 0, 8, 2), asked(2, 0, 8, 2), asked(3, 1, 4, 4)]
    result = figures([(under("fifo", jobs), 8)])
    assert result.queue_hours == pytest.approx({"mean": 5 / 3, "p50": 2.0, "p99": 3.0, "max": 3.0})
    assert result.jct_hours["max"] == 7.0
    assert result.utilisation_percent == pytest.approx(100 * 48 / 64)
    assert (result.preemptions_per_job, result.jobs) == (0.0, 3)
