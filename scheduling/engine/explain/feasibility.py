"""Decides whether a request can ever start: on the whole cluster, empty and in service, and alone in its tenant."""

from collections.abc import Sequence

from scheduling.engine.affinity import Taint, untolerated
from scheduling.engine.board.shapes import rank_counts
from scheduling.engine.explain.inventory import (
    Inventory,
    Types,
    eligible,
    fits,
    has_model,
    inventory_of,
    matching,
    minimum_use,
    offers,
    ranks_that_fit,
)
from scheduling.engine.explain.largest import Bounds, Largest, is_within_models, largest, most_gpus
from scheduling.engine.limits.online_split import split_of
from scheduling.engine.limits.quotas import CPU_CORES, Use, excess, limits_of, limits_per_user, of_models
from scheduling.engine.model import Evidence, Node, PendingReason, Policy, Request, Tenant

# A reason names so many of the models, and of the values of a label, that exist.
MAX_PRESENT = 5


def why_never_fits(
    request: Request,
    tenant: Tenant,
    nodes: Sequence[Node],
    policy: Policy = Policy(),
    *,
    is_online: bool = False,
) -> PendingReason | None:
    """Return why a request can never start on this cluster, with the largest one that can; None: it may have to wait.

    Judged on the empty cluster: running jobs, cordons, taints and health do not count. A model or a label that no node
    has is possible, as the next node or an edit may bring it; the job waits with `constraint`. Without any node the
    hardware is unknown, and only the tenant's limits are judged.
    """
    return why_never_fits_in(request, tenant, inventory_of(nodes), policy, is_online=is_online)


def why_never_fits_in(
    request: Request, tenant: Tenant, inventory: Inventory, policy: Policy = Policy(), *, is_online: bool = False
) -> PendingReason | None:
    """Return the result of `why_never_fits` for nodes that `inventory_of` has counted already."""
    return (
        over_limit(request, tenant, inventory, policy)
        or too_large(request, inventory, policy, bounds_of(tenant, inventory, policy, is_online=is_online))
        or exceeds_online_capacity(request, tenant, inventory, policy, is_online=is_online)
    )


def bounds_of(tenant: Tenant, inventory: Inventory, policy: Policy, *, is_online: bool) -> Bounds:
    """Return the limits of the tenant's requests besides the nodes."""
    limits = (*limits_of(tenant), *limits_per_user(tenant))
    part = (
        split_of(_gpus(inventory), policy).online if is_online and policy.online_percent and inventory.types else None
    )
    return Bounds(
        tuple((dimension, limit) for dimension, limit in limits if not dimension.model),
        tuple((dimension.model, limit) for dimension, limit in limits if dimension.model),
        part,
    )


def too_large(
    request: Request, inventory: Inventory, policy: Policy, bounds: Bounds = Bounds()
) -> PendingReason | None:
    """Return `never_fits` if the nodes that match the request could not hold it, all of them empty.

    `bounds`: limits of the largest possible request, which the reason names.
    """
    types = matching(request, inventory)
    if not types or fits(request, types, policy):
        return None
    possible = largest(request, types, policy, bounds)
    text = "0 GPUs" if possible is None else _described(possible, request, types, policy)
    return PendingReason("never_fits", {"what": _requested_text(request, policy), "largest": text})


def exceeds_online_capacity(
    request: Request, tenant: Tenant, inventory: Inventory, policy: Policy, *, is_online: bool
) -> PendingReason | None:
    """Return `never_fits` if an online job is larger than the online capacity of the cluster."""
    bounds = bounds_of(tenant, inventory, policy, is_online=is_online)
    part, types = bounds.online_gpus, matching(request, inventory)
    if part is None or request.gpu_count <= part:
        return None
    gpus = most_gpus(request, types, policy, bounds) if types else part - part % (request.ranks or 1)
    within = ", the cluster's online part" if gpus == part else f", within the cluster's online part of {part}"
    requested = f"it asks for {request.gpu_count} GPUs for an online job"
    return PendingReason("never_fits", {"what": requested, "largest": f"{gpus} GPUs{within}"})


def unmatched(request: Request, inventory: Inventory) -> PendingReason | None:
    """Return `constraint` if no node has the labels and models that the request names."""
    if matching(request, inventory):
        return None
    if not inventory.types:
        return PendingReason("constraint", {"constraint": "the request: none has joined yet"})
    # Labels with a space are not the user's: they are needs of the request as a phrase.
    names = [key if " " in key else f"label {key}={value}" for key, value in request.node_selector]
    names += [f"label {expression}" for expression in request.required]
    if request.gpu_count and request.gpu_models:
        names.append(f"GPU model {' or '.join(request.gpu_models)}")
    present = {"present": text} if (text := _present(request, inventory)) else {}
    return PendingReason("constraint", {"constraint": " with ".join(names), **present})


def _present(request: Request, inventory: Inventory) -> str:
    """Return the GPU models, and the labels with these keys, that the nodes have instead of those that none has."""
    types = [node_type for node_type, _ in inventory.types]
    groups: list[set[str]] = []
    if request.gpu_count and not any(has_model(request.gpu_models, node_type.devices) for node_type in types):
        groups.append({kind.model for node_type in types for kind, _ in node_type.devices})
    for key, wanted in request.node_selector:
        values = {value for node_type in types for name, value in node_type.labels if name == key}
        if wanted not in values:
            groups.append({f"{key}={value}" for value in values})
    names = [name for group in groups for name in sorted(group)[:MAX_PRESENT]]
    left_out = sum(max(len(group) - MAX_PRESENT, 0) for group in groups)
    return ", ".join(names) + (f" and {left_out} more" if left_out else "")


def blocked_by_taints(request: Request, inventory: Inventory, policy: Policy) -> PendingReason | None:
    """Return `taint` if the request fits on the empty matching nodes, but not on those whose taints it tolerates.

    The reason names no taint that the request could leave untolerated and still fit."""
    types = matching(request, inventory)
    kept_off = [
        (missing, node_type, count)
        for node_type, count in types
        if node_type.taints
        and (missing := frozenset(untolerated(node_type.taints, request.tolerations, request.gpu_count)))
    ]
    if not kept_off or fits(request, eligible(request, inventory), policy):
        return None
    needed = frozenset[Taint]().union(*[missing for missing, _, _ in kept_off])
    for taint in sorted(needed):
        fewer = needed - {taint}
        open_ = [(node_type, count) for missing, node_type, count in kept_off if missing <= fewer]
        if fits(request, (*eligible(request, inventory), *open_), policy):
            needed = fewer
    nodes = sum(count for missing, _, count in kept_off if missing <= needed)
    return PendingReason("taint", {"taints": ", ".join(map(str, sorted(needed))), "nodes": nodes})


def over_model_limits(request: Request, tenant: Tenant, inventory: Inventory, policy: Policy) -> PendingReason | None:
    """Return `over_limit` for a request that no limit has stopped: those per model together may still exclude it."""
    return over_limit(request, tenant, inventory, policy) if tenant.max_gpus_by_model else None


def over_limit(request: Request, tenant: Tenant, inventory: Inventory, policy: Policy) -> PendingReason | None:
    """Return `tenant_limit` if the request alone exceeds a limit of its tenant."""
    types = matching(request, inventory)
    exceeded = excess(tenant, minimum_use(request, types, policy))
    if exceeded is None:
        return _over_models(request, tenant, types, policy)
    evidence: Evidence = {
        "requested": exceeded.requested,
        "dimension": exceeded.dimension.name,
        "limit": exceeded.limit,
        "tenant": tenant.name,
    }
    return PendingReason("tenant_limit", evidence)


def _over_models(request: Request, tenant: Tenant, types: Types, policy: Policy) -> PendingReason | None:
    """Return `tenant_limit` if the limits per model, each wide enough by itself, leave too few GPUs together."""
    bounds = Bounds(models=tenant.max_gpus_by_model)
    if not (bounds.models and request.gpu_count and types) or not fits(request, types, policy):
        return None
    if is_within_models(request, types, policy, bounds):
        return None
    evidence: Evidence = {
        "requested": request.gpu_count,
        "dimension": of_models(tenant),
        "limit": most_gpus(request, types, policy, bounds),
        "tenant": tenant.name,
    }
    return PendingReason("tenant_limit", evidence)


def minimum_use_in(request: Request, inventory: Inventory, policy: Policy) -> Use:
    """Return the minimum that the request takes of its tenant's limits, on the nodes that match it."""
    return minimum_use(request, matching(request, inventory), policy)


def _gpus(inventory: Inventory) -> int:
    return sum(number * count for node_type, count in inventory.types for _, number in node_type.devices)


def _requested_text(request: Request, policy: Policy) -> str:
    if not rank_counts(request, policy):
        return f"{request.ranks} ranks do not divide {request.gpu_count} GPUs evenly"
    memory = f" of {request.gpu_memory_mb} MiB" if request.gpu_memory_mb else ""
    gpus = f"{request.gpu_count} GPUs{memory} with " if request.gpu_count else ""
    spreads = request.gang and policy.gangs and max(rank_counts(request, policy)) > 1
    location = "over all nodes" if spreads else "on one node"
    location += f", with topology {request.topology}" if request.topology in ("nvlink", "numa") else ""
    cores = CPU_CORES.to_unit(request.cpu_milli)
    return f"it asks for {gpus}{cores} CPU cores and {request.memory_mb} MiB of memory {location}"


def _described(possible: Largest, requested: Request, types: Types, policy: Policy) -> str:
    request = possible.request
    memory = f" of {request.gpu_memory_mb} MiB" if request.gpu_memory_mb else ""
    if requested.gpu_memory_mb and not memory:
        memory = " of unknown memory"
    gpus = f"{request.gpu_count} GPUs{memory} with " if request.gpu_count else ""
    if possible.more_gpus:
        gpus = f"its GPUs{memory} with "
    ranks = (
        f"{request.ranks} rank{'s' * (request.ranks != 1)} with "
        if request.ranks and request.ranks != requested.ranks
        else ""
    )
    nodes = _nodes(request, types, policy)
    location = "on one node" if nodes == 1 else f"over {nodes} nodes"
    cores = CPU_CORES.to_unit(request.cpu_milli)
    return f"{ranks}{gpus}{cores} CPU cores and {request.memory_mb} MiB of memory {location}"


def _nodes(request: Request, types: Types, policy: Policy) -> int:
    """Return the fewest empty nodes that hold the request in as few ranks as possible."""
    node_offers = offers(request, types, policy)
    for split in rank_counts(request, policy):
        capacities = sorted(
            ((ranks_that_fit(request, offer, split), count) for offer, count in node_offers), reverse=True
        )
        nodes, remaining = 0, split
        for ranks, count in capacities:
            used = min(count, -(-remaining // ranks)) if ranks else 0
            nodes, remaining = nodes + used, remaining - used * ranks
            if remaining <= 0:
                return nodes
            if not (request.gang and policy.gangs):
                break
    return 1
