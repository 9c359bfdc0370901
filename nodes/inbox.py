"""Messages of agents that wait to be written: in the order of their arrival, and at most a few of each node.

A message says all that its agent knows at that moment, but for its readings, told once, and its facts, told once in a
connection. So while the database is away a newer message stands for the older ones: their readings are dropped, their
facts kept. A report is never dropped unless a newer message repeats it, as agents do until it is acknowledged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from msgspec.structs import replace

from gpusched.protocol.messages import Report, Sync

MAX_PER_NODE = 4


class Sender(Protocol):
    node_id: int


S = TypeVar("S", bound=Sender)


@dataclass(frozen=True)
class Waiting(Generic[S]):
    """`at`: when the message, or the oldest that it stands for, came."""

    at: float
    link: S
    message: Sync


class Inbox(Generic[S]):
    """Used in the event loop alone, but for `oldest_at`."""

    def __init__(self) -> None:
        # In the order in which the first message of each node came.
        self._by_node: dict[int, list[Waiting[S]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_node.values()))

    def put(self, at: float, link: S, message: Sync) -> bool:
        """Keep a message. Return False, and keep nothing, if there is no room for it without dropping a report."""
        waiting = [*self._by_node.get(link.node_id, ()), Waiting(at, link, message)]
        if len(waiting) > MAX_PER_NODE:
            waiting = _merged(waiting)
        if len(waiting) > MAX_PER_NODE:
            return False
        self._by_node[link.node_id] = waiting
        return True

    def take(self, most: int) -> list[Waiting[S]]:
        """Remove and return messages of the nodes that have waited longest: about `most`, and all of each node."""
        taken: list[Waiting[S]] = []
        while self._by_node and len(taken) < most:
            taken += self._by_node.pop(next(iter(self._by_node)))
        return taken

    def put_back(self, taken: Iterable[Waiting[S]]) -> None:
        """Keep what was taken and could not be written, before what has come since."""
        by_node: dict[int, list[Waiting[S]]] = {}
        for one in taken:
            by_node.setdefault(one.link.node_id, []).append(one)
        for node_id, waiting in by_node.items():
            by_node[node_id] = _merged([*waiting, *self._by_node.pop(node_id, ())])
        self._by_node = {**by_node, **self._by_node}

    @property
    def oldest_at(self) -> float | None:
        """When the message came that has waited longest; None where none waits. From any thread."""
        return min((waiting[0].at for waiting in list(self._by_node.values())), default=None)


def _merged(waiting: Sequence[Waiting[S]]) -> list[Waiting[S]]:
    """The newest message, and before it those with reports that no newer one repeats, without their readings."""
    *older, newest = waiting
    kept = [newest]
    repeated = _names(newest.message)
    for one in reversed(older):
        message = one.message
        if message.facts is not None and kept[0].message.facts is None:
            kept[0] = Waiting(kept[0].at, kept[0].link, replace(kept[0].message, facts=message.facts))
        if _names(message) - repeated:
            kept.insert(0, Waiting(one.at, one.link, replace(message, readings=[], facts=None)))
            repeated |= _names(message)
        else:
            kept[0] = Waiting(one.at, kept[0].link, kept[0].message)
    return kept


def _names(message: Sync) -> set[tuple[type[Report], str]]:
    return {(type(report), report.key) for report in message.reports}
