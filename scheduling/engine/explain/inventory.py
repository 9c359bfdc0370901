"""Counts the hardware of the cluster, empty, and decides whether a request fits on it: for admission and the cycle."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from scheduling.engine.affinity import NO_SCHEDULE, Taint, untolerated
from scheduling.engine.board.board import DeviceClass, kind_of
from scheduling.engine.board.shapes import is_selected, is_suitable, rank_counts
from scheduling.engine.limits.quotas import Use, use_of
from scheduling.engine.model import Device, Node, Policy, Request

# (kind, how many), sorted by memory.
Devices = tuple[tuple[DeviceClass, int], ...]
# Memory and model of a device, its NVLink island and its NUMA node.
_Seat = tuple[int | None, str, int | None, int | None]


class NodeType(NamedTuple):
    """Nodes that no request can tell apart when they are empty. `islands`, `numas`: the devices that are connected by
    NVLink or share a NUMA node, group by group. `taints`: those with the effect NoSchedule, sorted."""

    cpu_milli: int
    memory_mb: int
    devices: Devices
    labels: tuple[tuple[str, str], ...]
    islands: tuple[Devices, ...] = ()
    numas: tuple[Devices, ...] = ()
    taints: tuple[Taint, ...] = ()


# (type, how many nodes).
Types = tuple[tuple[NodeType, int], ...]


class Inventory(NamedTuple):
    """The hardware of a cluster, empty. `cache`: the results of `matching`."""

    types: Types
    cache: dict[Hashable, Types]


def inventory_of(nodes: Iterable[Node], *, with_closed: bool = True, with_unhealthy: bool = True) -> Inventory:
    """Count the types of nodes, with or without closed nodes and unhealthy devices."""
    counts: Counter[NodeType] = Counter()
    for node in nodes:
        if with_closed or (node.is_open and node.is_online):
            counts[node.derived("type", with_unhealthy, partial(_type_of, node, with_unhealthy))] += 1
    return Inventory(tuple(sorted(counts.items())), {})


def _type_of(node: Node, with_unhealthy: bool) -> NodeType:
    seats = tuple(
        [
            (device.memory_mb, device.model, device.island, device.numa)
            for device in node.devices
            if device.is_healthy or with_unhealthy
        ]
    )
    taints = tuple(sorted(taint for taint in node.taints if taint.effect == NO_SCHEDULE)) if node.taints else ()
    return _node_type(node.cpu_milli, node.memory_mb, tuple(sorted(node.labels.items())), seats, taints)


@lru_cache(1 << 12)
def _node_type(
    cpu_milli: int,
    memory_mb: int,
    labels: tuple[tuple[str, str], ...],
    seats: tuple[_Seat, ...],
    taints: tuple[Taint, ...],
) -> NodeType:
    kinds = [kind_of(Device(0, model, memory)) for memory, model, _, _ in seats]
    islands, numas = _groups(kinds, [seat[2] for seat in seats]), _groups(kinds, [seat[3] for seat in seats])
    return NodeType(cpu_milli, memory_mb, _count(kinds), labels, islands, numas, taints)


def matching(request: Request, inventory: Inventory) -> Types:
    """Return the types with the labels and, for jobs with GPUs, a device of a model that the request names.

    Their labels are removed, as they often distinguish each node from all others.
    """
    models = request.gpu_models if request.gpu_count else None
    key = request.node_selector, request.required, models
    if key not in inventory.cache:
        inventory.cache[key] = _merged(
            (node_type, count)
            for node_type, count in inventory.types
            if is_selected(request, node_type.labels) and (models is None or has_model(models, node_type.devices))
        )
    return inventory.cache[key]


def eligible(request: Request, inventory: Inventory) -> Types:
    """Return the matching types whose taints the request tolerates."""
    types = matching(request, inventory)
    if not any([node_type.taints for node_type, _ in types]):
        return types
    return tuple(entry for entry in types if not untolerated(entry[0].taints, request.tolerations, request.gpu_count))


def _merged(types: Iterable[tuple[NodeType, int]]) -> Types:
    counts: Counter[NodeType] = Counter()
    for node_type, count in types:
        counts[node_type._replace(labels=()) if node_type.labels else node_type] += count
    return tuple(sorted(counts.items()))


class Offer(NamedTuple):
    """The capacity of an empty node for a request. `groups`: its suitable GPUs by island or NUMA node, if the request
    requires them near each other."""

    cpu_milli: int
    memory_mb: int
    gpus: int
    groups: tuple[int, ...] | None


# (offer, how many nodes have this capacity).
Offers = tuple[tuple[Offer, int], ...]


def fits(request: Request, types: Types, policy: Policy) -> bool:
    """Return whether the request would start if these nodes were empty and no other job waited."""
    splits = rank_counts(request, policy)
    node_offers = offers(request, types, policy) if splits else ()
    return any(holds(request, node_offers, split, policy) for split in splits)


def offers(request: Request, types: Types, policy: Policy) -> Offers:
    """Return the capacity of the nodes for any request for GPUs of this sort; their number does not matter."""
    counts: Counter[Offer] = Counter()
    for node_type, count in types:
        groups = near(request, node_type, policy)
        gpus = suitable_gpus(request, node_type, policy) if request.gpu_count else 0
        counts[Offer(node_type.cpu_milli, node_type.memory_mb, gpus, groups)] += count
    return tuple(counts.items())


def holds(request: Request, node_offers: Offers, split: int, policy: Policy) -> bool:
    """Return whether one of the nodes, or all of them for a gang, hold the request in so many ranks."""
    total, spreads = 0, request.gang and policy.gangs
    for offer, count in node_offers:
        ranks = ranks_that_fit(request, offer, split)
        total += ranks * count if spreads else 0
        if ranks >= split or total >= split:
            return True
    return False


def ranks_that_fit(request: Request, offer: Offer, split: int) -> int:
    """Return how many of `split` ranks an empty node with this offer holds; parts are rounded up as in placement."""
    ranks = split
    if request.gpu_count:
        each = request.gpu_count // split
        if offer.groups is None or each <= 1:
            ranks = min(ranks, offer.gpus // each)
        else:
            ranks = min(ranks, sum([gpus // each for gpus in offer.groups]))
    if request.cpu_milli > 0:
        ranks = min(ranks, offer.cpu_milli // -(-request.cpu_milli // split))
    if request.memory_mb > 0:
        ranks = min(ranks, offer.memory_mb // -(-request.memory_mb // split))
    return ranks


def minimum_use(request: Request, types: Types, policy: Policy) -> Use:
    """Return the minimum that the request takes of its tenant's limits: on the suitable devices with the least memory.

    Each device is of some model among the suitable ones (or the named ones, if none is suitable). `types`: those that
    match the request.
    """
    each = request.gpu_memory_mb or 0
    if not request.gpu_count:
        return use_of(request, 0)
    suitable = [kind for node_type, _ in types for kind, _ in node_type.devices if is_suitable(request, kind, policy)]
    if not (request.shared and request.gpu_memory_mb is not None):
        each = max(min((kind.memory_mb for kind in suitable), default=each), 0)
    names = tuple(sorted({kind.model for kind in suitable})) or request.gpu_models
    return use_of(request, each * request.gpu_count, ((names, request.gpu_count),))


@lru_cache(1 << 12)
def has_model(models: tuple[str, ...], devices: Devices) -> bool:
    # Memory aside: a model that is there but too small is a matter of size, not of matching.
    named = Request(gpu_count=1, gpu_models=models)
    return not models or any(is_suitable(named, kind, Policy()) for kind, _ in devices)


def suitable_gpus(request: Request, node_type: NodeType, policy: Policy) -> int:
    return _suitable(request, node_type.devices, policy)


def near(request: Request, node_type: NodeType, policy: Policy) -> tuple[int, ...] | None:
    """Return how many suitable devices each group has, if the request requires them near each other; else None."""
    groups = {"nvlink": node_type.islands, "numa": node_type.numas}.get(request.topology)
    return None if groups is None else tuple(_suitable(request, group, policy) for group in groups)


def _suitable(request: Request, devices: Devices, policy: Policy) -> int:
    return sum(count for kind, count in devices if is_suitable(request, kind, policy))


def _count(kinds: Iterable[DeviceClass]) -> Devices:
    return tuple(sorted(Counter(kinds).items()))


def _groups(kinds: Sequence[DeviceClass], names: Sequence[int | None]) -> tuple[Devices, ...]:
    """Count the devices of each group. `names`: the group of each device; a device without one is in none."""
    return tuple(
        _count(kind for kind, other in zip(kinds, names, strict=True) if other == name)
        for name in sorted({name for name in names if name is not None})
    )
