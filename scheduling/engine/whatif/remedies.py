"""Lists the changes that could cure a reason, those of the job's owner first; callers try whether they do."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from math import ceil, floor
from typing import NamedTuple

from scheduling.engine.affinity import MIN_GPUS, Toleration, untolerated
from scheduling.engine.board.board import Board
from scheduling.engine.board.shapes import Shape
from scheduling.engine.explain.inventory import fits, inventory_of, matching
from scheduling.engine.limits.online_split import BATCH_GPUS, ONLINE_GPUS
from scheduling.engine.limits.quotas import EACH_MODEL, is_of_models
from scheduling.engine.model import Device, Job, Policy, Preemption, Reason, Request, Snapshot
from scheduling.engine.placement.placement import place
from scheduling.engine.whatif.changes import Change, scaled

# A smaller number of GPUs is searched from above, in at most this many tries.
_MAX_COUNTS = 64
_OF_THE_CLUSTER = frozenset(
    {"capacity", "fragmented", "cpu_memory", "topology", "maintenance", "health", "constraint", "taint"}
)


class _Case(NamedTuple):
    """A waiting job with its reason. `board`: the cluster after the cycle; `preemption`: of this plan, for the job."""

    snapshot: Snapshot
    policy: Policy
    now: float
    board: Board
    job: Job
    reason: Reason
    preemption: Preemption | None

    @property
    def request(self) -> Request:
        return self.job.request

    def number(self, name: str) -> float:
        value = self.reason.evidence.get(name)
        return float(value) if isinstance(value, int | float) else 0.0

    def seconds_until(self, name: str) -> float:
        """Return the seconds from now to a time of the evidence, which is rounded down to the second."""
        value = self.reason.evidence.get(name)
        at = datetime.fromisoformat(value).timestamp() if isinstance(value, str) else self.now
        return max(at - self.now, 0.0)

    def fits_now(self, request: Request) -> bool:
        return place(self.board, Shape(request, self.board, self.policy)) is not None


def remedies(
    snapshot: Snapshot,
    policy: Policy,
    now: float,
    board: Board,
    job: Job,
    reason: Reason,
    preemption: Preemption | None = None,
) -> Iterator[Change]:
    """Yield changes for this job and reason, the most helpful first. Some may not help: callers try them."""
    case = _Case(snapshot, policy, now, board, job, reason, preemption)
    yield from BY_CODE[reason.code](case)
    if reason.code in _OF_THE_CLUSTER:
        # Several obstacles may exist at once, so that no change above suffices alone.
        yield from _hot(case)
        yield Change("node_added", 1)


def _release(case: _Case) -> Iterator[Change]:
    yield Change("released")


def _wait(case: _Case) -> Iterator[Change]:
    """Wait until the time that the evidence names; a job that is not eligible yet has a more exact time."""
    eligible_in = case.job.eligible_at - case.now
    yield Change("wait_seconds", ceil(eligible_in if eligible_in > 0 else case.seconds_until("at") + 1))


def _victims(case: _Case) -> Iterator[Change]:
    stopping = [job.job_id for job in case.snapshot.running if job.stopping_for == case.job.id]
    new = case.preemption
    jobs = tuple(sorted({*stopping, *(new.victims if new else ())}))
    if jobs:
        yield Change("victims_ended", len(jobs), jobs=jobs, ranks=new.ranks if new else ())


def _first(case: _Case) -> Iterator[Change]:
    yield from _smaller(case)
    yield Change("comes_first")


def _passing(case: _Case) -> Iterator[Change]:
    """Make the job short enough to end before the promise falls due."""
    seconds = floor(case.seconds_until("at"))
    if seconds >= 1:
        yield Change("max_runtime_seconds", seconds)
    yield Change("comes_first")
    yield from _running(case)


def _before_booking(case: _Case) -> Iterator[Change]:
    """Make the job short enough to end before the booking starts, or wait until that has ended."""
    seconds = floor(case.seconds_until("at") - case.job.grace_seconds)
    if seconds >= 1:
        yield Change("max_runtime_seconds", seconds)
    yield from _smaller(case)
    yield Change("wait_seconds", ceil(case.seconds_until("until") + 1))


def _insisting(case: _Case) -> Iterator[Change]:
    yield from _wait(case)
    yield Change("booking")


def _unbooked(case: _Case) -> Iterator[Change]:
    yield Change("booking")


def _impossible(case: _Case) -> Iterator[Change]:
    types = matching(case.request, inventory_of(case.snapshot.nodes))

    def could(request: Request) -> bool:
        return fits(request, types, case.policy)

    if case.job.is_online and case.policy.online_percent:
        yield Change("workload_class", "batch")
    ranks = case.request.ranks
    if ranks is not None and case.request.gpu_count % ranks:
        yield Change("ranks", None)
    if not case.request.gang and could(replace(case.request, gang=True, ranks=None)):
        yield Change("gang_scheduling", True)
    yield from _counts(case, could)
    yield Change("node_added", 1)


def _constraint(case: _Case) -> Iterator[Change]:
    request = case.request
    if case.job.booking_id is not None:
        yield Change("booking")
    if request.apart:
        yield Change("apart", "")
    if request.node_selector:
        yield Change("node_selector", "")
    if request.required:
        yield Change("node_affinity", "")
    if request.gpu_models:
        yield Change("gpu_model", "")
    yield Change("node_added", 1)


def _taint(case: _Case) -> Iterator[Change]:
    yield Change("tolerations", str(case.reason.evidence["taints"]))
    yield Change("node_added", 1)


def _tolerating(case: _Case) -> Iterator[Change]:
    """Tolerate the taints of the nodes where it would start now, unless they are a reserve for larger jobs."""
    request = case.request
    if not case.board.has_taints:
        return
    shape = Shape(replace(request, tolerations=(Toleration(),)), case.board, case.policy)
    slots = [case.board.slot_of(rank.node_id) for rank in place(case.board, shape) or ()]
    taints = {
        taint
        for slot in slots
        if slot is not None
        for taint in untolerated(slot.node.taints, request.tolerations, request.gpu_count)
    }
    if taints and not any([taint.key == MIN_GPUS for taint in taints]):
        yield Change("tolerations", ", ".join(map(str, sorted(taints))))


def _limit(case: _Case) -> Iterator[Change]:
    """Request only the rest of the limit; or raise the limit as far as the job needs."""
    dimension = str(case.reason.evidence.get("dimension", ""))
    in_use, requested = case.number("in_use"), case.number("requested")
    remaining = int(case.number("limit") - in_use)
    is_part = dimension in (ONLINE_GPUS.name, BATCH_GPUS.name)
    counts_models = is_of_models(dimension)
    if is_part or counts_models or dimension == "GPUs":
        yield from _remaining(case, remaining)
    if is_part:
        yield Change("workload_class", "batch" if case.job.is_online else "online")
        yield from _running(case)
    else:
        yield Change("limit", ceil(in_use + requested), EACH_MODEL if counts_models else dimension)


def _user_limit(case: _Case) -> Iterator[Change]:
    in_use, requested = case.number("in_use"), case.number("requested")
    yield from _remaining(case, int(case.number("user_limit") - in_use))
    yield Change("user_limit", ceil(in_use + requested))


def _remaining(case: _Case, remaining: int) -> Iterator[Change]:
    """Request only what remains of a limit, if that is a GPU for each rank."""
    count = _divisible(case.request, remaining)
    if 0 < count < case.request.gpu_count:
        yield Change("gpu_count", count)


def _budget(case: _Case) -> Iterator[Change]:
    [used] = [tenant.budget_used_gpu_hours for tenant in case.snapshot.tenants if tenant.id == case.job.tenant_id]
    yield Change("budget", int(used) + 1)


def _maintenance(case: _Case) -> Iterator[Change]:
    closed = [node for node in case.snapshot.nodes if not (node.is_open and node.is_online)]
    ids, names = tuple(node.id for node in closed), tuple(sorted(node.name for node in closed))
    yield Change("nodes_opened", len(closed), ids=ids, names=names)


def _health(case: _Case) -> Iterator[Change]:
    yield _of_devices(case, "devices_well", lambda device: not device.is_healthy)


def _hot(case: _Case) -> Iterator[Change]:
    change = _of_devices(case, "devices_cool", lambda device: device.is_slowed)
    if change.ids:
        yield change


def _of_devices(case: _Case, name: str, is_affected: Callable[[Device], bool]) -> Change:
    nodes = [node for node in case.snapshot.nodes if any(is_affected(device) for device in node.devices)]
    ids = tuple(device.id for node in nodes for device in node.devices if is_affected(device))
    return Change(name, len(ids), ids=ids, names=tuple(sorted(node.name for node in nodes)))


def _topology(case: _Case) -> Iterator[Change]:
    yield Change("topology", f"prefer_{case.request.topology}")


def _cpu_memory(case: _Case) -> Iterator[Change]:
    """Reduce CPU and memory to the maximum that is available with the rest of the request."""
    request = case.request
    cores = max((slot.cpu_milli for slot in case.board.slots), default=0) // 1000
    for cpu_milli in sorted(
        {*(part * request.cpu_milli // 8000 * 1000 for part in range(8)), cores * 1000}, reverse=True
    ):
        if 0 <= cpu_milli < request.cpu_milli and case.fits_now(replace(request, cpu_milli=cpu_milli)):
            yield Change("cpu_cores", cpu_milli // 1000)
            break
    for part in range(7, -1, -1):
        memory_mb = request.memory_mb * part // 8
        if memory_mb < request.memory_mb and case.fits_now(replace(request, memory_mb=memory_mb)):
            yield Change("memory_mb", memory_mb)
            break
    for percent in (75, 50, 25, 0):
        if case.fits_now(scaled(request, percent)):
            yield Change("cpu_and_memory_percent", percent)
            break
    yield from _smaller(case)
    yield Change("comes_first")
    yield from _running(case)


def _gpu_remedies(case: _Case) -> Iterator[Change]:
    """Find GPUs that are free together: by a gang, fewer GPUs, another model, tolerations or ends of jobs."""
    request = case.request
    if not request.gang and request.gpu_count > 1 and case.fits_now(replace(request, gang=True, ranks=None)):
        yield Change("gang_scheduling", True)
    yield from _smaller(case)
    if request.gpu_models and case.fits_now(replace(request, gpu_models=())):
        yield Change("gpu_model", "")
    yield from _tolerating(case)
    yield Change("comes_first")
    yield from _running(case)


def _running(case: _Case) -> Iterator[Change]:
    jobs = tuple(sorted(job.job_id for job in case.snapshot.running))
    if jobs:
        yield Change("jobs_ended", len(jobs), jobs=jobs)


def _smaller(case: _Case) -> Iterator[Change]:
    return _counts(case, case.fits_now)


def _counts(case: _Case, is_enough: Callable[[Request], bool]) -> Iterator[Change]:
    """Yield the largest smaller number of GPUs that passes; memory and CPU stay as they are."""
    request = case.request
    step = request.ranks or 1
    first = _divisible(request, request.gpu_count - 1)
    for count in range(first, 0, -max(step, first // _MAX_COUNTS // step * step)):
        if is_enough(replace(request, gpu_count=count)):
            yield Change("gpu_count", count)
            return


def _divisible(request: Request, count: int) -> int:
    return count - count % (request.ranks or 1)


BY_CODE: dict[str, Callable[[_Case], Iterable[Change]]] = {
    "held_by_user": _release,
    "held_by_admin": _release,
    "not_before": _wait,
    "retry_backoff": _wait,
    "preempt_delay": _wait,
    "reclaim_pending": _victims,
    "priority": _first,
    "reserved": _passing,
    "reserved_soon": _before_booking,
    "reservation_pending": _insisting,
    "reservation_ended": _unbooked,
    "never_fits": _impossible,
    "constraint": _constraint,
    "taint": _taint,
    "tenant_limit": _limit,
    "quota_wait": _limit,
    "user_cap": _user_limit,
    "budget": _budget,
    "maintenance": _maintenance,
    "health": _health,
    "hot": _hot,
    "topology": _topology,
    "cpu_memory": _cpu_memory,
    "fragmented": _gpu_remedies,
    "capacity": _gpu_remedies,
}
