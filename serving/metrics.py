"""The metrics of endpoints and token buckets. Endpoints that are not removed and tenants bound the number of series."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import Metric

from gpusched.lib import histograms
from gpusched.lib.db.sql import query
from scheduling.status.metric_families import counter, gauge, histogram
from serving import counts
from serving.endpoints import activity
from serving.former import Flush
from serving.models import OPEN_STATES, RequestState
from tenants.buckets import REFUSALS
from tenants.models import BucketUse

Counted = Mapping[str, tuple[Sequence[int], float]]
_ENDED = tuple(state.value for state in RequestState if state not in OPEN_STATES)
_NOTHING = ([0] * (len(histograms.BOUNDS) + 1), 0.0)


def collect(visible: Collection[str] | None) -> Iterator[Metric]:
    """Yield the metrics of endpoints and buckets of these tenants, by name; None: of all. Not of archived ones."""
    loads = [row for row in activity.loads().values() if visible is None or row["tenant"] in visible]
    loads = [row for row in loads if not row["is_archived"]]
    yield from _present(loads)
    yield from _counted(loads)
    yield _refusals(visible)


def _present(loads: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    queued, waits = gauge("gpu_scheduler_endpoint_queued"), gauge("gpu_scheduler_endpoint_oldest_wait_seconds")
    replicas, problem = gauge("gpu_scheduler_endpoint_replicas"), gauge("gpu_scheduler_endpoint_problem")
    starts = gauge("gpu_scheduler_endpoint_cold_start_seconds")
    for row in loads:
        labels = [row["tenant"], row["name"]]
        queued.add_metric(labels, row["queued"])
        waits.add_metric(labels, row["oldest_wait_seconds"] or 0.0)
        replicas.add_metric([*labels, "warm"], row["warm"])
        replicas.add_metric([*labels, "cold"], row["replicas"] - row["warm"])
        problem.add_metric(labels, 1 if row["problem"] else 0)
        if row["cold_start_seconds"] is not None:
            starts.add_metric(labels, row["cold_start_seconds"])
    yield from (queued, waits, replicas, problem, starts)
    yield from _prewarming(loads)


def _prewarming(loads: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    arrivals, avoided = (
        gauge("gpu_scheduler_endpoint_arrivals"),
        gauge("gpu_scheduler_endpoint_cold_starts_avoided"),
    )
    wasted = gauge("gpu_scheduler_endpoint_wasted_gpu_hours")
    for row in loads:
        labels = [row["tenant"], row["name"]]
        arrivals.add_metric([*labels, "hit"], row["prewarming_hits"])
        arrivals.add_metric([*labels, "miss"], row["prewarming_misses"])
        avoided.add_metric(labels, row["cold_starts_avoided"])
        wasted.add_metric(labels, row["gpu_hours_wasted"])
    yield from (arrivals, avoided, wasted)


def _counted(loads: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    requests, batches = (
        counter("gpu_scheduler_endpoint_requests_total"),
        counter("gpu_scheduler_endpoint_batches_total"),
    )
    latency, size = histogram(counts.LATENCY), histogram(counts.BATCH_SIZE)
    ends, formed = counts.read(counts.LATENCY), counts.read(counts.BATCH_SIZE)
    for row in loads:
        labels = [row["tenant"], row["name"]]
        by_state, by_reason = ends.get(row["id"], {}), formed.get(row["id"], {})
        for state in _ENDED:
            requests.add_metric([*labels, state], sum(by_state.get(state, _NOTHING)[0]))
        for reason in Flush:
            batches.add_metric([*labels, reason], sum(by_reason.get(reason, _NOTHING)[0]))
        completed = {"completed": by_state[RequestState.COMPLETED]} if RequestState.COMPLETED in by_state else {}
        for family, counted in ((latency, completed), (size, by_reason)):
            buckets, total = _cumulated(counted)
            family.add_metric(labels, buckets, total)
    yield from (requests, latency, batches, size)


def _cumulated(counted: Counted) -> tuple[list[tuple[str, float]], float]:
    """Return the buckets of Prometheus and the sum of several histograms."""
    sums = [sum(column) for column in zip(_NOTHING[0], *(numbers for numbers, _ in counted.values()), strict=True)]
    bounds = [*map(str, histograms.BOUNDS), "+Inf"]
    buckets = [(bound, float(sum(sums[: place + 1]))) for place, bound in enumerate(bounds)]
    return buckets, sum(total for _, total in counted.values())


def _refusals(visible: Collection[str] | None) -> Metric:
    refusals, refused = counter(REFUSALS), histograms.read(REFUSALS)
    for row in query("SELECT id, name FROM tenants_all ORDER BY name"):
        if visible is not None and row["name"] not in visible:
            continue
        for limits in BucketUse:
            if (counted := refused.get(f"{row['id']}:{limits}")) is not None:
                refusals.add_metric([row["name"], limits], sum(counted[0]))
    return refusals
