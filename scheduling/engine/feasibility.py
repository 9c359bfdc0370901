"""Says whether a request can ever start: on the whole cluster, empty and in service, and alone in its tenant."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from scheduling.engine.board import Kind, kind_of
from scheduling.engine.model import Device, Evidence, Node, Policy, Request, Tenant
from scheduling.engine.quotas import CPU_CORES, Use, excess, use_of
from scheduling.engine.shapes import is_selected, is_suitable, rank_counts
from scheduling.engine.split import parts_of


class Verdict(NamedTuple):
    """A reason that does not depend on what runs: `never_fits`, `tenant_limit` or `constraint`."""

    code: str
    evidence: Evidence


# (kind, how many), sorted by memory.
Devices = tuple[tuple[Kind, int], ...]
# Memory and model of a device, its NVLink island and its NUMA node.
_Seat = tuple[int | None, str, int | None, int | None]


class NodeType(NamedTuple):
    """Nodes that no request can tell apart, when they are empty. `islands`, `numas`: the devices that reach each other
    over NVLink, or sit on one NUMA node, group by group."""

    cpu_milli: int
    memory_mb: int
    devices: Devices
    labels: tuple[tuple[str, str], ...]
    islands: tuple[Devices, ...] = ()
    numas: tuple[Devices, ...] = ()


class Inventory(NamedTuple):
    """What there is, empty: (type, how many nodes)."""

    types: tuple[tuple[NodeType, int], ...]


def impossible(
    request: Request,
    tenant: Tenant,
    nodes: Sequence[Node],
    policy: Policy = Policy(),
    *,
    is_online: bool = False,
) -> Verdict | None:
    """Why a request can never start as things stand, saying the largest that can; None: it may just have to wait.

    Judged on the empty cluster: what runs, cordons and health do not count. A model or a label that no node has is
    not impossible, as the next node or an edit may bring it; it waits with `constraint`. Without any node nothing is
    known of the hardware, and only the tenant's limits are judged.
    """
    return impossible_in(request, tenant, survey(nodes), policy, is_online=is_online)


def impossible_in(
    request: Request, tenant: Tenant, inventory: Inventory, policy: Policy = Policy(), *, is_online: bool = False
) -> Verdict | None:
    """Return the verdict of `impossible` for nodes that `survey` has counted already."""
    return (
        over_limit(request, tenant, inventory, policy)
        or too_large(request, inventory, policy)
        or beyond_part(request, inventory, policy, is_online=is_online)
    )


def survey(nodes: Iterable[Node], *, with_closed: bool = True, with_unhealthy: bool = True) -> Inventory:
    """Counts the types of nodes, with or without closed nodes and unhealthy devices."""
    # Most nodes are alike, so they are counted by what costs least to compare.
    alike: Counter[tuple[int, int, tuple[tuple[str, str], ...], tuple[_Seat, ...]]] = Counter()
    for node in nodes:
        if not (with_closed or (node.is_open and node.is_online)):
            continue
        seats = tuple(
            [
                (one.memory_mb, one.model, one.island, one.numa)
                for one in node.devices
                if one.is_healthy or with_unhealthy
            ]
        )
        alike[node.cpu_milli, node.memory_mb, tuple(sorted(node.labels.items())), seats] += 1
    found: Counter[NodeType] = Counter()
    for made, number in alike.items():
        found[_node_type(*made)] += number
    return Inventory(tuple(sorted(found.items())))


@lru_cache(1 << 12)
def _node_type(
    cpu_milli: int, memory_mb: int, labels: tuple[tuple[str, str], ...], seats: tuple[_Seat, ...]
) -> NodeType:
    kinds = [kind_of(Device(0, model, memory)) for memory, model, _, _ in seats]
    islands, numas = _groups(kinds, [seat[2] for seat in seats]), _groups(kinds, [seat[3] for seat in seats])
    return NodeType(cpu_milli, memory_mb, _count(kinds), labels, islands, numas)


def too_large(request: Request, inventory: Inventory, policy: Policy) -> Verdict | None:
    """`never_fits` if the nodes that match the request could not hold it, all of them empty."""
    types = matching(request, inventory)
    if not types or fits(request, types, policy):
        return None
    return Verdict("never_fits", {"what": _asked(request, policy), "largest": _largest(request, types, policy)})


def beyond_part(request: Request, inventory: Inventory, policy: Policy, *, is_online: bool) -> Verdict | None:
    """`never_fits` if an online job is larger than the online part of all GPUs."""
    if not (is_online and policy.online_percent and inventory.types):
        return None
    gpus = sum(number * count for node_type, count in inventory.types for _, number in node_type.devices)
    part = parts_of(gpus, policy).online
    if request.gpu_count <= part:
        return None
    asked = f"it asks for {request.gpu_count} GPUs for an online job"
    return Verdict("never_fits", {"what": asked, "largest": f"{part} GPUs, the cluster's online part"})


def unmatched(request: Request, inventory: Inventory) -> Verdict | None:
    """`constraint` if no node has the labels and models that the request names."""
    if matching(request, inventory):
        return None
    if not inventory.types:
        return Verdict("constraint", {"constraint": "the request: none has joined yet"})
    # Labels with a space are none of the user's: what the request needs of a node in words.
    names = [key if " " in key else f"label {key}={value}" for key, value in request.node_selector]
    if request.gpu_count and request.gpu_models:
        names.append(f"GPU model {' or '.join(request.gpu_models)}")
    return Verdict("constraint", {"constraint": " with ".join(names)})


def over_limit(request: Request, tenant: Tenant, inventory: Inventory, policy: Policy) -> Verdict | None:
    """`tenant_limit` if the request alone is more than its tenant may ever use."""
    found = excess(tenant, least_use(request, inventory, policy))
    if found is None:
        return None
    evidence = {
        "requested": found.requested,
        "dimension": found.dimension.name,
        "limit": found.limit,
        "tenant": tenant.name,
    }
    return Verdict("tenant_limit", evidence)


def least_use(request: Request, inventory: Inventory, policy: Policy) -> Use:
    """What the request takes of its tenant's limits at least: on the suitable devices with the least memory, each of
    some model among those that suit it (or that it names, where there is none)."""
    each = request.gpu_memory_mb or 0
    if not request.gpu_count:
        return use_of(request, 0)
    suitable = [
        kind
        for node_type, _ in matching(request, inventory)
        for kind, _ in node_type.devices
        if is_suitable(request, kind, policy)
    ]
    if not (request.shared and request.gpu_memory_mb is not None):
        each = max(min((kind.memory_mb for kind in suitable), default=each), 0)
    names = tuple(sorted({kind.model for kind in suitable})) or request.gpu_models
    return use_of(request, each * request.gpu_count, ((names, request.gpu_count),))


def matching(request: Request, inventory: Inventory) -> tuple[tuple[NodeType, int], ...]:
    """The types with the labels and, for jobs with GPUs, a device of a model that the request names."""
    return tuple(
        (node_type, count)
        for node_type, count in inventory.types
        if is_selected(request, node_type.labels)
        and (not request.gpu_count or _has_model(request.gpu_models, node_type.devices))
    )


def fits(request: Request, types: Iterable[tuple[NodeType, int]], policy: Policy) -> bool:
    """Would the request start if these nodes were empty and nobody else waited?"""
    types = tuple(types)
    for split in rank_counts(request, policy):
        rooms = [(_room(request, node_type, split, policy), count) for node_type, count in types]
        if any(ranks >= split for ranks, _ in rooms):
            return True
        if request.gang and policy.gangs and sum(ranks * count for ranks, count in rooms) >= split:
            return True
    return False


@lru_cache(1 << 12)
def _has_model(models: tuple[str, ...], devices: Devices) -> bool:
    # Memory aside: a model that is there but too small is a matter of size, not of matching.
    named = Request(gpu_count=1, gpu_models=models)
    return not models or any(is_suitable(named, kind, Policy()) for kind, _ in devices)


def suitable_gpus(request: Request, node_type: NodeType, policy: Policy) -> int:
    return _suitable(request, node_type.devices, policy)


def near(request: Request, node_type: NodeType, policy: Policy) -> list[int] | None:
    """How many suitable devices each group has whose nearness the request demands; None: it demands none."""
    groups = {"nvlink": node_type.islands, "numa": node_type.numas}.get(request.topology)
    return None if groups is None else [_suitable(request, group, policy) for group in groups]


def _suitable(request: Request, devices: Devices, policy: Policy) -> int:
    return sum(count for kind, count in devices if is_suitable(request, kind, policy))


def _count(kinds: Iterable[Kind]) -> Devices:
    return tuple(sorted(Counter(kinds).items()))


def _groups(kinds: Sequence[Kind], names: Sequence[int | None]) -> tuple[Devices, ...]:
    """`names`: the group of each device; a device without one is in none."""
    return tuple(
        _count(kind for kind, other in zip(kinds, names, strict=True) if other == name)
        for name in sorted({name for name in names if name is not None})
    )


def _room(request: Request, node_type: NodeType, split: int, policy: Policy) -> int:
    """How many of `split` ranks an empty node of this type holds; parts as in placement: rounded up."""
    ranks = split
    if request.gpu_count:
        each = request.gpu_count // split
        groups = near(request, node_type, policy) if each > 1 else None
        whole = [suitable_gpus(request, node_type, policy)] if groups is None else groups
        ranks = min(ranks, sum(gpus // each for gpus in whole))
    if request.cpu_milli > 0:
        ranks = min(ranks, node_type.cpu_milli // -(-request.cpu_milli // split))
    if request.memory_mb > 0:
        ranks = min(ranks, node_type.memory_mb // -(-request.memory_mb // split))
    return ranks


def _asked(request: Request, policy: Policy) -> str:
    if not rank_counts(request, policy):
        return f"{request.ranks} ranks do not divide {request.gpu_count} GPUs evenly"
    memory = f" of {request.gpu_memory_mb} MiB" if request.gpu_memory_mb else ""
    gpus = f"{request.gpu_count} GPUs{memory} with " if request.gpu_count else ""
    where = "over all nodes" if request.gang and policy.gangs else "on one node"
    where += f", with topology {request.topology}" if request.topology in ("nvlink", "numa") else ""
    cores = CPU_CORES.shown(request.cpu_milli)
    return f"it asks for {gpus}{cores} CPU cores and {request.memory_mb} MiB of memory {where}"


def _largest(request: Request, types: Sequence[tuple[NodeType, int]], policy: Policy) -> str:
    """The node that comes nearest to the request, as a request; for gangs, all the nodes that have such GPUs."""
    node_type, count = max(types, key=lambda found: (*_nearness(request, found[0], policy), found))
    suitable = [(kind, number) for kind, number in node_type.devices if is_suitable(request, kind, policy)]
    # Where no device is large enough the largest ones are the answer.
    offered = (suitable or node_type.devices[-1:]) if request.gpu_count else []
    gpus = sum(number for _, number in offered)
    memory_mb = min((kind.memory_mb for kind, _ in offered), default=0)
    groups = near(request, node_type, policy)
    gpus = gpus if groups is None else max(groups, default=1)
    nodes = count if request.gang and policy.gangs else 1
    of_memory = f" of {memory_mb} MiB" if memory_mb > 0 else ""
    gpu_words = f"{gpus * nodes} GPUs{of_memory} with " if gpus else ""
    where = "on one node" if nodes == 1 else f"over {nodes} nodes"
    cores = CPU_CORES.shown(node_type.cpu_milli * nodes)
    return f"{gpu_words}{cores} CPU cores and {node_type.memory_mb * nodes} MiB of memory {where}"


def _nearness(request: Request, node_type: NodeType, policy: Policy) -> tuple[int, int, int, int]:
    split = max(rank_counts(request, policy), default=1) if request.gang and policy.gangs else 1
    return (
        _room(request, node_type, split, policy),
        min(suitable_gpus(request, node_type, policy), request.gpu_count),
        max((kind.memory_mb for kind, _ in node_type.devices), default=0),
        node_type.cpu_milli,
    )
