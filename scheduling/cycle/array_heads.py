"""What of arrays the engine is to see: of each as many elements as could start now, and why the others wait."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from gpusched.lib.bus import events
from gpusched.lib.db.sql import rows
from gpusched.protocol.reasons import Pending
from scheduling.engine.model import ELEMENT_ID_STEP, Job, Node, PendingGroup, Request

# Of all arrays together so many elements are shown to one cycle, more than it places, but of each at least so many.
MAX_SHOWN, MIN_SHOWN = 1600, 8
_OPEN = """
    SELECT a.id, a.array_max_parallel,
           CASE WHEN a.state = 'held' OR a.open_dependencies > 0 THEN 0 ELSE a.elements_waiting END,
           (SELECT count(*) FROM jobs_all e
             WHERE e.array_id = a.id AND e.state IN ('scheduled', 'running', 'stopping'))
      FROM jobs_all a WHERE a.array_count IS NOT NULL AND a.state IN ('pending', 'held', 'running') ORDER BY a.id
"""


class OpenArray(NamedTuple):
    """An array that is not over: how many of its elements could start but for room and limits, and are live."""

    id: int
    max_parallel: int | None
    waiting: int
    live: int


@dataclass(frozen=True)
class ArrayView:
    """`jobs`: elements for the engine; `behind`: (the last of an array, how many wait behind it); `waits`: those for
    which `max_parallel` leaves no room, with their reason; `hidden`: those of them that are jobs already."""

    jobs: tuple[Job, ...] = ()
    behind: tuple[tuple[int, int], ...] = ()
    waits: tuple[PendingGroup, ...] = ()
    hidden: frozenset[int] = frozenset()


_told: dict[int, OpenArray] = {}


def announce_changes(arrays: Sequence[OpenArray]) -> None:
    """Lets those who watch arrays know that elements of them started or ended since this was last asked. Once a cycle:
    each change of an element leads to one."""
    if news := [array.id for array in arrays if _told.get(array.id) != array]:
        events.changed("jobs", news)
    _told.clear()
    _told.update({array.id: array for array in arrays})


def opened() -> list[OpenArray]:
    return [OpenArray(*row) for row in rows(_OPEN)]


def shown(
    arrays: Sequence[OpenArray],
    heads: Mapping[int, Job],
    again: Mapping[int, Sequence[Job]],
    now: float,
    most: Callable[[Job], float],
) -> ArrayView:
    """`heads`: the next element of each array of which some wait, as a job with the array's id; `again`: array → those
    that are jobs already and wait. Those come first: of `max_parallel` they take what is left. `most`: how many of an
    array are worth looking at."""
    jobs: list[Job] = []
    behind: list[tuple[int, int]] = []
    waits: list[PendingGroup] = []
    hidden: set[int] = set()
    for array in arrays:
        left = inf if array.max_parallel is None else max(array.max_parallel - array.live, 0)
        known = sorted([job.id for job in again.get(array.id, ()) if job.eligible_at <= now])
        late = known[int(left) :] if left < len(known) else []
        hidden.update(late)
        head, number = heads.get(array.id), 0
        if head is not None:
            worth = most(head) if head.eligible_at <= now else 1
            number = int(min(array.waiting, left - len(known) + len(late), worth))
            jobs += [replace(head, id=head.id + n * ELEMENT_ID_STEP) for n in range(number)]
            if 0 < number < array.waiting:
                behind.append((head.id + (number - 1) * ELEMENT_ID_STEP, array.waiting - number))
        if ids := (*late, *([array.id] if head is not None and not number else [])):
            waits.append(PendingGroup(ids, Pending.MAX_PARALLEL, {"limit": array.max_parallel, "in_use": array.live}))
    return ArrayView(tuple(jobs), tuple(behind), tuple(waits), frozenset(hidden))


def elements_worth_planning(nodes: Sequence[Node] | None, most: int) -> Callable[[Job], float]:
    """How many elements of an array are worth looking at: as many as would start if the free parts of all nodes were
    one (None: so that does not matter), and the next, up to `most`. A cycle that dealt with all is followed by another.
    """
    if nodes is None:
        return lambda job: most
    free = _Free(nodes)
    known: dict[int, float] = {}  # by identity: hashing a request costs more than this saves

    def worth(job: Job) -> float:
        if id(job.request) not in known:
            known[id(job.request)] = min(free.fitting(job.request) + 1, most)
        return known[id(job.request)]

    return worth


class _Free:
    """What is free on open nodes, all together."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        served = [node for node in nodes if node.is_open and node.is_online]
        self.cpu_milli = max(sum(node.cpu_milli_free for node in served), 0)
        self.memory_mb = max(sum(node.memory_mb_free for node in served), 0)
        self.devices = [device for node in served for device in node.devices if not device.exclusive]
        self.whole = sum(not device.shared_mb for device in self.devices)

    def fitting(self, request: Request) -> float:
        found = [inf]
        if request.gpu_count:
            found.append((self._shares(request) if request.shared else self.whole) // request.gpu_count)
        if request.cpu_milli:
            found.append(self.cpu_milli // request.cpu_milli)
        if request.memory_mb:
            found.append(self.memory_mb // request.memory_mb)
        return min(found)

    def _shares(self, request: Request) -> int:
        size = max(request.gpu_memory_mb or 1, 1)
        return sum(((device.memory_mb or 0) - device.shared_mb) // size for device in self.devices)
