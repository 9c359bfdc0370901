"""Says whether a request can ever start: on the whole cluster, empty and in service, and alone in its tenant."""

from collections.abc import Sequence

from scheduling.engine.affinity import Taint, untolerated
from scheduling.engine.board.shapes import rank_counts
from scheduling.engine.explain.inventory import (
    Inventory,
    Types,
    eligible,
    fits,
    matching,
    minimum_use,
    offers,
    room,
    survey,
)
from scheduling.engine.explain.largest import Bounds, Largest, is_within_models, largest, most_gpus
from scheduling.engine.limits.online_split import parts_of
from scheduling.engine.limits.quotas import CPU_CORES, Use, excess, limits_of, limits_per_user, of_models
from scheduling.engine.model import Evidence, Node, PendingReason, Policy, Request, Tenant


def why_never_fits(
    request: Request,
    tenant: Tenant,
    nodes: Sequence[Node],
    policy: Policy = Policy(),
    *,
    is_online: bool = False,
) -> PendingReason | None:
    """Why a request can never start as things stand, saying the largest that can; None: it may just have to wait.

    Judged on the empty cluster: what runs, cordons, taints and health do not count. A model or a label that no node
    has is not impossible, as the next node or an edit may bring it; it waits with `constraint`. Without any node
    nothing is known of the hardware, and only the tenant's limits are judged.
    """
    return impossible_in(request, tenant, survey(nodes), policy, is_online=is_online)


def impossible_in(
    request: Request, tenant: Tenant, inventory: Inventory, policy: Policy = Policy(), *, is_online: bool = False
) -> PendingReason | None:
    """Return the verdict of `impossible` for nodes that `survey` has counted already."""
    return (
        over_limit(request, tenant, inventory, policy)
        or too_large(request, inventory, policy, bounds_of(tenant, inventory, policy, is_online=is_online))
        or beyond_part(request, tenant, inventory, policy, is_online=is_online)
    )


def bounds_of(tenant: Tenant, inventory: Inventory, policy: Policy, *, is_online: bool) -> Bounds:
    """What bounds the tenant's requests besides the nodes."""
    limits = (*limits_of(tenant), *limits_per_user(tenant))
    part = (
        parts_of(_gpus(inventory), policy).online if is_online and policy.online_percent and inventory.types else None
    )
    return Bounds(
        tuple((dimension, limit) for dimension, limit in limits if not dimension.model),
        tuple((dimension.model, limit) for dimension, limit in limits if dimension.model),
        part,
    )


def too_large(
    request: Request, inventory: Inventory, policy: Policy, bounds: Bounds = Bounds()
) -> PendingReason | None:
    """`never_fits` if the nodes that match the request could not hold it, all of them empty; `bounds`: of the largest
    possible that it names."""
    types = matching(request, inventory)
    if not types or fits(request, types, policy):
        return None
    possible = largest(request, types, policy, bounds)
    text = "0 GPUs" if possible is None else _described(possible, request, types, policy)
    return PendingReason("never_fits", {"what": _asked(request, policy), "largest": text})


def beyond_part(
    request: Request, tenant: Tenant, inventory: Inventory, policy: Policy, *, is_online: bool
) -> PendingReason | None:
    """`never_fits` if an online job is larger than the online part of all GPUs."""
    bounds = bounds_of(tenant, inventory, policy, is_online=is_online)
    part, types = bounds.online_gpus, matching(request, inventory)
    if part is None or request.gpu_count <= part:
        return None
    gpus = most_gpus(request, types, policy, bounds) if types else part - part % (request.ranks or 1)
    within = ", the cluster's online part" if gpus == part else f", within the cluster's online part of {part}"
    asked = f"it asks for {request.gpu_count} GPUs for an online job"
    return PendingReason("never_fits", {"what": asked, "largest": f"{gpus} GPUs{within}"})


def unmatched(request: Request, inventory: Inventory) -> PendingReason | None:
    """`constraint` if no node has the labels and models that the request names."""
    if matching(request, inventory):
        return None
    if not inventory.types:
        return PendingReason("constraint", {"constraint": "the request: none has joined yet"})
    # Labels with a space are none of the user's: what the request needs of a node in words.
    names = [key if " " in key else f"label {key}={value}" for key, value in request.node_selector]
    names += [f"label {expression}" for expression in request.required]
    if request.gpu_count and request.gpu_models:
        names.append(f"GPU model {' or '.join(request.gpu_models)}")
    return PendingReason("constraint", {"constraint": " with ".join(names)})


def shut_out(request: Request, inventory: Inventory, policy: Policy) -> PendingReason | None:
    """Return `taint` if the request fits on the empty matching nodes, but not on those whose taints it tolerates.

    Names no taint that the request could leave untolerated and still fit."""
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


def over_limit(request: Request, tenant: Tenant, inventory: Inventory, policy: Policy) -> PendingReason | None:
    """`tenant_limit` if the request alone is more than its tenant may ever use."""
    types = matching(request, inventory)
    found = excess(tenant, minimum_use(request, types, policy))
    if found is None:
        return _over_models(request, tenant, types, policy)
    evidence: Evidence = {
        "requested": found.requested,
        "dimension": found.dimension.name,
        "limit": found.limit,
        "tenant": tenant.name,
    }
    return PendingReason("tenant_limit", evidence)


def _over_models(request: Request, tenant: Tenant, types: Types, policy: Policy) -> PendingReason | None:
    """`tenant_limit` if the limits per model, each of them wide enough by itself, leave too few GPUs together."""
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


def least_use(request: Request, inventory: Inventory, policy: Policy) -> Use:
    """What the request takes of its tenant's limits at least, on the nodes that match it."""
    return minimum_use(request, matching(request, inventory), policy)


def _gpus(inventory: Inventory) -> int:
    return sum(number * count for node_type, count in inventory.types for _, number in node_type.devices)


def _asked(request: Request, policy: Policy) -> str:
    if not rank_counts(request, policy):
        return f"{request.ranks} ranks do not divide {request.gpu_count} GPUs evenly"
    memory = f" of {request.gpu_memory_mb} MiB" if request.gpu_memory_mb else ""
    gpus = f"{request.gpu_count} GPUs{memory} with " if request.gpu_count else ""
    spreads = request.gang and policy.gangs and max(rank_counts(request, policy)) > 1
    where = "over all nodes" if spreads else "on one node"
    where += f", with topology {request.topology}" if request.topology in ("nvlink", "numa") else ""
    cores = CPU_CORES.shown(request.cpu_milli)
    return f"it asks for {gpus}{cores} CPU cores and {request.memory_mb} MiB of memory {where}"


def _described(possible: Largest, asked: Request, types: Types, policy: Policy) -> str:
    request = possible.request
    memory = f" of {request.gpu_memory_mb} MiB" if request.gpu_memory_mb else ""
    if asked.gpu_memory_mb and not memory:
        memory = " of unknown memory"
    gpus = f"{request.gpu_count} GPUs{memory} with " if request.gpu_count else ""
    if possible.more_gpus:
        gpus = f"its GPUs{memory} with "
    ranks = (
        f"{request.ranks} rank{'s' * (request.ranks != 1)} with "
        if request.ranks and request.ranks != asked.ranks
        else ""
    )
    nodes = _nodes(request, types, policy)
    where = "on one node" if nodes == 1 else f"over {nodes} nodes"
    cores = CPU_CORES.shown(request.cpu_milli)
    return f"{ranks}{gpus}{cores} CPU cores and {request.memory_mb} MiB of memory {where}"


def _nodes(request: Request, types: Types, policy: Policy) -> int:
    """The fewest empty nodes that hold the request in as few ranks as possible."""
    found = offers(request, types, policy)
    for split in rank_counts(request, policy):
        rooms = sorted(((room(request, offer, split), count) for offer, count in found), reverse=True)
        nodes, left = 0, split
        for ranks, count in rooms:
            used = min(count, -(-left // ranks)) if ranks else 0
            nodes, left = nodes + used, left - used * ranks
            if left <= 0:
                return nodes
            if not (request.gang and policy.gangs):
                break
    return 1
