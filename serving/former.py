"""Form batches: decide which waiting requests go together to which replica, and when. Pure; the caller keeps all state.

A batch has requests of one endpoint and fits the free memory of its replica. Users of an endpoint are served by
deficit round-robin on cost (Shreedhar & Varghese, SIGCOMM 1995), and the requests of one user in their order. Endpoints
that share a replica take turns."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

# The payloads of a batch are in the memory of the web process while it is sent.
MAX_BATCH_BYTES = 64 << 20


class Flush(StrEnum):
    """Why a batch was formed when it was."""

    SIZE = "size"  # it has max_batch requests or MAX_BATCH_BYTES, or a request runs alone after a failed batch
    MEMORY = "memory"  # the next request does not fit, also if that is known from a batch that ran out of memory
    WAIT = "wait"  # its oldest request has waited max_wait
    IDLE = "idle"  # the replica is idle, and no other request is expected within max_wait
    DRAIN = "drain"  # the endpoint drains


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued request. `queued_at`: seconds, on the clock of `form`'s `now`. `is_alone`: its batch has no other.
    `size`: of its payload, in bytes."""

    id: int
    user: int
    cost: float
    queued_at: float
    memory_mb: int = 0
    is_alone: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class Credit:
    """Where the round-robin of an endpoint stopped: the cost that each user may still take in this round, and the user
    whose turn it is. Users without waiting requests keep no credit."""

    by_user: Mapping[int, float] = field(default_factory=dict)
    next_user: int | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """The waiting requests of an endpoint, each user's in their order. `arrivals_per_second`: the recent rate.
    `is_short_of_memory`: `max_batch` is reduced, since larger batches ran out of memory."""

    endpoint: int
    requests: Sequence[Waiting]
    max_batch: int
    max_wait_seconds: float
    arrivals_per_second: float = 0.0
    is_draining: bool = False
    credit: Credit = Credit()
    is_short_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that can take a batch now. `memory_mb` None: not limited. `turns`: the endpoints that it serves, the
    one that waited longest for a turn first."""

    id: int
    turns: Sequence[int]
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    replica: int
    endpoint: int
    requests: tuple[int, ...]
    reason: Flush


@dataclass(frozen=True, slots=True)
class Formed:
    """`credits`: of each endpoint after these batches. `again_at`: when the next batch becomes due by itself."""

    batches: tuple[Batch, ...]
    credits: Mapping[int, Credit]
    again_at: float | None


def form(queues: Iterable[Queue], replicas: Iterable[Replica], now: float) -> Formed:
    """Return the batches that are due, at most one for each of these free replicas.

    A replica stays free only if no batch is due that it could take."""
    open_queues = {queue.endpoint: _OpenQueue(queue) for queue in queues}
    batches: list[Batch] = []
    free = list(replicas)
    while True:
        due_times: list[float] = []
        formed = [_next_batch(replica, open_queues, now, due_times) for replica in free]
        batches += [batch for batch in formed if batch]
        if not any(formed):
            break
        # A batch may have uncovered a request that fits a replica which could take none before.
        free = [replica for replica, batch in zip(free, formed, strict=True) if batch is None]
    credits = {endpoint: queue.credit for endpoint, queue in open_queues.items()}
    return Formed(tuple(batches), credits, min(due_times, default=None))


def _next_batch(
    replica: Replica, open_queues: Mapping[int, "_OpenQueue"], now: float, due_times: list[float]
) -> Batch | None:
    """Take the batch that is due for this replica from its queue. If there is none, add to `due_times` when those that
    it could take become due."""
    for queue in [open_queues[endpoint] for endpoint in replica.turns if endpoint in open_queues]:
        selection = queue.select(replica.memory_mb)
        if not selection.requests:
            continue
        if reason := _reason(queue, selection, now):
            queue.take(selection)
            return Batch(replica.id, queue.queue.endpoint, tuple(request.id for request in selection.requests), reason)
        due_times.append(queue.oldest_at() + queue.queue.max_wait_seconds)
    return None


@dataclass(frozen=True, slots=True)
class _Selection:
    """The next batch of a queue, and the credit after it. `is_memory_full`: another request would not fit. `is_closed`:
    no other request may join."""

    requests: tuple[Waiting, ...]
    credit: Credit
    is_memory_full: bool
    is_closed: bool


def _reason(queue: "_OpenQueue", selection: _Selection, now: float) -> Flush | None:
    """Return why the batch is due now, or None if waiting may still bring a fuller one."""
    if selection.is_memory_full:
        return Flush.MEMORY
    if selection.is_closed or len(selection.requests) >= queue.queue.max_batch:
        return Flush.MEMORY if queue.queue.is_short_of_memory else Flush.SIZE
    if queue.queue.is_draining:
        return Flush.DRAIN
    remaining = queue.oldest_at() + queue.queue.max_wait_seconds - now
    if remaining <= 0:
        return Flush.WAIT
    return Flush.IDLE if queue.queue.arrivals_per_second * remaining < 1 else None


class _OpenQueue:
    """A queue while batches are taken from it."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.credit = queue, queue.credit
        self._by_user: dict[int, deque[Waiting]] = {}
        for request in queue.requests:
            self._by_user.setdefault(request.user, deque()).append(request)

    def oldest_at(self) -> float:
        return min(requests[0].queued_at for requests in self._by_user.values())

    def take(self, selection: _Selection) -> None:
        self.credit = selection.credit
        for request in selection.requests:
            self._by_user[request.user].popleft()
            if not self._by_user[request.user]:
                del self._by_user[request.user]

    def select(self, memory_mb: int | None) -> _Selection:
        """Return the next batch for a replica with this much free memory, by deficit round-robin.

        Each user in turn gets a quantum and spends it on requests. The quantum is the lowest cost at the head of a
        user's queue, so that each round serves a request, and a newcomer waits for one round only."""
        users = sorted(user for user, requests in self._by_user.items() if _fits(requests[0].memory_mb, memory_mb))
        positions = dict.fromkeys(users, 0)
        deficits = {user: self.credit.by_user.get(user, 0.0) for user in users}
        turn = next((n for n, user in enumerate(users) if user >= (self.credit.next_user or 0)), 0)
        turns = deque(users[turn:] + users[:turn])
        chosen: list[Waiting] = []
        used_mb, used_bytes, is_full, is_closed = 0, 0, False, False
        while turns and not is_closed and len(chosen) < self.queue.max_batch:
            quantum = min(self._by_user[user][positions[user]].cost for user in turns)
            user = turns[0]
            head = self._by_user[user][positions[user]]
            if deficits[user] < head.cost:
                deficits[user] += quantum
            if deficits[user] < head.cost:
                turns.rotate(-1)
                continue
            is_full = not _fits(used_mb + head.memory_mb, memory_mb)
            is_closed = bool(chosen) and (head.is_alone or used_bytes + head.size > MAX_BATCH_BYTES)
            if is_full or is_closed:
                break
            chosen.append(head)
            used_mb += head.memory_mb
            used_bytes += head.size
            deficits[user] -= head.cost
            positions[user] += 1
            if positions[user] == len(self._by_user[user]):
                turns.popleft()
                del deficits[user]
            elif deficits[user] < self._by_user[user][positions[user]].cost:
                turns.rotate(-1)
            is_closed = head.is_alone
        credit = Credit(deficits, turns[0] if turns else None)
        return _Selection(tuple(chosen), credit, is_full, is_closed)


def _fits(needed_mb: int, memory_mb: int | None) -> bool:
    return memory_mb is None or needed_mb <= memory_mb
