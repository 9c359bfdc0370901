"""Chooses the devices of one node that a request would take: how many ranks fit, and which devices each gets."""

from collections.abc import Iterator, Sequence

from scheduling.engine.board.node_classes import DeviceChoice, DevicePick, NodeCapacity, NodeClass, Shared
from scheduling.engine.board.node_slot import NodeSlot
from scheduling.engine.board.shapes import Shape


def device_choices(
    state: NodeCapacity, shape: Shape, split: int, ranks: int, *, is_cheapest: bool = False
) -> Iterator[DeviceChoice]:
    """Ways to put `ranks` of `split` ranks on a node in this state, the tightest first; none if they do not fit.

    There is more than one way only where a job could share this device or that. `is_cheapest`: by the memory of the
    devices alone, neither heat nor a preferred nearness counts.
    """
    gpus, cpu_milli, memory_mb = shape.part(split)
    if (cpu_milli > 0 and state.cpu_milli < cpu_milli * ranks) or (
        memory_mb > 0 and state.memory_mb < memory_mb * ranks
    ):
        return
    if not gpus:
        yield DeviceChoice(((),) * ranks, 0, 0, 0, state.free, state.shared)
        return
    units = _units(state.mould, state.free, state.shared, shape)
    if gpus == ranks == 1 and shape.share_mb is not None:
        for unit in units:
            yield _made(state, shape, [(unit._replace(number=1),)], 0)
        return
    if is_cheapest:
        units.sort(key=lambda unit: (unit.taken < 0, state.mould.made[unit.at].memory_mb))
    picked = _picked(state.mould, units, shape, gpus, ranks, is_cheapest)
    if picked is not None:
        yield _made(state, shape, *picked)


def room(slot: NodeSlot, shape: Shape, split: int) -> int:
    """How many of `split` ranks fit on the node now; devices are not shared between ranks of one job."""
    if shape.request.apart and slot.apart.get(shape.request.apart):
        return 0
    return capacity(slot, shape, split)


def capacity(slot: NodeSlot, shape: Shape, split: int) -> int:
    """The same, whoever must be kept apart."""
    gpus, cpu_milli, memory_mb = shape.part(split)
    if gpus > 1 and shape.is_local:
        units = _units(slot.mould, *slot.counted(), shape)
        ranks = sum(_available(units, group) // gpus for group in slot.mould.groups[shape.near])
    else:
        ranks = suitable_free(slot, shape) // gpus if gpus else split
    if cpu_milli > 0:
        ranks = min(ranks, slot.cpu_milli // cpu_milli)
    if memory_mb > 0:
        ranks = min(ranks, slot.memory_mb // memory_mb)
    return max(min(ranks, split), 0)


def suitable_free(slot: NodeSlot, shape: Shape) -> int:
    """How many devices of the node could take the request now, CPU and memory aside."""
    suits = shape.limits_mb
    number = 0
    for kind, ids in slot.free.items():
        if kind in suits:
            number += len(ids)
    if slot.shared and shape.share_mb is not None:
        compute, kind_of = slot.compute, slot.kind_of
        for device_id, taken in slot.shared.items():
            number += shape.left_beside(kind_of[device_id], taken, compute.get(device_id, -1.0)) >= 0
    return number


def ids_of(slot: NodeSlot, choice: DeviceChoice) -> list[list[int]]:
    """The devices of each rank: of each kind the ones with the lowest ids."""
    used: dict[tuple[int, int, float], int] = {}
    found: list[list[int]] = []
    for picks in choice.ranks:
        ids: list[int] = []
        for index, count, taken, compute in picks:
            kind = slot.mould.kinds[index]
            first = used.get((kind, taken, compute), 0)
            used[(kind, taken, compute)] = first + count
            alike = slot.free[kind] if taken < 0 else _sharing(slot, kind, taken, compute)
            ids.extend(alike[first : first + count])
        found.append(ids)
    return found


def _sharing(slot: NodeSlot, kind: int, taken: int, compute: float) -> list[int]:
    return sorted(
        device_id
        for device_id, taken_of_it in slot.shared.items()
        if taken_of_it == taken and slot.kind_of[device_id] == kind and slot.compute.get(device_id, -1.0) == compute
    )


def _units(mould: NodeClass, free: tuple[int, ...], shared: Shared, shape: Shape) -> list[DevicePick]:
    """What the request may take, in the order in which it should: the fullest shared devices, then free ones, cool
    before hot, small before large."""
    suits = shape.limits_mb
    units: list[DevicePick] = []
    if shape.share_mb is not None and shared:
        open_shares: dict[tuple[int, int, int, float], int] = {}
        for kind, taken, compute in shared:
            left = shape.left_beside(kind, taken, compute)
            if left >= 0:
                key = (left, mould.kinds.index(kind), taken, compute)
                open_shares[key] = open_shares.get(key, 0) + 1
        units = [DevicePick(index, count, taken, use) for (_, index, taken, use), count in sorted(open_shares.items())]
    units.extend(
        [DevicePick(index, free[index]) for index, kind in enumerate(mould.kinds) if free[index] and kind in suits]
    )
    return units


def _available(units: Sequence[DevicePick], group: Sequence[int]) -> int:
    return sum(unit.number for unit in units if unit.at in group)


def _picked(
    mould: NodeClass, units: list[DevicePick], shape: Shape, gpus: int, ranks: int, is_cheapest: bool
) -> tuple[list[tuple[DevicePick, ...]], int] | None:
    """Devices for each rank, and how many ranks miss the locality that they prefer; None: they do not fit."""
    picked: list[tuple[DevicePick, ...]] = []
    misses = 0
    wants_group = shape.is_local if is_cheapest else len(mould.kinds) > 1 or shape.near != "cell"
    for _ in range(ranks):
        group = _tightest_group(mould, units, mould.groups[shape.near], gpus, is_cheapest) if wants_group else None
        if group is None and gpus > 1 and shape.near != "cell":
            if shape.is_local:
                return None
            misses += 1
        taken = _first(units, gpus, group)
        if taken is None:
            return None
        picked.append(taken)
        units = _less(units, taken)
    return picked, misses


def _tightest_group(
    mould: NodeClass, units: list[DevicePick], groups: tuple[tuple[int, ...], ...], gpus: int, is_cheapest: bool
) -> tuple[int, ...] | None:
    """The group with the fewest devices left that has enough; among those with the coolest, smallest devices."""
    best: tuple[tuple[int, int], int, tuple[int, ...]] | None = None
    for group in groups:
        available = _available(units, group)
        if available >= gpus:
            taken = _first(units, gpus, group) or ()
            hot, opened_mb = _price(mould, taken)
            rated = ((0 if is_cheapest else hot, opened_mb), available, group)
            best = rated if best is None or rated < best else best
    return None if best is None else best[2]


def _first(units: Sequence[DevicePick], gpus: int, group: Sequence[int] | None) -> tuple[DevicePick, ...] | None:
    taken: list[DevicePick] = []
    for unit in units:
        if group is None or unit.at in group:
            taken.append(unit if unit.number <= gpus else unit._replace(number=gpus))
            gpus -= taken[-1].number
            if not gpus:
                return tuple(taken)
    return None


def _less(units: list[DevicePick], taken: Sequence[DevicePick]) -> list[DevicePick]:
    gone = {(pick.at, pick.taken, pick.compute): pick.number for pick in taken}
    left = [unit._replace(number=unit.number - gone.get((unit.at, unit.taken, unit.compute), 0)) for unit in units]
    return [unit for unit in left if unit.number]


def _price(mould: NodeClass, picks: Sequence[DevicePick]) -> tuple[int, int]:
    """(Hot devices, MiB of the devices that are free until now)."""
    hot = opened_mb = 0
    for pick in picks:
        kind = mould.made[pick.at]
        hot += pick.number if kind.is_hot else 0
        if pick.taken < 0:
            opened_mb += pick.number * max(kind.memory_mb, 0)
    return hot, opened_mb


def _made(state: NodeCapacity, shape: Shape, picked: list[tuple[DevicePick, ...]], misses: int) -> DeviceChoice:
    free, shared = list(state.free), list(state.shared)
    hot = opened_mb = 0
    for picks in picked:
        price = _price(state.mould, picks)
        hot, opened_mb = hot + price[0], opened_mb + price[1]
        for index, count, taken, compute in picks:
            kind = state.mould.kinds[index]
            if taken < 0:
                free[index] -= count
            else:
                for _ in range(count):
                    shared.remove((kind, taken, compute))
            if shape.share_mb is not None:
                shared.extend([(kind, max(taken, 0) + shape.share_mb, compute)] * count)
    return DeviceChoice(tuple(picked), hot, misses, opened_mb, tuple(free), tuple(sorted(shared)))
