"""Chooses the devices of one node for a request: how many ranks fit, and which devices each gets."""

from collections.abc import Iterator, Sequence

from scheduling.engine.board.node_classes import PER_HOT, DeviceChoice, DevicePick, NodeCapacity, NodeClass, Shared
from scheduling.engine.board.node_slot import NodeSlot
from scheduling.engine.board.shapes import Shape


def device_choices(
    state: NodeCapacity, shape: Shape, split: int, ranks: int, *, is_cheapest: bool = False
) -> Iterator[DeviceChoice]:
    """Yield ways to put `ranks` of `split` ranks on a node in this state, the tightest first; none if they do not fit.

    There are several ways only if a job could share one device or another. `is_cheapest`: minimize device memory alone;
    ignore heat and preferred locality.
    """
    gpus, cpu_milli, memory_mb = shape.part(split)
    if (cpu_milli > 0 and state.cpu_milli < cpu_milli * ranks) or (
        memory_mb > 0 and state.memory_mb < memory_mb * ranks
    ):
        return
    if not gpus:
        yield DeviceChoice(((),) * ranks, 0, 0, 0, state.free, state.shared)
        return
    units = _units(state.node_class, state.free, state.shared, shape)
    if gpus == ranks == 1 and shape.share_mb is not None:
        for unit in units:
            yield _device_choice(state, shape, [(unit._replace(number=1),)], 0)
        return
    if is_cheapest:
        units.sort(key=lambda unit: (unit.allocated_mb < 0, state.node_class.device_classes[unit.at].memory_mb))
    picked = _pick_ranks(state.node_class, units, shape, gpus, ranks, is_cheapest)
    if picked is not None:
        yield _device_choice(state, shape, *picked)


def ranks_that_fit(slot: NodeSlot, shape: Shape, split: int) -> int:
    """Return how many of `split` ranks fit on the node now; ranks of one job do not share devices."""
    if shape.request.apart and slot.anti_affinity_counts.get(shape.request.apart):
        return 0
    return rank_capacity(slot, shape, split)


def rank_capacity(slot: NodeSlot, shape: Shape, split: int) -> int:
    """Return how many of `split` ranks fit on the node now, ignoring anti-affinity."""
    gpus, cpu_milli, memory_mb = shape.part(split)
    if gpus > 1 and shape.is_local:
        units = _units(slot.node_class, *slot.counted(), shape)
        ranks = sum(_available(units, group) // gpus for group in slot.node_class.groups[shape.near])
    else:
        ranks = suitable_free(slot, shape) // gpus if gpus else split
    if cpu_milli > 0:
        ranks = min(ranks, slot.cpu_milli // cpu_milli)
    if memory_mb > 0:
        ranks = min(ranks, slot.memory_mb // memory_mb)
    return max(min(ranks, split), 0)


def suitable_free(slot: NodeSlot, shape: Shape) -> int:
    """Return how many devices of the node could serve the request now, ignoring CPU and memory."""
    suits = shape.limits_mb
    number = 0
    for kind, ids in slot.free.items():
        if kind in suits:
            number += len(ids)
    if slot.shared and shape.share_mb is not None:
        compute, kind_of = slot.compute, slot.kind_of
        for device_id, used_mb in slot.shared.items():
            number += shape.headroom_mb(kind_of[device_id], used_mb, compute.get(device_id, -1.0)) >= 0
    return number


def ids_of(slot: NodeSlot, choice: DeviceChoice) -> list[list[int]]:
    """Return the devices of each rank: of each kind those with the lowest ids."""
    used: dict[tuple[int, int, float], int] = {}
    ids_by_rank: list[list[int]] = []
    for picks in choice.ranks:
        ids: list[int] = []
        for index, count, used_mb, compute in picks:
            kind = slot.node_class.kinds[index]
            first = used.get((kind, used_mb, compute), 0)
            used[(kind, used_mb, compute)] = first + count
            identical = slot.free[kind] if used_mb < 0 else _sharing(slot, kind, used_mb, compute)
            ids.extend(identical[first : first + count])
        ids_by_rank.append(ids)
    return ids_by_rank


def _sharing(slot: NodeSlot, kind: int, used_mb: int, compute: float) -> list[int]:
    return sorted(
        device_id
        for device_id, allocated_mb in slot.shared.items()
        if allocated_mb == used_mb and slot.kind_of[device_id] == kind and slot.compute.get(device_id, -1.0) == compute
    )


def _units(node_class: NodeClass, free: tuple[int, ...], shared: Shared, shape: Shape) -> list[DevicePick]:
    """Return the devices that the request may use, in order of preference: the fullest shared devices, then free ones,
    cool before hot, small before large."""
    suits = shape.limits_mb
    units: list[DevicePick] = []
    if shape.share_mb is not None and shared:
        shares: dict[tuple[int, int, int, float], int] = {}
        for kind, used_mb, compute in shared:
            headroom_mb = shape.headroom_mb(kind, used_mb, compute)
            if headroom_mb >= 0:
                key = (headroom_mb, node_class.kinds.index(kind), used_mb, compute)
                shares[key] = shares.get(key, 0) + 1
        units = [DevicePick(index, count, used_mb, use) for (_, index, used_mb, use), count in sorted(shares.items())]
    units.extend(
        [DevicePick(index, free[index]) for index, kind in enumerate(node_class.kinds) if free[index] and kind in suits]
    )
    return units


def _available(units: Sequence[DevicePick], group: Sequence[int]) -> int:
    return sum(unit.number for unit in units if unit.at in group)


def _pick_ranks(
    node_class: NodeClass, units: list[DevicePick], shape: Shape, gpus: int, ranks: int, is_cheapest: bool
) -> tuple[list[tuple[DevicePick, ...]], int] | None:
    """Pick devices for each rank, and count the ranks that miss their preferred locality; None: they do not fit."""
    picked: list[tuple[DevicePick, ...]] = []
    misses = 0
    wants_group = shape.is_local if is_cheapest else len(node_class.kinds) > 1 or shape.near != "cell"
    for _ in range(ranks):
        group = (
            _tightest_group(node_class, units, node_class.groups[shape.near], gpus, is_cheapest)
            if wants_group
            else None
        )
        if group is None and gpus > 1 and shape.near != "cell":
            if shape.is_local:
                return None
            misses += 1
        picks = _pick_first(units, gpus, group)
        if picks is None:
            return None
        picked.append(picks)
        units = _without(units, picks)
    return picked, misses


def _tightest_group(
    node_class: NodeClass, units: list[DevicePick], groups: tuple[tuple[int, ...], ...], gpus: int, is_cheapest: bool
) -> tuple[int, ...] | None:
    """Return the group with the fewest devices left that has enough; of equal ones that with the coolest, smallest."""
    best: tuple[tuple[int, int], int, tuple[int, ...]] | None = None
    for group in groups:
        available = _available(units, group)
        if available >= gpus:
            picks = _pick_first(units, gpus, group) or ()
            hot, opened_mb = _price(node_class, picks)
            rated = ((0 if is_cheapest else hot, opened_mb), available, group)
            best = rated if best is None or rated < best else best
    return None if best is None else best[2]


def _pick_first(units: Sequence[DevicePick], gpus: int, group: Sequence[int] | None) -> tuple[DevicePick, ...] | None:
    picks: list[DevicePick] = []
    for unit in units:
        if group is None or unit.at in group:
            picks.append(unit if unit.number <= gpus else unit._replace(number=gpus))
            gpus -= picks[-1].number
            if not gpus:
                return tuple(picks)
    return None


def _without(units: list[DevicePick], picks: Sequence[DevicePick]) -> list[DevicePick]:
    picked = {(pick.at, pick.allocated_mb, pick.compute): pick.number for pick in picks}
    remaining = [
        unit._replace(number=unit.number - picked.get((unit.at, unit.allocated_mb, unit.compute), 0)) for unit in units
    ]
    return [unit for unit in remaining if unit.number]


def _price(node_class: NodeClass, picks: Sequence[DevicePick]) -> tuple[int, int]:
    """Return (hot and avoided devices as in `DeviceChoice.hot`, MiB of the devices that are free until now)."""
    hot = opened_mb = 0
    for pick in picks:
        kind = node_class.device_classes[pick.at]
        hot += pick.number * (PER_HOT * kind.is_hot + kind.is_avoided)
        if pick.allocated_mb < 0:
            opened_mb += pick.number * max(kind.memory_mb, 0)
    return hot, opened_mb


def _device_choice(
    state: NodeCapacity, shape: Shape, picked: list[tuple[DevicePick, ...]], misses: int
) -> DeviceChoice:
    free, shared = list(state.free), list(state.shared)
    hot = opened_mb = 0
    for picks in picked:
        price = _price(state.node_class, picks)
        hot, opened_mb = hot + price[0], opened_mb + price[1]
        for index, count, used_mb, compute in picks:
            kind = state.node_class.kinds[index]
            if used_mb < 0:
                free[index] -= count
            else:
                for _ in range(count):
                    shared.remove((kind, used_mb, compute))
            if shape.share_mb is not None:
                shared.extend([(kind, max(used_mb, 0) + shape.share_mb, compute)] * count)
    return DeviceChoice(tuple(picked), hot, misses, opened_mb, tuple(free), tuple(sorted(shared)))
