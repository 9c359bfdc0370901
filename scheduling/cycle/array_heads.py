"""Select the array elements for the engine: as many of each array as could start now, and why the others wait."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, nextafter
from typing import NamedTuple

from gpusched.lib.bus import events
from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import prepared_rows
from gpusched.protocol.reasons import Pending
from scheduling.engine.model import ELEMENT_ID_STEP, Device, Job, Node, PendingGroup, Request

# Maximum elements of all arrays in a cycle, more than it places, and minimum elements of each array.
MAX_SHOWN, MIN_SHOWN = 1600, 8
_OPEN = """
    SELECT a.id, a.array_max_parallel,
           CASE WHEN a.state = 'held' OR a.open_dependencies > 0 THEN 0 ELSE a.elements_waiting END,
           (SELECT count(*) FROM jobs_all e
             WHERE e.array_id = a.id AND e.state IN ('scheduled', 'running', 'stopping'))
      FROM jobs_all a WHERE a.array_count IS NOT NULL AND a.state IN ('pending', 'held', 'running') ORDER BY a.id
"""


class OpenArray(NamedTuple):
    """An array that has not ended: how many of its elements wait for capacity and limits, and how many are live."""

    id: int
    max_parallel: int | None
    waiting: int
    live: int


@dataclass(frozen=True)
class ArrayView:
    """`jobs`: elements for the engine. `hidden_counts`: (last element of an array, how many wait behind it).
    `pending_groups`: elements held back by `max_parallel`, with their reason. `hidden`: those of them that are already
    jobs. `first`: array → the element that waits again and comes before its next new one."""

    jobs: tuple[Job, ...] = ()
    hidden_counts: tuple[tuple[int, int], ...] = ()
    pending_groups: tuple[PendingGroup, ...] = ()
    hidden: frozenset[int] = frozenset()
    first: Mapping[int, int] = field(default_factory=dict)


_announced: Cache[None, Mapping[int, OpenArray]] = Cache()


def announce_changes(arrays: Sequence[OpenArray]) -> None:
    """Announce the arrays of which elements started or ended since the last call. Call it once per cycle: each change
    of an element leads to a cycle."""
    previous = _announced.last(None, {})
    events.changed("jobs", [array.id for array in arrays if previous.get(array.id) != array])
    _announced.put(None, {array.id: array for array in arrays})


def load_open_arrays() -> list[OpenArray]:
    return [OpenArray(*row) for row in prepared_rows(_OPEN)]


def represent(
    arrays: Sequence[OpenArray],
    heads: Mapping[int, Job],
    retried: Mapping[int, Sequence[Job]],
    now: float,
    worth_planning: Callable[[Job], float],
) -> ArrayView:
    """Return the elements for the engine. `heads`: the next element of each array with waiting ones, as a job with the
    array's id. `retried`: array → pending elements that are already jobs; they come first within `max_parallel`.
    `worth_planning`: how many elements of an array are worth planning."""
    jobs: list[Job] = []
    hidden_counts: list[tuple[int, int]] = []
    pending_groups: list[PendingGroup] = []
    hidden: set[int] = set()
    first: dict[int, int] = {}
    for array in arrays:
        free = inf if array.max_parallel is None else max(array.max_parallel - array.live, 0)
        eligible = sorted([job.id for job in retried.get(array.id, ()) if job.eligible_at <= now])
        late = eligible[int(free) :] if free < len(eligible) else []
        hidden.update(late)
        head, number = heads.get(array.id), 0
        if len(eligible) > len(late):
            first[array.id] = eligible[0]
        if head is not None and eligible:
            # Younger by less than the clock resolves: after them, and before the jobs that were submitted later.
            head = replace(head, queued_at=nextafter(head.queued_at, inf))
        if head is not None:
            worth = worth_planning(head) if head.eligible_at <= now else 1
            number = int(min(array.waiting, free - len(eligible) + len(late), worth))
            jobs += [replace(head, id=head.id + n * ELEMENT_ID_STEP) for n in range(number)]
            if 0 < number < array.waiting:
                hidden_counts.append((head.id + (number - 1) * ELEMENT_ID_STEP, array.waiting - number))
        if ids := (*late, *([array.id] if head is not None and not number else [])):
            counts = {"limit": array.max_parallel, "in_use": array.live, "ahead": len(eligible) - len(late)}
            pending_groups.append(PendingGroup(ids, Pending.MAX_PARALLEL, counts))
    return ArrayView(tuple(jobs), tuple(hidden_counts), tuple(pending_groups), frozenset(hidden), first)


def elements_worth_planning(nodes: Sequence[Node] | None, maximum: int) -> Callable[[Job], float]:
    """Return a function that returns how many elements of an array are worth planning: as many as would fit if the free
    capacity of all nodes were one node (None: no such limit), plus one, up to `maximum`. If a cycle places all of them,
    another cycle follows."""
    if nodes is None:
        return lambda job: maximum
    free = _FreeCapacity(nodes)
    cached: dict[int, float] = {}  # by identity: hashing a request costs more than this saves

    def worth(job: Job) -> float:
        if id(job.request) not in cached:
            cached[id(job.request)] = min(free.fitting(job.request) + 1, maximum)
        return cached[id(job.request)]

    return worth


class _FreeCapacity:
    """The total free capacity of open nodes, counted on first use: most cycles have no open array."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes

    @cached_property
    def _served(self) -> list[Node]:
        return [node for node in self._nodes if node.is_open and node.is_online]

    @cached_property
    def cpu_milli(self) -> int:
        return max(sum(node.cpu_milli_free for node in self._served), 0)

    @cached_property
    def memory_mb(self) -> int:
        return max(sum(node.memory_mb_free for node in self._served), 0)

    @cached_property
    def devices(self) -> list[Device]:
        return [device for node in self._served for device in node.devices if not device.exclusive]

    @cached_property
    def whole(self) -> int:
        return sum(not device.shared_mb for device in self.devices)

    def fitting(self, request: Request) -> float:
        counts = [inf]
        if request.gpu_count:
            counts.append((self._shares(request) if request.shared else self.whole) // request.gpu_count)
        if request.cpu_milli:
            counts.append(self.cpu_milli // request.cpu_milli)
        if request.memory_mb:
            counts.append(self.memory_mb // request.memory_mb)
        return min(counts)

    def _shares(self, request: Request) -> int:
        size = max(request.gpu_memory_mb or 1, 1)
        return sum(((device.memory_mb or 0) - device.shared_mb) // size for device in self.devices)
