"""Messages of agents that wait to be written: in the order of their arrival, and at most a few of each node.

A message says all that its agent knows at that moment, but for its readings, told once, and its facts, told once in a
connection. So while the database is away a newer message stands for the older ones: their readings are dropped, their
facts kept. A report is never dropped unless a newer message repeats it, as agents do until it is acknowledged."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from msgspec.structs import replace

from gpusched.protocol.agent_messages import Report, Sync
from nodes.ranks import agent_clock

MAX_PER_NODE = 4
# Less makes no difference to what is believed of an agent's clock (nodes/ranks/agent_clock.py), and costs nothing.
AGED_SECONDS = 0.5


class Sender(Protocol):
    node_id: int


S = TypeVar("S", bound=Sender)


@dataclass(frozen=True)
class Waiting(Generic[S]):
    """`at`: when the message came, by the monotonic clock. `since`: when the oldest that it stands for came."""

    at: float
    link: S
    message: Sync
    since: float

    def as_of(self, now: float) -> Sync:
        """The message as its agent would say it now: what was said to be a second ago has become older meanwhile."""
        seconds = now - self.at
        if seconds < AGED_SECONDS:
            return self.message
        reports = [
            report if report.seconds_ago is None else replace(report, seconds_ago=report.seconds_ago + seconds)
            for report in self.message.reports
        ]
        return replace(self.message, at=agent_clock.moved(self.message.at, seconds), reports=reports)


class Inbox(Generic[S]):
    """Used in the event loop alone, but for `oldest_at`."""

    def __init__(self) -> None:
        # In the order in which the first message of each node came.
        self._by_node: dict[int, list[Waiting[S]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_node.values()))

    def put(self, at: float, link: S, message: Sync) -> bool:
        """Keep a message. Return False, and keep nothing, if there is no room for it without dropping a report."""
        waiting = [*self._by_node.get(link.node_id, ()), Waiting(at, link, message, at)]
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
        return min((waiting[0].since for waiting in list(self._by_node.values())), default=None)


def _merged(waiting: Sequence[Waiting[S]]) -> list[Waiting[S]]:
    """The newest message, and before it those with reports that no newer one repeats, without their readings."""
    *older, newest = waiting
    kept = [newest]
    repeated = _names(newest.message)
    for one in reversed(older):
        message = one.message
        if message.facts is not None and kept[0].message.facts is None:
            kept[0] = dataclasses.replace(kept[0], message=replace(kept[0].message, facts=message.facts))
        if _names(message) - repeated:
            kept.insert(0, dataclasses.replace(one, message=replace(message, readings=[], facts=None)))
            repeated |= _names(message)
        else:
            kept[0] = dataclasses.replace(kept[0], since=one.since)
    return kept


def _names(message: Sync) -> set[tuple[type[Report], str]]:
    return {(type(report), report.key) for report in message.reports}
