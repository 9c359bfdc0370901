"""Run the rules: observe each at its pace, judge what is new, book a match, and let the rule cool down."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from gpusched.client.errors import GpuschedError
from gpusched.watch import booking, judge
from gpusched.watch.booking import Booked, NotSent, StartHasPassed
from gpusched.watch.rules import Rule
from gpusched.watch.sources import Source

Log = Callable[[str], None]
# A booking that cannot be sent for this time is dropped, and so is a text that cannot be judged: the need has changed.
RETRY_MINUTES = 10.0
# Of texts that the endpoint judges, per look at a rule: a log that floods must not flood it, too.
MAX_ASKED = 20


class Books(Protocol):
    """Books reservations: the control plane, or a list in tests."""

    default_tenant: str | None

    def book(self, request: dict[str, Any], key: str) -> Booked: ...


@dataclass
class Watched:
    """A rule with its source and its state. `pending`: a booking that could not be sent yet, with its key. `unjudged`:
    texts that the endpoint could not judge yet, with the time of each."""

    rule: Rule
    source: Source
    due_at: datetime | None = None
    cooled_at: datetime | None = None
    pending: tuple[dict[str, Any], str, datetime] | None = None
    unjudged: list[tuple[datetime, str]] = field(default_factory=list)


@dataclass
class Runner:
    """All rules. `step` does what is due at a time, and returns when something is due next."""

    watched: Sequence[Watched]
    books: Books
    log: Log
    ask: judge.Ask | None = None

    def step(self, now: datetime) -> datetime:
        for item in self.watched:
            next_at = now + timedelta(seconds=item.rule.every_seconds)
            # A later turn than that is from before the clock was set back.
            if item.due_at is None or not now < item.due_at <= next_at:
                item.due_at = next_at
                self._observe(item, now)
        return min((item.due_at for item in self.watched if item.due_at), default=now + timedelta(seconds=1))

    def _observe(self, item: Watched, now: datetime) -> None:
        """Observe and judge. A failure is reported, and the rule goes on at its next turn."""
        if item.pending:
            self._send(item, now)
        try:
            texts = list(item.source.observe())  # also while it cools down: what came then is not new afterwards
        except Exception as error:  # noqa: BLE001 - a monitor of the user's, or a file without permission
            self.log(f"{item.rule.name}: cannot observe: {type(error).__name__}: {error}")
            return
        cool_down = timedelta(minutes=item.rule.cool_down_minutes)
        if item.pending or (item.cooled_at is not None and now < item.cooled_at <= now + cool_down):
            return
        matching = [(now, text) for text in texts if judge.is_match(item.rule, text)]
        confidence = self._judge(item, matching, now)
        if confidence is not None:
            request = booking.body(item.rule, confidence, now, self.books.default_tenant)
            item.pending = request, _new_key(), now
            self._send(item, now)

    def _judge(self, item: Watched, matching: Sequence[tuple[datetime, str]], now: datetime) -> float | None:
        """Return the confidence of the first match. Texts wait for an endpoint that does not answer."""
        rule = item.rule
        if not rule.ask:
            return rule.confidence if matching else None
        earliest = now - timedelta(minutes=RETRY_MINUTES)
        texts = [(at, text) for at, text in (*item.unjudged, *matching) if at >= earliest][-MAX_ASKED:]
        item.unjudged = []
        for number, (_, text) in enumerate(texts):
            try:
                confidence = judge.confidence(rule, text, self.ask)
            except judge.NoConfidence as error:
                self.log(f"{rule.name}: {error}")
                continue
            except judge.EndpointFailed as error:
                self.log(f"{rule.name}: {error}")
                item.unjudged = texts[number:]
                return None
            if confidence is not None:
                return confidence
        return None

    def _send(self, item: Watched, now: datetime) -> None:
        assert item.pending is not None
        request, key, since = item.pending
        try:
            booked = self.books.book(request, key)
        except NotSent as error:
            if now - since > timedelta(minutes=RETRY_MINUTES):
                item.pending = None
                self.log(f"{item.rule.name}: {error}; the booking is dropped after {RETRY_MINUTES:g} minutes")
            else:
                self.log(f"{item.rule.name}: {error}; trying again")
            return
        except (StartHasPassed, GpuschedError) as error:
            if isinstance(error, StartHasPassed) and "from" in request:
                # It could not be sent in time, or the server's clock is ahead: reserve from now on.
                item.pending = {name: value for name, value in request.items() if name != "from"}, _new_key(), since
                self._send(item, now)
                return
            self.log(f"{item.rule.name}: not booked: {error}")
        else:
            because = f": {booked.problem}" if booked.problem else ""
            gpus = f"{request['gpus']} GPU{'s' if request['gpus'] > 1 else ''}"
            self.log(f"{item.rule.name}: reservation {booked.id} of {gpus} is {booked.state}{because}")
        # Also after a refusal: the next line would only be refused, too.
        item.pending, item.cooled_at = None, now + timedelta(minutes=item.rule.cool_down_minutes)


def _new_key() -> str:
    return f"watch-{secrets.token_hex(16)}"
