"""What one page is still to be sent: few messages per topic, and a fresh snapshot for what it was too slow for."""

import asyncio
from collections.abc import Callable

import msgspec

MAX_WAITING = 2
# A page that has answered once is expected to answer; more unanswered than this, and it gets no more of the rest.
MAX_UNACKNOWLEDGED = 1
# What waits goes out in one frame: a frame costs more than what is in it.
MAX_CHARACTERS = 1 << 18
# What need not be told at once waits so long for something that must.
DELAY_SECONDS = 0.4
_MAX_SEQS = 1000


class Outbox:
    """`send` puts one message on the wire. `ask` asks for snapshots of topics of which something was dropped; until
    those come, no deltas of them are to be offered."""

    def __init__(self, send: Callable[[str], None], ask: Callable[[set[str]], None]) -> None:
        self._send = send
        self._ask = ask
        self._waiting: dict[str, list[str]] = {}
        self._unnumbered: list[str] = []
        self._newest_alive: tuple[str, bool] | None = None
        self._dropped: set[str] = set()
        self._seqs: dict[str, int] = {}
        self._answers = False
        self._unseen = 0
        self._leaves: asyncio.Handle | None = None
        self._leaves_soon = False

    def snapshot(self, topic: str, body: str) -> None:
        """Replaces whatever still waits. `body`: the message from `"snapshot":` on."""
        self._dropped.discard(topic)
        self._waiting[topic] = [body]
        self._go()

    def delta(self, topic: str, body: str, *, is_leisurely: bool = False) -> None:
        """`body`: the message after its number. One too many, and all that wait are dropped for a snapshot later."""
        if topic in self._dropped:
            return
        waiting = self._waiting.setdefault(topic, [])
        waiting.append(body)
        if len(waiting) > MAX_WAITING:
            del self._waiting[topic]
            self._dropped.add(topic)
        self._go(is_leisurely=is_leisurely)

    def plain(self, message: str) -> None:
        """A message without a number: an error."""
        self._unnumbered.append(message)
        self._go()

    def alive(self, message: str, *, is_to_answer: bool = False, is_leisurely: bool = True) -> None:
        """Goes out even to a page that does not answer: only so can it answer again."""
        self._newest_alive = (message, is_to_answer)
        self._go(is_leisurely=is_leisurely)

    def seen(self) -> None:
        was_paused = self._is_paused()
        self._answers, self._unseen = True, 0
        if was_paused:
            self._go()

    def forget(self, topic: str) -> None:
        self._waiting.pop(topic, None)
        self._dropped.discard(topic)
        if len(self._seqs) > _MAX_SEQS:
            self._seqs.pop(topic, None)

    def forget_all(self) -> None:
        for topic in [*self._waiting, *self._dropped]:
            self.forget(topic)

    def close(self) -> None:
        """Nothing leaves any more."""
        if self._leaves is not None:
            self._leaves.cancel()

    def _go(self, *, is_leisurely: bool = False) -> None:
        if self._leaves is None or not (is_leisurely or self._leaves_soon):
            self.close()
            loop = asyncio.get_running_loop()
            self._leaves_soon = not is_leisurely
            self._leaves = (
                loop.call_later(DELAY_SECONDS, self._leave) if is_leisurely else loop.call_soon(self._leave)
            )

    def _leave(self) -> None:
        self._leaves = None
        while frame := self._frame():
            self._send(frame)
        if self._dropped and not self._is_paused():
            dropped, self._dropped = self._dropped, set()
            self._ask(dropped)

    def _is_paused(self) -> bool:
        return self._answers and self._unseen > MAX_UNACKNOWLEDGED

    def _frame(self) -> str:
        """Messages that wait, as one or as a list of them; empty when there are none."""
        messages: list[str] = []
        length = 0
        while length < MAX_CHARACTERS and (message := self._next()) is not None:
            messages.append(message)
            length += len(message)
        return messages[0] if len(messages) == 1 else f"[{','.join(messages)}]" if messages else ""

    def _next(self) -> str | None:
        if self._newest_alive is not None:
            (alive, is_to_answer), self._newest_alive = self._newest_alive, None
            self._unseen += is_to_answer
            return alive
        if self._unnumbered:
            return self._unnumbered.pop(0)
        if self._is_paused() or not self._waiting:
            return None
        topic = next(iter(self._waiting))
        bodies = self._waiting.pop(topic)
        if len(bodies) > 1:
            self._waiting[topic] = bodies[1:]
        # Numbered when sent, so that what was dropped leaves no gap: a snapshot stands in its place.
        self._seqs[topic] = self._seqs.get(topic, 0) + 1
        return f'{{"topic":{msgspec.json.encode(topic).decode()},"seq":{self._seqs[topic]},{bodies[0]}'
