"""The changes that a what-if may make to a snapshot, each by its name: of the job, of its tenant, of the cluster."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from scheduling.engine.affinity import EXISTS, IN, Taint, is_met, tolerating
from scheduling.engine.board.shapes import needs_of
from scheduling.engine.forward import ended
from scheduling.engine.limits.quotas import EACH_MODEL
from scheduling.engine.model import Device, Job, Node, Nomination, RankPlacement, Request, RunningJob, Snapshot, Tenant

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a snapshot. `change`: a name of CHANGES; `to`: the new value, in the units of users. `dimension`: of
    a limit. `jobs`: the jobs that end; callers hide those that the reader may not see. `ranks`: the nominated part of
    their resources. `ids`: the nodes or devices; `names`: those nodes, or the nodes of those devices."""

    change: str
    to: Value = None
    dimension: str = ""
    jobs: tuple[int, ...] = ()
    ranks: tuple[RankPlacement, ...] = ()
    ids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


def apply(snapshot: Snapshot, job_id: int, change: Change) -> Snapshot:
    """Return the snapshot with this one difference. Pure. Raises KeyError for an unknown change or job."""
    return CHANGES[change.change](snapshot, _job(snapshot, job_id), change)


def scaled(request: Request, percent: int) -> Request:
    """Return the request with this part of its CPU and memory, rounded down."""
    return replace(request, cpu_milli=request.cpu_milli * percent // 100, memory_mb=request.memory_mb * percent // 100)


def _of_request(edit: Callable[[Request, Value], Request]) -> Callable[[Snapshot, Job, Change], Snapshot]:
    def changed(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
        return _with_job(snapshot, replace(job, request=edit(job.request, change.to)))

    return changed


def _runtime(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
    return _with_job(snapshot, replace(job, max_runtime_seconds=_as_int(change.to)))


def _unbooked(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
    return _with_job(snapshot, replace(job, booking_id=None))


def _first(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
    """Remove all other waiting jobs."""
    return replace(snapshot, jobs=(job,), claims=(), reserved_job_id=None)


def _later(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
    """Move the snapshot later by that many seconds, as if nothing ended meanwhile: everything is that much older."""
    seconds = float(change.to or 0)
    jobs = tuple(
        replace(job, queued_at=job.queued_at - seconds, eligible_at=job.eligible_at - seconds) for job in snapshot.jobs
    )
    bookings = tuple(
        replace(booking, starts_at=booking.starts_at - seconds, ends_at=booking.ends_at - seconds)
        for booking in snapshot.bookings
    )
    running = tuple(_older(job, seconds) for job in snapshot.running)
    return replace(snapshot, jobs=jobs, running=running, bookings=bookings)


def _older(job: RunningJob, seconds: float) -> RunningJob:
    return replace(
        job,
        started_at=job.started_at - seconds,
        ends_by=None if job.ends_by is None else job.ends_by - seconds,
        saved_at=None if job.saved_at is None else job.saved_at - seconds,
    )


def _ended(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
    return ended(snapshot, change.jobs)


def _victims_ended(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
    """End the jobs that were stopped for this job; it goes first."""
    after = ended(snapshot, change.jobs)
    if not change.ranks:
        return after
    return replace(
        after, claims=(Nomination(job.id, change.ranks), *(entry for entry in after.claims if entry.job_id != job.id))
    )


def _limit(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
    """Set another limit of the job's tenant, in the units of its sentence."""
    amount = _as_int(change.to)

    def edit(tenant: Tenant) -> Tenant:
        if change.dimension in _LIMITS:
            return _LIMITS[change.dimension](tenant, amount)
        if change.dimension == EACH_MODEL:
            raised = tuple((name, max(amount, limit)) for name, limit in tenant.max_gpus_by_model)
            return replace(tenant, max_gpus_by_model=raised)
        model = change.dimension.removesuffix(" GPUs")
        limits = tuple((name, amount if name == model else limit) for name, limit in tenant.max_gpus_by_model)
        return replace(tenant, max_gpus_by_model=limits)

    return _with_tenant(snapshot, job, edit)


def _user_limit(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
    return _with_tenant(snapshot, job, lambda tenant: replace(tenant, max_gpus_per_user=_as_int(change.to)))


def _budget(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
    return _with_tenant(snapshot, job, lambda tenant: replace(tenant, budget_gpu_hours=float(change.to or 0)))


def _class(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
    return _with_job(snapshot, replace(job, is_online=change.to == "online"))


def _nodes_opened(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
    opened = set(change.ids)
    return replace(
        snapshot,
        nodes=tuple(
            replace(node, is_open=True, is_online=True) if node.id in opened else node for node in snapshot.nodes
        ),
    )


def _devices(edit: Callable[[Device], Device]) -> Callable[[Snapshot, Job, Change], Snapshot]:
    def changed(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
        device_ids = set(change.ids)
        return replace(snapshot, nodes=tuple(_edited(node, device_ids, edit) for node in snapshot.nodes))

    return changed


def _edited(node: Node, device_ids: set[int], edit: Callable[[Device], Device]) -> Node:
    if device_ids.isdisjoint([device.id for device in node.devices]):
        return node
    return replace(node, devices=tuple(edit(device) if device.id in device_ids else device for device in node.devices))


def _node_added(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
    """Add one node, empty and large enough for all of the job."""
    request = job.request
    model = (*request.gpu_models, "any")[0]
    first = 1 + max((device.id for node in snapshot.nodes for device in node.devices), default=0)
    devices = tuple(
        Device(first + n, model, 2 * (request.gpu_memory_mb or 0) or None, numa=0, island=0)
        for n in range(request.gpu_count)
    )
    # Ranks round their parts up.
    cpu_milli, memory_mb = request.cpu_milli + request.gpu_count, request.memory_mb + request.gpu_count
    node_id = 1 + max((node.id for node in snapshot.nodes), default=0)
    labels = labels_for(request)
    new = Node(node_id, "new", cpu_milli, memory_mb, cpu_milli, memory_mb, devices, labels)
    return replace(snapshot, nodes=(*snapshot.nodes, new))


def labels_for(request: Request) -> dict[str, str]:
    """Return labels of a node with which it meets what the request requires, unless its demands contradict."""
    labels = dict(request.node_selector)
    for expression in request.required:
        if expression.operator == EXISTS:
            labels.setdefault(expression.key, "")
        elif expression.operator == IN and expression.key not in dict(request.node_selector):
            conditions = [other for other in request.required if other.key == expression.key]
            fitting = [
                v for v in expression.values if all(is_met(condition, {expression.key: v}) for condition in conditions)
            ]
            labels[expression.key] = (fitting or expression.values)[0]
    return labels


def _tolerating(request: Request, to: Value) -> Request:
    """Add tolerations. `to`: taints as their text, such as "a=b:NoSchedule, c:NoSchedule"."""
    taints = [_taint(text) for text in str(to or "").split(", ") if text]
    return replace(request, tolerations=(*request.tolerations, *tolerating(taints)))


def _taint(text: str) -> Taint:
    named, _, effect = text.rpartition(":")
    key, _, value = named.partition("=")
    return Taint(key, value, effect)


def _as_it_is(snapshot: Snapshot, job: Job, change: Change) -> Snapshot:
    return snapshot


_LIMITS: dict[str, Callable[[Tenant, int], Tenant]] = {
    "GPUs": lambda tenant, amount: replace(tenant, max_gpus=amount),
    "MiB of GPU memory": lambda tenant, amount: replace(tenant, max_gpu_memory_mb=amount),
    "CPU cores": lambda tenant, amount: replace(tenant, max_cpu_milli=amount * 1000),
    "MiB of memory": lambda tenant, amount: replace(tenant, max_memory_mb=amount),
    "concurrent jobs": lambda tenant, amount: replace(tenant, max_concurrent_jobs=amount),
    "GPUs per user": lambda tenant, amount: replace(tenant, max_gpus_per_user=amount),
}
CHANGES: dict[str, Callable[[Snapshot, Job, Change], Snapshot]] = {
    "gpu_count": _of_request(lambda request, to: replace(request, gpu_count=_as_int(to))),
    "gpu_memory_mb": _of_request(lambda request, to: replace(request, gpu_memory_mb=_as_int(to))),
    "gpu_model": _of_request(lambda request, to: replace(request, gpu_models=(str(to),) if to else ())),
    "cpu_cores": _of_request(lambda request, to: replace(request, cpu_milli=round(float(to or 0) * 1000))),
    "memory_mb": _of_request(lambda request, to: replace(request, memory_mb=_as_int(to))),
    "cpu_and_memory_percent": _of_request(lambda request, to: scaled(request, _as_int(to))),
    "gang_scheduling": _of_request(lambda request, to: replace(request, gang=bool(to), ranks=None)),
    "ranks": _of_request(lambda request, to: replace(request, ranks=None if to is None else _as_int(to))),
    "node_selector": _of_request(lambda request, to: replace(request, node_selector=needs_of(request))),
    "node_affinity": _of_request(lambda request, to: replace(request, required=())),
    "tolerations": _of_request(_tolerating),
    "topology": _of_request(lambda request, to: replace(request, topology=str(to))),
    "apart": _of_request(lambda request, to: replace(request, apart="")),
    "max_runtime_seconds": _runtime,
    "workload_class": _class,
    "booking": _unbooked,
    "comes_first": _first,
    "wait_seconds": _later,
    "jobs_ended": _ended,
    "victims_ended": _victims_ended,
    "limit": _limit,
    "user_limit": _user_limit,
    "budget": _budget,
    "nodes_opened": _nodes_opened,
    "devices_well": _devices(lambda device: replace(device, is_healthy=True)),
    "devices_cool": _devices(lambda device: replace(device, is_slowed=False)),
    "node_added": _node_added,
    "max_parallel": _as_it_is,
    "released": _as_it_is,
    "dependencies_ended": _as_it_is,
}


def _as_int(value: Value) -> int:
    return -int(-float(value or 0) // 1)


def _with_job(snapshot: Snapshot, job: Job) -> Snapshot:
    return replace(snapshot, jobs=tuple(job if other.id == job.id else other for other in snapshot.jobs))


def _with_tenant(snapshot: Snapshot, job: Job, edit: Callable[[Tenant], Tenant]) -> Snapshot:
    return replace(
        snapshot, tenants=tuple(edit(tenant) if tenant.id == job.tenant_id else tenant for tenant in snapshot.tenants)
    )


def _job(snapshot: Snapshot, job_id: int) -> Job:
    for job in snapshot.jobs:
        if job.id == job_id:
            return job
    raise KeyError(job_id)
