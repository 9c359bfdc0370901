"""A second, slow opinion on what is legal: by trying everything, sharing no code with the planner."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from math import ceil, floor

from scheduling.engine.affinity import Taint
from scheduling.engine.model import (
    Device,
    DeviceHold,
    Job,
    Node,
    Policy,
    RankPlacement,
    Request,
    RunningJob,
    Snapshot,
    Tenant,
)
from tests.engine.scenario import occupy


def legal_placements(
    request: Request, nodes: tuple[Node, ...], policy: Policy, running: tuple[RunningJob, ...] = ()
) -> Iterator[tuple[RankPlacement, ...]]:
    """Yield every way to put the request on the nodes as they are: complete, within the free capacity and the ceilings.

    `running`: jobs that others with their anti-affinity key must keep away from.
    """
    for ranks in _rank_counts(request, policy):
        gpus = request.gpu_count // ranks
        cpu_milli, memory_mb = ceil(request.cpu_milli / ranks), ceil(request.memory_mb / ranks)
        for chosen in product(nodes, repeat=ranks):
            if [chosen_node.id for chosen_node in chosen] != sorted(chosen_node.id for chosen_node in chosen):
                continue
            if not (request.gang and policy.gangs) and len({chosen_node.id for chosen_node in chosen}) > 1:
                continue
            for ids in product(*(combinations([device.id for device in node.devices], gpus) for node in chosen)):
                flat = [id for part in ids for id in part]
                if len(set(flat)) < len(flat):
                    continue
                placement = tuple(
                    RankPlacement(number, node.id, cpu_milli, memory_mb, tuple(_hold(id, request) for id in part))
                    for number, (node, part) in enumerate(zip(chosen, ids, strict=True))
                )
                if is_legal(request, placement, nodes, policy, running):
                    yield placement


def is_legal(
    request: Request,
    ranks: tuple[RankPlacement, ...],
    nodes: tuple[Node, ...],
    policy: Policy,
    running: tuple[RunningJob, ...] = (),
) -> bool:
    by_id = {each_node.id: each_node for each_node in nodes}
    namesakes = {
        rank.node_id
        for running_job in running
        if running_job.request.apart == request.apart
        for rank in running_job.ranks
    }
    for rank in ranks:
        node = by_id[rank.node_id]
        if request.apart and node.id in namesakes:
            return False
        if not _is_near(
            request, [device for device in node.devices if device.id in {hold.device_id for hold in rank.holds}]
        ):
            return False
        if not (node.is_open and node.is_online) or any(node.labels.get(k) != v for k, v in request.node_selector):
            return False
        if not (meets_affinity(request, node) and tolerates(request, node, "NoSchedule")):
            return False
        devices = {device.id: device for device in node.devices}
        for hold in rank.holds:
            if hold.device_id not in devices or not _takes(devices[hold.device_id], request, hold, policy):
                return False
        after = occupy(node, ranks)
        if after.cpu_milli_free < 0 and rank.cpu_milli > 0:
            return False
        if after.memory_mb_free < 0 and rank.memory_mb > 0:
            return False
    return True


def meets_affinity(request: Request, node: Node) -> bool:
    return all(meets(node, key, operator, values) for key, operator, values in request.required)


def meets(node: Node, key: str, operator: str, values: tuple[str, ...]) -> bool:
    """Return whether the node meets the expression, by the text of Kubernetes' documentation, operator by operator."""
    if operator == "exists":
        return key in node.labels
    if operator == "doesnotexist":
        return key not in node.labels
    is_one_of_them = key in node.labels and node.labels[key] in values
    return is_one_of_them if operator == "in" else not is_one_of_them


def tolerates(request: Request, node: Node, effect: str) -> bool:
    """Return whether each taint with the effect has a toleration with its key, value and effect, or without them; or
    the request has the GPUs that a min-gpus taint names."""
    for taint in node.taints:
        if taint.effect != effect or _is_reserve(taint, request):
            continue
        keys = [toleration for toleration in request.tolerations if not toleration.key or toleration.key == taint.key]
        values = [entry for entry in keys if entry.value is None or entry.value == taint.value]
        if not [entry for entry in values if not entry.effect or entry.effect == taint.effect]:
            return False
    return True


def welcome(request: Request, node: Node) -> tuple[int, int]:
    """Return a key, the smallest is the most welcome: untolerated PreferNoSchedule taints, minus the weight met. A
    min-gpus taint that the request is large enough for weighs 1."""
    avoided = sum(
        taint.effect == "PreferNoSchedule" and not tolerates(request, replace(node, taints=(taint,)), taint.effect)
        for taint in node.taints
    )
    reserves = sum(_is_reserve(taint, request) for taint in node.taints)
    return avoided, -reserves - sum(weight for weight, entry in request.preferred if meets(node, *entry))


def _is_reserve(taint: Taint, request: Request) -> bool:
    return taint.key == "min-gpus" and request.gpu_count >= float(taint.value)


def use(request: Request, ranks: tuple[RankPlacement, ...], nodes: tuple[Node, ...]) -> tuple[int, int, int, int, int]:
    """Return GPUs, MiB of GPU memory, millicores, MiB and jobs that count for the tenant's limits."""
    memory = {device.id: device.memory_mb for node in nodes for device in node.devices}
    holds = [hold for rank in ranks for hold in rank.holds]
    total = sum(
        (memory[hold.device_id] or request.gpu_memory_mb or 0) if hold.memory_mb is None else hold.memory_mb
        for hold in holds
    )
    return request.gpu_count, total, request.cpu_milli, request.memory_mb, 1


def in_use(snapshot: Snapshot, tenant_id: int) -> tuple[int, ...]:
    result = [
        use(running_job.request, running_job.ranks, snapshot.nodes)
        for running_job in snapshot.running
        if running_job.tenant_id == tenant_id
    ]
    return tuple(sum(column) for column in zip((0, 0, 0, 0, 0), *result, strict=True))


def limits(tenant: Tenant) -> tuple[int | None, ...]:
    return (
        tenant.max_gpus,
        tenant.max_gpu_memory_mb,
        tenant.max_cpu_milli,
        tenant.max_memory_mb,
        tenant.max_concurrent_jobs,
    )


def is_within_limits(snapshot: Snapshot, job: Job, ranks: tuple[RankPlacement, ...]) -> bool:
    (tenant,) = [tenant for tenant in snapshot.tenants if tenant.id == job.tenant_id]
    requested = use(job.request, ranks, snapshot.nodes)
    used = in_use(snapshot, job.tenant_id)
    return _is_within_own(snapshot, tenant, job, ranks) and all(
        limit is None or want == 0 or have + want <= limit
        for limit, have, want in zip(limits(tenant), used, requested, strict=True)
    )


def _is_within_own(snapshot: Snapshot, tenant: Tenant, job: Job, ranks: tuple[RankPlacement, ...]) -> bool:
    """Return whether the job is within the limits per user and per model."""
    tenant_jobs = [running_job for running_job in snapshot.running if running_job.tenant_id == tenant.id]
    by_user = sum(entry.request.gpu_count for entry in tenant_jobs if entry.user_id == job.user_id)
    limit = tenant.max_gpus_per_user
    if job.request.gpu_count and limit is not None and by_user + job.request.gpu_count > limit:
        return False
    gpus_held = [model for entry in tenant_jobs for model in models(snapshot, entry.ranks)]
    for word, maximum in tenant.max_gpus_by_model:
        requested = sum(word in model for model in models(snapshot, ranks))
        if requested and requested + sum(word in model for model in gpus_held) > maximum:
            return False
    return True


def models(snapshot: Snapshot, ranks: tuple[RankPlacement, ...]) -> list[str]:
    by_id = {device.id: device.model for node in snapshot.nodes for device in node.devices}
    return [by_id[hold.device_id] for rank in ranks for hold in rank.holds]


def is_within_parts(snapshot: Snapshot, policy: Policy, job: Job, *, lending: bool) -> bool:
    """Return whether the job is within the online or batch part. `lending`: with all that batch can ever borrow; else
    with nothing lent."""
    if not policy.online_percent or not job.request.gpu_count:
        return True
    total = sum(
        device.is_healthy for node in snapshot.nodes if node.is_open and node.is_online for device in node.devices
    )
    online = total * policy.online_percent / 100
    batch_part = ceil(total - online - 0.5)
    gpus_held = {
        kind: sum(running_job.request.gpu_count for running_job in snapshot.running if running_job.is_online is kind)
        for kind in (False, True)
    }
    want = job.request.gpu_count
    if job.is_online:
        return gpus_held[True] + want <= total - batch_part
    return gpus_held[False] + want <= batch_part or (lending and gpus_held[False] + gpus_held[True] + want <= total)


def without(snapshot: Snapshot, ended: list[int]) -> Snapshot:
    """Return the snapshot when these running jobs have ended."""
    ranks = [rank for running_job in snapshot.running if running_job.job_id in ended for rank in running_job.ranks]
    return replace(
        snapshot,
        running=tuple(running_job for running_job in snapshot.running if running_job.job_id not in ended),
        nodes=tuple(occupy(node, ranks, sign=-1) for node in snapshot.nodes),
    )


def _rank_counts(request: Request, policy: Policy) -> list[int]:
    if request.ranks:
        return [request.ranks]
    if request.gang and policy.gangs and request.gpu_count:
        return [ranks for ranks in range(1, request.gpu_count + 1) if request.gpu_count % ranks == 0]
    return [1]


def _hold(device_id: int, request: Request) -> DeviceHold:
    return DeviceHold(device_id, request.gpu_memory_mb if request.shared else None)


def _is_near(request: Request, devices: list[Device]) -> bool:
    if len(devices) < 2 or request.topology not in ("nvlink", "numa"):
        return True
    places = {device.island if request.topology == "nvlink" else device.numa for device in devices}
    return len(places) == 1 and None not in places


def _takes(device: Device, request: Request, hold: DeviceHold, policy: Policy) -> bool:
    if not device.is_healthy or device.exclusive or (policy.thermal and device.is_slowed):
        return False
    if request.gpu_models and not any(word.lower() in device.model.lower() for word in request.gpu_models):
        return False
    if hold.memory_mb is not None:
        if device.memory_mb and device.shared_mb and device.compute is not None:
            memory = (device.shared_mb + hold.memory_mb) / device.memory_mb
            if round(0.7 * memory + 0.3 * device.compute, 9) > policy.load_ceiling_shared:
                return False
        return device.memory_mb is not None and device.shared_mb + hold.memory_mb <= floor(
            device.memory_mb * policy.load_ceiling_shared
        )
    if device.shared_mb:
        return False
    if request.gpu_memory_mb is None:
        return True
    return device.memory_mb is not None and request.gpu_memory_mb <= device.memory_mb * policy.load_ceiling
