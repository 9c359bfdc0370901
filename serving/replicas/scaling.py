"""Decide how many replicas an endpoint gets: up at once, down when idle. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Replicas are started for this part of their capacity, so that a burst finds some room.
TARGET_UTILISATION = 0.7
# An idle replica gives its GPUs to waiting jobs after this time, even with a longer idle_seconds.
YIELD_SECONDS = 10.0
MAX_PAUSE_SECONDS = 300.0
# Weight of the latest measurement in the moving average of seconds per cost.
_SMOOTHING = 0.1


def smoothed(previous: float | None, seconds_per_cost: float) -> float:
    """Return the moving average of seconds per cost after another measurement."""
    return seconds_per_cost if previous is None else previous + _SMOOTHING * (seconds_per_cost - previous)


@dataclass(frozen=True)
class LiveReplica:
    """`idle_seconds`: since its latest request, or since it became warm; None: it is not warm, or busy.
    `waiting_seconds`: since its job waits to start, and the endpoint has had no request; None: it does not wait."""

    job_id: int
    idle_seconds: float | None
    waiting_seconds: float | None = None


@dataclass(frozen=True)
class Demand:
    """An endpoint now. `failures`: replicas that ended before they were warm, one after the other, the latest
    `failed_seconds` ago. `are_gpus_needed`: jobs wait for GPUs. `is_prewarmed`: pre-warming decides how long the last
    replica stays; `is_kept`: it wants one now."""

    queued_cost: float
    running: int
    seconds_per_cost: float | None
    replicas: Sequence[LiveReplica]
    min_replicas: int
    max_replicas: int
    idle_seconds: float
    is_draining: bool = False
    is_removed: bool = False
    are_gpus_needed: bool = False
    failures: int = 0
    failed_seconds: float = math.inf
    is_prewarmed: bool = False
    is_kept: bool = False


@dataclass(frozen=True)
class Decision:
    """Replicas to start, the jobs of idle ones to stop, and those to drain: they get no further request, and stop once
    they have none."""

    start: int
    stop: tuple[int, ...]
    drain: tuple[int, ...] = ()


def wanted_replicas(demand: Demand) -> int:
    """Return how many replicas the present load needs: seconds of queued work per second of time, divided by the target
    utilisation. One for any request while no speed was measured."""
    if demand.is_removed:
        return 0
    load = 0
    if demand.queued_cost > 0 or demand.running:
        load = math.ceil(demand.queued_cost * (demand.seconds_per_cost or 0.0) / TARGET_UTILISATION) or 1
    is_kept = demand.is_prewarmed and demand.is_kept and not demand.are_gpus_needed
    least = max(demand.min_replicas, int(is_kept))
    return min(max(load, 0 if demand.is_draining else least), demand.max_replicas)


def decide(demand: Demand) -> Decision:
    """Return what to start and stop now. Of those beyond the need, replicas that wait to start are stopped first. One
    that is busy or becomes warm is stopped only with its endpoint, or drained if there are more than `max_replicas`,
    which was lowered."""
    wanted, live = wanted_replicas(demand), len(demand.replicas)
    if demand.is_removed or (demand.is_draining and wanted == 0):
        return Decision(0, tuple(replica.job_id for replica in demand.replicas))
    if wanted > live:
        return Decision(0 if _is_paused(demand) else wanted - live, ())
    if live > demand.max_replicas:
        return Decision(0, (), _idle_first(demand.replicas)[: live - demand.max_replicas])
    after = 0.0 if demand.is_draining else demand.idle_seconds
    waiting = [(replica.waiting_seconds, replica.job_id) for replica in demand.replicas if replica.waiting_seconds]
    if unneeded := [job_id for seconds, job_id in sorted(waiting) if seconds >= after][: live - wanted]:
        return Decision(0, tuple(unneeded))
    if demand.are_gpus_needed or (demand.is_prewarmed and wanted == 0):
        after = min(after, YIELD_SECONDS)
    idle = [(replica.idle_seconds, replica.job_id) for replica in demand.replicas if replica.idle_seconds is not None]
    longest_first = sorted(idle, reverse=True)
    stop = tuple(job_id for seconds, job_id in longest_first[: live - wanted] if seconds >= after)
    return Decision(0, stop)


def _idle_first(replicas: Sequence[LiveReplica]) -> tuple[int, ...]:
    """Return the jobs of the replicas: the longest idle first, then the newest, which may not be warm yet."""

    def order(replica: LiveReplica) -> tuple[bool, float, int]:
        return replica.idle_seconds is None, -(replica.idle_seconds or 0.0), -replica.job_id

    return tuple(replica.job_id for replica in sorted(replicas, key=order))


def _is_paused(demand: Demand) -> bool:
    """Return whether to wait, because replicas keep failing before they are warm: 2, 4, 8 … seconds."""
    pause_seconds = min(2.0 ** min(demand.failures, 100), MAX_PAUSE_SECONDS)  # of many replicas, the power is no float
    return demand.failures > 0 and demand.failed_seconds < pause_seconds
