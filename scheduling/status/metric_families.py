"""The metrics: name, type, labels and meaning. docs/metrics.md is generated from them."""

from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily


@dataclass(frozen=True)
class Family:
    """A metric. `name` as scraped: a counter's ends in _total. `meaning` has backticks, which Prometheus does not get.
    Closed catalogues (states, reasons, rules, phases, tasks), tenants and GPUs bound the number of series."""

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
            "percent, from NVML; only readings younger than 30 s",
        ),
        Family(
            "gpu_scheduler_gpu_temperature_celsius", "gauge", ("node", "gpu"),
            "degrees Celsius; only readings younger than 30 s",
        ),
        Family(
            "gpu_scheduler_gpu_seconds_total", "counter", ("state",),
            "time of GPUs as `busy`, `held_idle` (held by a job, and read as 0 % for a minute), `free` or `unavailable`"
            " (not held, and out of service); together the number of GPUs times the time since counting began",
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
        Family("gpu_scheduler_attempts_ended_total", "counter", ("reason",), "ended attempts by reason"),
        Family(
            "gpu_scheduler_preemptions_total", "counter", ("rule",),
            "preempted jobs: `priority` (of a lower band), `reclaim` (their tenant borrowed"
            " what another's guarantee covers), `online` (batch jobs on online capacity), `heat` (their GPU stays"
            " hot)",
        ),
        Family(
            "gpu_scheduler_largest_startable_gang", "gauge", (),
            "GPUs of the largest gang (of any model, over nodes where `enable_gang_scheduling` allows it, one CPU core"
            " in all) that could start now outside reservations, without other pending jobs",
        ),
        Family(
            "gpu_scheduler_agents_unheard_seconds", "gauge", (),
            "how long the oldest agent's message has waited to be written by this web process; beyond 10 s it is"
            " not ready",
        ),
        Family(
            "gpu_scheduler_housekeeping_age_seconds", "gauge", ("task",),
            "seconds since a task of the housekeeping worker last succeeded: `mend`, `roll_up`,"
            " `forecast` and `drop_old_jobs` run each minute, `drop_old` each hour; only tasks that have",
        ),
        Family(
            "gpu_scheduler_cycle_leader", "gauge", (),
            "1 if a cycle ended within the last 15 s (or five `GPUSCHED_TICK_SECONDS`), else 0",
        ),
        Family(
            "gpu_scheduler_cycle_term", "gauge", (),
            "number of the term of the worker that runs cycles: each worker process that takes over counts it up",
        ),
        Family(
            "gpu_scheduler_scheduling_latency_seconds", "histogram", ("phase",),
            "time of each phase of a cycle: `sweep`, `snapshot`, `plan`, `commit`",
        ),
        Family(
            "gpu_scheduler_estimate_coverage_percent", "gauge", ("bound",),
            "percent of the latest 500 started jobs that started at or before this bound of their first "
            "estimate: `p50`, `p90`; none until 20 have started",
        ),
        Family(
            "gpu_scheduler_submit_to_start_seconds", "histogram", (),
            "from the submit to the first process of a job's first attempt",
        ),
        Family(
            "gpu_scheduler_endpoint_queued", "gauge", ("tenant", "endpoint"), "inference requests that wait",
        ),
        Family(
            "gpu_scheduler_endpoint_oldest_wait_seconds", "gauge", ("tenant", "endpoint"),
            "how long the oldest of them has waited; 0 if none waits",
        ),
        Family(
            "gpu_scheduler_endpoint_replicas", "gauge", ("tenant", "endpoint", "state"),
            "jobs that serve an endpoint: `warm` (they accept requests) or `cold`",
        ),
        Family(
            "gpu_scheduler_endpoint_problem", "gauge", ("tenant", "endpoint"),
            "1 if the endpoint needs a replica that is refused, as by a quota, else 0",
        ),
        Family(
            "gpu_scheduler_endpoint_arrivals", "gauge", ("tenant", "endpoint", "outcome"),
            "requests after a pause in the last six weeks: hit (a replica was warm) or miss (a cold start)",
        ),
        Family(
            "gpu_scheduler_endpoint_cold_starts_avoided", "gauge", ("tenant", "endpoint"),
            "hits of the last six weeks after more than idle_seconds: pre-warming kept or started the replica",
        ),
        Family(
            "gpu_scheduler_endpoint_wasted_gpu_hours", "gauge", ("tenant", "endpoint"),
            "GPU-hours of the last six weeks in which pre-warming kept a replica without requests",
        ),
        Family(
            "gpu_scheduler_endpoint_cold_start_seconds", "gauge", ("tenant", "endpoint"),
            "from the submit of a replica until it is warm: the median of 7 days; none before the first",
        ),
        Family(
            "gpu_scheduler_endpoint_requests_total", "counter", ("tenant", "endpoint", "state"),
            "ended requests: `completed`, `failed`, `cancelled`, `expired` or `refused`",
        ),
        Family(
            "gpu_scheduler_endpoint_latency_seconds", "histogram", ("tenant", "endpoint"),
            "from the submit of a completed request to its result",
        ),
        Family(
            "gpu_scheduler_endpoint_batches_total", "counter", ("tenant", "endpoint", "reason"),
            "batches by why they were flushed: `size`, `memory`, `wait`, `idle` or `drain`",
        ),
        Family(
            "gpu_scheduler_endpoint_batch_size", "histogram", ("tenant", "endpoint"), "requests of a batch",
        ),
        Family(
            "gpu_scheduler_bucket_refusals_total", "counter", ("tenant", "limits"),
            "submits that a token bucket refused, of `tasks` or `jobs`; only tenants with refusals",
        ),
        Family(
            "gpu_scheduler_notifications_pending", "gauge", (),
            "deliveries of notifications that wait, also for quiet hours and digests",
        ),
        Family(
            "gpu_scheduler_notifications_oldest_seconds", "gauge", (),
            "age of the oldest of them that was tried, and so fails or is being sent; 0 if there is none",
        ),
        Family(
            "gpu_scheduler_notifications_sender_age_seconds", "gauge", (),
            "seconds since a sender of notifications last worked (it does so every 5 s); none before the first time",
        ),
        Family(
            "gpu_scheduler_notification_attempts_total", "counter", ("result",),
            "deliveries tried: `sent`, `failed` (and repeated later) or `given_up`",
        ),
        Family(
            "gpu_scheduler_prediction_coverage_percent", "gauge", ("tenant",),
            "ends of the last 7 days whose run time lay from the predicted p10 to p90; the aim is 80",
        ),
        Family(
            "gpu_scheduler_prediction_rank_correlation", "gauge", ("tenant",),
            "Spearman's correlation of predicted and real run times in the last 7 days",
        ),
        Family(
            "gpu_scheduler_prediction_pinball_loss", "gauge", ("tenant", "of"),
            "loss of the median of log(run time) in the last 7 days, of the `prediction` and of the `user_median`",
        ),
        Family(
            "gpu_scheduler_prediction_used", "gauge", ("tenant",),
            "1 if the scheduler uses the predictions of the tenant, else 0",
        ),
        Family(
            "gpu_scheduler_streams", "gauge", (),
            "open streams into jobs over the agents that are connected to this web process",
        ),
        Family(
            "gpu_scheduler_reservations", "gauge", ("state",), "reservations, hard and soft: `planned` or `active`",
        ),
        Family(
            "gpu_scheduler_reserved_gpus", "gauge", ("use",),
            "GPUs that hard reservations have now: `used` by jobs in them, or `idle`, which is charged to their owners",
        ),
        Family(
            "gpu_scheduler_stream_bytes_total", "counter", ("direction",), "bytes of streams: `to_job` or `from_job`",
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
    """Return the help text. Raise KeyError for an unknown metric, ValueError for one of another type."""
    if FAMILIES[name].type != kind:
        raise ValueError(f"{name} is not a {kind}")
    return FAMILIES[name].meaning.replace("`", "")
