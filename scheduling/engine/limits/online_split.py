"""Splits the GPUs in service between online and batch jobs, and limits how much online capacity batch may borrow."""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from operator import attrgetter
from typing import NamedTuple

from scheduling.engine.limits.accounts import Accounts
from scheduling.engine.limits.quotas import Dimension, Limits, Use
from scheduling.engine.model import Job, Node, Policy, RunningJob, Snapshot

ONLINE_GPUS = Dimension("GPUs of the cluster's online part", 0)
BATCH_GPUS = Dimension("GPUs of the cluster's batch part", 0)


class Split(NamedTuple):
    """GPUs for each class; together all that are in service."""

    batch: int
    online: int


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Return `total` divided by weights in whole numbers that add up to it, by the largest remainder (Hamilton's
    method).

    Equal remainders: the first comes first. Raises ValueError unless weights are >= 0 with a positive sum.
    """
    total_weight = sum(weights)
    if total_weight <= 0 or min(weights) < 0:
        raise ValueError("weights must not be negative, and not all be 0")
    parts = [total * weight // total_weight for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda number: -(total * weights[number] % total_weight))
    for number in by_remainder[: total - sum(parts)]:
        parts[number] += 1
    return parts


def split_of(gpus: int, policy: Policy) -> Split:
    online, batch = shares(gpus, (policy.online_percent, 100 - policy.online_percent))
    return Split(batch, online)


def gpus_in_service(nodes: Iterable[Node]) -> int:
    return sum(device.is_healthy for node in nodes if node.is_open and node.is_online for device in node.devices)


def in_use(running: Iterable[RunningJob], *, online: bool) -> int:
    return sum(job.request.gpu_count for job in running if job.is_online is online)


def limits_now(
    snapshot: Snapshot,
    policy: Policy,
    now: float,
    could_start: Callable[[Job], bool],
    use: Callable[[Job | RunningJob], Use],
) -> tuple[Limits, Limits] | None:
    """Return the limits of batch and of online jobs in this cycle; None: the cluster is not split.

    `could_start`: returns whether the nodes in service could hold a job at all; nothing is kept back for others.
    `use`: returns what a running job takes of its tenant's limits, or a waiting one takes at least.
    """
    if not policy.online_percent:
        return None
    parts = split_of(gpus_in_service(snapshot.nodes), policy)
    return caps(parts, online_needs(snapshot, parts, now, could_start, use))


def online_needs(
    snapshot: Snapshot,
    parts: Split,
    now: float,
    could_start: Callable[[Job], bool],
    use: Callable[[Job | RunningJob], Use],
) -> int:
    """Return the GPUs that online jobs hold, and those that waiting ones may have; the count stops when nothing is
    lent. A job that its tenant's limits or its booking stop now may have none."""
    needs = in_use(snapshot.running, online=True)
    active = {booking.id for booking in snapshot.bookings if booking.starts_at <= now < booking.ends_at}
    waiting = [
        job
        for job in snapshot.jobs
        if job.is_online
        and 0 < job.request.gpu_count <= parts.online
        and job.eligible_at <= now
        and (job.booking_id is None or job.booking_id in active)
    ]
    if not waiting:
        return needs
    accounts = Accounts(snapshot.tenants)
    for running in snapshot.running:
        accounts.add_running(running, use(running), (inf,))
    uses: dict[int, Use] = {}  # by identity of the request, which jobs share
    for job in sorted(waiting, key=attrgetter("id")):
        if 2 * needs >= parts.online:
            break
        wanted = uses.get(id(job.request)) or uses.setdefault(id(job.request), use(job))
        if accounts.block(job, wanted, inf) is None and could_start(job):
            needs += job.request.gpu_count
            accounts.add_started(job, wanted, inf, inf)
    return needs


def caps(parts: Split, online_needs: int) -> tuple[Limits, Limits]:
    """Return the limits of batch and of online jobs in this cycle. `online_needs`: GPUs that online jobs use or wait
    for.

    Online jobs have the online capacity. Batch jobs have theirs, and while online needs under half of its capacity, all
    that online does not need; from half on nothing more is lent, and lent GPUs are reclaimed.
    """
    lent = max(parts.online - online_needs, 0) if 2 * online_needs < parts.online else 0
    return ((BATCH_GPUS, parts.batch + lent),), ((ONLINE_GPUS, parts.online),)


def borrowing_gpus(parts: Split, batch_gpus: int) -> int:
    """Return how many GPUs of the online capacity batch jobs borrow if they hold this many in all."""
    return max(batch_gpus - parts.batch, 0)
