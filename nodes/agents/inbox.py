"""Queue agents' messages until they are written, in order of arrival, at most a few per node.

A message has the full state of its agent, except for readings, which are sent once, and facts, sent once per
connection. So while the database is unreachable, a newer message replaces the older ones: their readings are dropped
and their facts retained. A report is dropped only if it is acknowledged or a newer message repeats it: agents repeat a
report until it is acknowledged, and report a start no more once its rank has ended."""

import dataclasses
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from msgspec.structs import replace

from gpusched.protocol.agent_messages import Desired, Ended, Started, Sync
from nodes.ranks import agent_clock

MAX_PER_NODE = 4
# Shorter waits are within the accepted clock difference (nodes/ranks/agent_clock.py).
MIN_AGE_SECONDS = 0.5


class Sender(Protocol):
    node_id: int


S = TypeVar("S", bound=Sender)
ReportId = tuple[type[Started] | type[Ended], str]


@dataclass(frozen=True)
class QueuedMessage(Generic[S]):
    """`at`: arrival, by the monotonic clock. `since`: arrival of the oldest message that it replaces."""

    at: float
    link: S
    message: Sync
    since: float

    def as_of(self, now: float) -> Sync:
        """Return the message with its relative times increased by the time that it has waited."""
        seconds = now - self.at
        if seconds < MIN_AGE_SECONDS:
            return self.message
        reports = [
            report if report.seconds_ago is None else replace(report, seconds_ago=report.seconds_ago + seconds)
            for report in self.message.reports
        ]
        return replace(self.message, at=agent_clock.shifted_by(self.message.at, seconds), reports=reports)


class Inbox(Generic[S]):
    """A queue for use in the event loop alone, except for `oldest_at`."""

    def __init__(self) -> None:
        # In the order in which the first message of each node came.
        self._by_node: dict[int, list[QueuedMessage[S]]] = {}
        # Reports acknowledged while messages of their node wait.
        self._acknowledged: dict[int, set[ReportId]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_node.values()))

    def put(self, at: float, link: S, message: Sync) -> bool:
        """Keep a message. Return False, and keep nothing, if the queue would have to drop a report."""
        waiting = [*self._by_node.get(link.node_id, ()), QueuedMessage(at, link, message, at)]
        if len(waiting) > MAX_PER_NODE:
            waiting = _merged(waiting, self._acknowledged.get(link.node_id, set()))
        if len(waiting) > MAX_PER_NODE:
            return False
        self._by_node[link.node_id] = waiting
        return True

    def pop(self, maximum: int) -> list[QueuedMessage[S]]:
        """Remove and return messages of the nodes that have waited longest: about `maximum`, and all of each node."""
        messages: list[QueuedMessage[S]] = []
        while self._by_node and len(messages) < maximum:
            node_id = next(iter(self._by_node))
            messages += self._by_node.pop(node_id)
            self._acknowledged.pop(node_id, None)
        return messages

    def acknowledge(self, node_id: int, answer: Desired) -> None:
        """Note the reports that an answer acknowledges: messages that wait need not be kept for them."""
        if node_id in self._by_node:
            reports = {(Started, key) for key in answer.started} | {(Ended, key) for key in answer.acknowledged}
            self._acknowledged.setdefault(node_id, set()).update(reports)

    def put_back(self, messages: Iterable[QueuedMessage[S]]) -> None:
        """Queue messages again that could not be written, before newer ones."""
        by_node: dict[int, list[QueuedMessage[S]]] = {}
        for entry in messages:
            by_node.setdefault(entry.link.node_id, []).append(entry)
        for node_id, waiting in by_node.items():
            acknowledged = self._acknowledged.get(node_id, set())
            by_node[node_id] = _merged([*waiting, *self._by_node.pop(node_id, ())], acknowledged)
        self._by_node = {**by_node, **self._by_node}

    @property
    def oldest_at(self) -> float | None:
        """Return the arrival of the oldest message, or None if none waits. Callable from any thread."""
        return min((waiting[0].since for waiting in list(self._by_node.values())), default=None)


def _merged(waiting: Sequence[QueuedMessage[S]], acknowledged: Set[ReportId]) -> list[QueuedMessage[S]]:
    """Return the newest message, preceded by older ones, without readings, that have a report which is neither
    acknowledged nor repeated by a newer one."""
    *older, newest = waiting
    retained = [newest]
    repeated = acknowledged | _reported(newest.message)
    for entry in reversed(older):
        message = entry.message
        if message.facts is not None and retained[0].message.facts is None:
            retained[0] = dataclasses.replace(retained[0], message=replace(retained[0].message, facts=message.facts))
        if any((type(report), report.key) not in repeated for report in message.reports):
            retained.insert(0, dataclasses.replace(entry, message=replace(message, readings=[], facts=None)))
            repeated |= _reported(message)
        else:
            retained[0] = dataclasses.replace(retained[0], since=entry.since)
    return retained


def _reported(message: Sync) -> set[ReportId]:
    """Return what a message reports. The report of an end includes the start."""
    ends = {(Started, report.key) for report in message.reports if isinstance(report, Ended)}
    return ends | {(type(report), report.key) for report in message.reports}
