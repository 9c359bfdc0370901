"""The capacity of one node that hard bookings leave to other jobs, now and at each of their starts."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

from scheduling.engine.board.node_slot import NodeSlot
from scheduling.engine.model import Booking, RankPlacement

# CPU in millicores and memory in MiB.
Amount = tuple[int, int]
# From one moment until another, so much CPU and memory is in use.
Span = tuple[float, float, int, int]


class NodeLoad(NamedTuple):
    """The use of a node. `cpu_milli`, `memory_mb`: its capacity for jobs; `used`: the ranks that run beside the
    bookings, each with its end; `active`: what each active booking takes until its end."""

    cpu_milli: int
    memory_mb: int
    used: Sequence[tuple[float, RankPlacement]]
    active: Sequence[Amount]


class BookedNode:
    """A node with hard bookings. `starts`: the distinct starts ahead.

    A job fits beside the bookings if it fits now and at each start before its end: between two starts, capacity only
    becomes free. What is free at the starts is computed when it is first needed: most nodes of most cycles do not
    need it.
    """

    __slots__ = (
        "_cpu_milli",
        "_devices",
        "_first_devices",
        "_load",
        "_memory_mb",
        "_taken",
        "_window_starts",
        "_windows",
        "active",
        "starts",
    )

    def __init__(
        self, now: float, bookings: Iterable[tuple[Booking, RankPlacement]], load: Callable[[], NodeLoad]
    ) -> None:
        """`bookings`: those on this node in the order of their starts, each with its part of the node. `load`: returns
        what uses the node when the cycle begins."""
        self.active: list[tuple[Booking, RankPlacement]] = []
        self._windows: list[tuple[float, float, RankPlacement]] = []
        for booking, rank in bookings:
            if booking.starts_at <= now:
                self.active.append((booking, rank))
            else:
                self._windows.append((booking.starts_at, booking.ends_at, rank))
        self._window_starts = [start for start, _, _ in self._windows]
        # The devices of the first windows, for each number of them; filled as far as needed.
        self._first_devices: list[frozenset[int]] = [frozenset()]
        # The start, the end and the devices of each booking; filled when it is first needed.
        self._devices: list[tuple[float, float, frozenset[int]]] = []
        self.starts = list(dict.fromkeys(self._window_starts))
        self._load = load
        # What the cycle has taken before the capacity at each start was needed.
        self._taken: list[Span] = []
        self._cpu_milli: list[int] | None = None
        self._memory_mb: list[int] = []

    def take(self, rank: RankPlacement, from_at: float, until: float, sign: int = 1) -> None:
        """Count a rank that runs beside the bookings from one moment until another; with sign -1, no longer."""
        cpu_milli, memory_mb = sign * rank.cpu_milli, sign * rank.memory_mb
        if self._cpu_milli is None:
            self._taken.append((from_at, until, cpu_milli, memory_mb))
            return
        for index in range(bisect_left(self.starts, from_at), bisect_left(self.starts, until)):
            self._cpu_milli[index] -= cpu_milli
            self._memory_mb[index] -= memory_mb

    def allows(self, rank: RankPlacement, until: float) -> bool:
        """Return whether the bookings ahead leave room for a rank from now until then."""
        booked = self.booked_devices(-inf, until)
        if any(hold.device_id in booked for hold in rank.holds):
            return False
        cpu_milli, memory_mb = self.smallest_amounts(-inf, until)
        return (not rank.cpu_milli or cpu_milli >= rank.cpu_milli) and (
            not rank.memory_mb or memory_mb >= rank.memory_mb
        )

    def smallest_amounts(self, from_at: float, until: float) -> tuple[float, float]:
        """Return the least CPU and memory that are free at a start after `from_at` and before `until`; inf without
        one."""
        first, last = bisect_right(self.starts, from_at), bisect_left(self.starts, until)
        if first >= last:
            return inf, inf
        cpu_milli = self._settled()
        return min(cpu_milli[first:last]), min(self._memory_mb[first:last])

    def narrow_amounts(self, slot: NodeSlot, from_at: float, until: float) -> None:
        """Leave on the slot the CPU and memory that are free at each start after `from_at` and before `until`."""
        first, last = bisect_right(self.starts, from_at), bisect_left(self.starts, until)
        if first < last:
            cpu_milli = self._settled() if self._cpu_milli is None else self._cpu_milli
            slot.cpu_milli = min(slot.cpu_milli, min(cpu_milli[first:last]))
            slot.memory_mb = min(slot.memory_mb, min(self._memory_mb[first:last]))

    def next_start(self, at: float) -> float | None:
        """Return the first start from this moment on; None: there is none."""
        index = bisect_left(self.starts, at)
        return self.starts[index] if index < len(self.starts) else None

    def booked_devices(self, from_at: float, until: float) -> frozenset[int]:
        """Return the devices of the bookings that start after `from_at` and before `until`."""
        first, last = bisect_right(self._window_starts, from_at), bisect_left(self._window_starts, until)
        if first:
            return frozenset([hold.device_id for _, _, rank in self._windows[first:last] for hold in rank.holds])
        for _, _, rank in self._windows[len(self._first_devices) - 1 : last]:
            devices = [hold.device_id for hold in rank.holds]
            self._first_devices.append(self._first_devices[-1].union(devices))
        return self._first_devices[last]

    def number_booked(self, free: Mapping[int, Sequence[int]], at: float, until: float) -> int:
        """Return how many of these devices are booked at a moment, or from a start after it and before `until`. `free`:
        as in NodeSlot."""
        if not self._devices:
            bookings = [(booking.starts_at, booking.ends_at, rank) for booking, rank in self.active] + self._windows
            self._devices = [
                (start, end, frozenset([hold.device_id for hold in rank.holds])) for start, end, rank in bookings
            ]
        booked: set[int] = set()
        for start, end, device_ids in self._devices:
            if start >= until:
                break
            if end > at:
                booked |= device_ids
        return sum([len(booked.intersection(ids)) for ids in free.values()]) if booked else 0

    def booked_at(self, at: float, remaining: Sequence[Amount]) -> tuple[Amount, list[int]]:
        """Return the CPU and memory, and the devices, of the bookings that are active at a moment. `remaining`: what
        the jobs inside each booking that is active now leave of it."""
        cpu_milli = memory_mb = 0
        devices: list[int] = []
        amounts = [
            (amount, rank)
            for (booking, rank), amount in zip(self.active, remaining, strict=True)
            if booking.ends_at > at
        ]
        begun = self._windows[: bisect_right(self._window_starts, at)]
        amounts += [((rank.cpu_milli, rank.memory_mb), rank) for _, end, rank in begun if at < end]
        for amount, rank in amounts:
            cpu_milli, memory_mb = cpu_milli + amount[0], memory_mb + amount[1]
            devices += [hold.device_id for hold in rank.holds]
        return (cpu_milli, memory_mb), devices

    def _settled(self) -> list[int]:
        """Return the CPU that is free at each start, and compute the memory as well."""
        if self._cpu_milli is not None:
            return self._cpu_milli
        load, starts, count = self._load(), self.starts, len(self.starts)
        spans: list[Span] = [(-inf, end, rank.cpu_milli, rank.memory_mb) for end, rank in load.used]
        spans += [
            (-inf, booking.ends_at, *amount) for (booking, _), amount in zip(self.active, load.active, strict=True)
        ]
        spans += [(start, end, rank.cpu_milli, rank.memory_mb) for start, end, rank in self._windows]
        # Differences between a start and the one before it: sums of them are what is in use at each.
        cpu_used, memory_used = [0] * (count + 1), [0] * (count + 1)
        for from_at, until, cpu_milli, memory_mb in spans + self._taken:
            first, last = bisect_left(starts, from_at), bisect_left(starts, until)
            if first < last:
                cpu_used[first] += cpu_milli
                cpu_used[last] -= cpu_milli
                memory_used[first] += memory_mb
                memory_used[last] -= memory_mb
        self._memory_mb = [load.memory_mb - used for used in accumulate(memory_used[:count])]
        self._cpu_milli = [load.cpu_milli - used for used in accumulate(cpu_used[:count])]
        return self._cpu_milli
