"""Splits the GPUs in service between online and batch jobs, and says how much batch may borrow of the online part."""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import NamedTuple

from scheduling.engine.limits.quotas import Dimension, Limits
from scheduling.engine.model import Job, Node, Policy, RunningJob, Snapshot

ONLINE_GPUS = Dimension("GPUs of the cluster's online part", 0)
BATCH_GPUS = Dimension("GPUs of the cluster's batch part", 0)


class Split(NamedTuple):
    """GPUs for each class; together all that are in service."""

    batch: int
    online: int


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """`total` divided by weights in whole numbers that add up to it, by the largest remainder (Hamilton's method).

    Equal remainders: the first comes first. Raises ValueError unless weights are >= 0 with a positive sum.
    """
    whole = sum(weights)
    if whole <= 0 or min(weights) < 0:
        raise ValueError("weights must not be negative, and not all be 0")
    found = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda number: -(total * weights[number] % whole))
    for number in by_remainder[: total - sum(found)]:
        found[number] += 1
    return found


def parts_of(gpus: int, policy: Policy) -> Split:
    online, batch = shares(gpus, (policy.online_percent, 100 - policy.online_percent))
    return Split(batch, online)


def gpus_in_service(nodes: Iterable[Node]) -> int:
    return sum(device.is_healthy for node in nodes if node.is_open and node.is_online for device in node.devices)


def in_use(running: Iterable[RunningJob], *, online: bool) -> int:
    return sum(one.request.gpu_count for one in running if one.is_online is online)


def limits_now(
    snapshot: Snapshot, policy: Policy, now: float, could_start: Callable[[Job], bool]
) -> tuple[Limits, Limits] | None:
    """The limits of batch and of online jobs in this cycle; None: the cluster is not split.

    `could_start`: whether the nodes in service could take a job at all; what nothing can start, nobody holds back for.
    """
    if not policy.online_percent:
        return None
    parts = parts_of(gpus_in_service(snapshot.nodes), policy)
    return caps(parts, online_needs(snapshot, parts, now, could_start))


def online_needs(snapshot: Snapshot, parts: Split, now: float, could_start: Callable[[Job], bool]) -> int:
    """GPUs that online jobs hold, and those that others wait for and may have; counted until nothing is lent."""
    needs = in_use(snapshot.running, online=True)
    left = _left(snapshot)
    for job in snapshot.jobs:
        if 2 * needs >= parts.online:
            break
        wanted = job.request.gpu_count if job.is_online and job.eligible_at <= now else 0
        if 0 < wanted <= min(parts.online, left[job.tenant_id]) and could_start(job):
            needs += wanted
            left[job.tenant_id] -= wanted
    return needs


def caps(parts: Split, online_needs: int) -> tuple[Limits, Limits]:
    """The limits of batch and of online jobs in this cycle. `online_needs`: GPUs that online jobs use or wait for.

    Online jobs have their own part. Batch jobs have theirs, and while online needs under half of its part, whatever
    online does not need; from half on nothing more is lent, and what was lent is to come back.
    """
    lent = max(parts.online - online_needs, 0) if 2 * online_needs < parts.online else 0
    return ((BATCH_GPUS, parts.batch + lent),), ((ONLINE_GPUS, parts.online),)


def borrowing_gpus(parts: Split, batch_gpus: int) -> int:
    """How many GPUs of the online part batch jobs hold, which hold so many in all."""
    return max(batch_gpus - parts.batch, 0)


def _left(snapshot: Snapshot) -> dict[int, float]:
    """GPUs that each tenant may start yet."""
    left = {tenant.id: inf if tenant.max_gpus is None else float(tenant.max_gpus) for tenant in snapshot.tenants}
    for running in snapshot.running:
        left[running.tenant_id] -= running.request.gpu_count
    return left
