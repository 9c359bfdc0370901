"""Messages waiting for one page: few per topic, and a new snapshot for topics on which the page fell behind."""

import asyncio
from collections.abc import Callable

import msgspec

MAX_WAITING = 2
# A page that has answered once must keep answering: beyond this it gets only `alive` messages.
MAX_UNACKNOWLEDGED = 1
# Waiting messages share a frame: a frame costs more than its content.
MAX_CHARACTERS = 1 << 18
# Low-priority messages wait this long to share a frame.
DELAY_SECONDS = 0.4
_MAX_SEQS = 1000


class Outbox:
    """Queue of one page. `send` writes one message. `request_snapshots` requests snapshots of topics whose deltas were
    dropped; until they arrive, deltas of these topics are ignored."""

    def __init__(self, send: Callable[[str], None], request_snapshots: Callable[[set[str]], None]) -> None:
        self._send = send
        self._request_snapshots = request_snapshots
        self._waiting: dict[str, list[str]] = {}
        self._unnumbered: list[str] = []
        self._newest_alive: tuple[str, bool] | None = None
        self._dropped: set[str] = set()
        self._seqs: dict[str, int] = {}
        self._acknowledges = False
        self._unacknowledged = 0
        self._flush_handle: asyncio.Handle | None = None
        self._is_flush_soon = False

    def snapshot(self, topic: str, body: str) -> None:
        """Queue a snapshot, replacing what waits. `body`: the message from `"snapshot":` on."""
        self._dropped.discard(topic)
        self._waiting[topic] = [body]
        self._schedule()

    def delta(self, topic: str, body: str, *, is_low_priority: bool = False) -> None:
        """Queue a delta; `body`: the message after its number. Too many deltas are replaced by a later snapshot."""
        if topic in self._dropped:
            return
        waiting = self._waiting.setdefault(topic, [])
        waiting.append(body)
        if len(waiting) > MAX_WAITING:
            del self._waiting[topic]
            self._dropped.add(topic)
        self._schedule(is_low_priority=is_low_priority)

    def plain(self, message: str) -> None:
        """Queue a message without a number: an error."""
        self._unnumbered.append(message)
        self._schedule()

    def alive(self, message: str, *, needs_answer: bool = False, is_low_priority: bool = True) -> None:
        """Queue an `alive` message, also for a page that does not answer, so that it can answer again."""
        self._newest_alive = (message, needs_answer)
        self._schedule(is_low_priority=is_low_priority)

    def acknowledge(self) -> None:
        was_paused = self._is_paused()
        self._acknowledges, self._unacknowledged = True, 0
        if was_paused:
            self._schedule()

    def drop(self, topic: str) -> None:
        self._waiting.pop(topic, None)
        self._dropped.discard(topic)
        if len(self._seqs) > _MAX_SEQS:
            self._seqs.pop(topic, None)

    def drop_all(self) -> None:
        for topic in [*self._waiting, *self._dropped]:
            self.drop(topic)

    def close(self) -> None:
        """Stop sending."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()

    def _schedule(self, *, is_low_priority: bool = False) -> None:
        if self._flush_handle is None or not (is_low_priority or self._is_flush_soon):
            self.close()
            loop = asyncio.get_running_loop()
            self._is_flush_soon = not is_low_priority
            self._flush_handle = (
                loop.call_later(DELAY_SECONDS, self._flush) if is_low_priority else loop.call_soon(self._flush)
            )

    def _flush(self) -> None:
        self._flush_handle = None
        while frame := self._frame():
            self._send(frame)
        if self._dropped and not self._is_paused():
            dropped, self._dropped = self._dropped, set()
            self._request_snapshots(dropped)

    def _is_paused(self) -> bool:
        return self._acknowledges and self._unacknowledged > MAX_UNACKNOWLEDGED

    def _frame(self) -> str:
        """Return waiting messages as one frame, or "" if there are none."""
        messages: list[str] = []
        length = 0
        while length < MAX_CHARACTERS and (message := self._next()) is not None:
            messages.append(message)
            length += len(message)
        return messages[0] if len(messages) == 1 else f"[{','.join(messages)}]" if messages else ""

    def _next(self) -> str | None:
        if self._newest_alive is not None:
            (alive, needs_answer), self._newest_alive = self._newest_alive, None
            self._unacknowledged += needs_answer
            return alive
        if self._unnumbered:
            return self._unnumbered.pop(0)
        if self._is_paused() or not self._waiting:
            return None
        topic = next(iter(self._waiting))
        bodies = self._waiting.pop(topic)
        if len(bodies) > 1:
            self._waiting[topic] = bodies[1:]
        # Numbered when sent, so that dropped deltas leave no gap.
        self._seqs[topic] = self._seqs.get(topic, 0) + 1
        return f'{{"topic":{msgspec.json.encode(topic).decode()},"seq":{self._seqs[topic]},{bodies[0]}'
