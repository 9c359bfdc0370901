"""Every metric by its name: type, labels and meaning. docs/metrics.md is written from this."""

from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily


@dataclass(frozen=True)
class Family:
    """`name` as it is scraped: that of a counter ends in _total. `meaning` has backticks around words, which Prometheus
    is not told. Series are bounded by closed catalogues (states, reasons, rules, phases, tasks), tenants, and GPUs."""

    name: str
    type: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    meaning: str


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "gpu_scheduler_jobs_total", "gauge", ("state",),
            "jobs that exist, by state; every state has a series. A gauge in spite of its name: jobs leave a state",
        ),
        Family(
            "gpu_scheduler_queue_size", "gauge", ("reason",),
            "waiting jobs (pending or held) by reason code; only codes that occur",
        ),
        Family(
            "gpu_scheduler_gpu_utilization", "gauge", ("node", "gpu"),
            "percent, as NVML says; only readings younger than 30 s",
        ),
        Family(
            "gpu_scheduler_gpu_temperature_celsius", "gauge", ("node", "gpu"),
            "degrees Celsius; only readings younger than 30 s",
        ),
        Family(
            "gpu_scheduler_gpu_seconds_total", "counter", ("state",),
            "time of GPUs as `busy`, `held_idle` (held by a job, and read as 0 % for a minute), `free` or `unavailable`"
            " (not held, and not offered); the four add up to the number of GPUs times the time since counting began",
        ),
        Family(
            "gpu_scheduler_agents", "gauge", ("state",),
            "nodes by state of their agent (`joined`, `online`, `lost`); only states that occur",
        ),
        Family(
            "gpu_scheduler_tenant_gpus", "gauge", ("tenant", "kind"),
            "GPUs of a tenant: `used` (a shared device by its part), `guaranteed`, `limit` (absent without a limit)",
        ),
        Family(
            "gpu_scheduler_tenant_budget_gpu_hours", "gauge", ("tenant", "kind"),
            "GPU-hours of tenants with a budget: `used` in the period, and the bounds `soft` and `hard`",
        ),
        Family("gpu_scheduler_attempts_ended_total", "counter", ("reason",), "attempts by how they ended"),
        Family(
            "gpu_scheduler_preemptions_total", "counter", ("rule",),
            "jobs that were told to stop for others: `priority` (of a lower band), `reclaim` (their tenant borrowed"
            " what another's guarantee covers), `online` (batch borrowed of the online part), `heat` (their GPU stays"
            " hot)",
        ),
        Family(
            "gpu_scheduler_largest_startable_gang", "gauge", (),
            "GPUs of the largest gang (of any model, over nodes where `enable_gang_scheduling` allows it, one CPU core"
            " in all) that could start now if nobody else waited",
        ),
        Family(
            "gpu_scheduler_redis_heard", "gauge", (),
            "1 while changes told by Redis arrive at this web process, else 0; only with `GPUSCHED_REDIS_URL`",
        ),
        Family(
            "gpu_scheduler_agents_unheard_seconds", "gauge", (),
            "how long the message of an agent has waited that this web process has not yet written; beyond 10 s it is"
            " not ready",
        ),
        Family(
            "gpu_scheduler_housekeeping_age_seconds", "gauge", ("task",),
            "seconds since a task of the housekeeping worker last ended well: `mend`, `roll_up`,"
            " `forecast` and `drop_old_jobs` run each minute, `drop_old` each hour; only tasks that have",
        ),
        Family(
            "gpu_scheduler_cycle_leader", "gauge", (),
            "1 if a cycle ended within the last 15 s (or five `GPUSCHED_TICK_SECONDS`), else 0",
        ),
        Family(
            "gpu_scheduler_scheduling_latency_seconds", "histogram", ("phase",),
            "time of each phase of a cycle: `sweep`, `snapshot`, `plan`, `commit`",
        ),
        Family(
            "gpu_scheduler_estimate_coverage_percent", "gauge", ("bound",),
            "of the latest 500 jobs that waited, how many percent started at or before this bound of their first "
            "estimate: `p50`, `p90`; none until 20 have started",
        ),
        Family(
            "gpu_scheduler_submit_to_start_seconds", "histogram", (),
            "from the submit to the first process of a job's first attempt",
        ),
    )
}  # fmt: skip


def gauge(name: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, _help(name, "gauge"), labels=FAMILIES[name].labels)


def counter(name: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, _help(name, "counter"), labels=FAMILIES[name].labels)


def histogram(name: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, _help(name, "histogram"), labels=FAMILIES[name].labels)


def _help(name: str, kind: str) -> str:
    """KeyError: no such metric; ValueError: it is of another type."""
    if FAMILIES[name].type != kind:
        raise ValueError(f"{name} is no {kind}")
    return FAMILIES[name].meaning.replace("`", "")
