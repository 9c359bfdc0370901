"""Run the rules: observe each at its pace, judge what is new, book a match, and let the rule cool down."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from gpusched.client.errors import GpuschedError
from gpusched.watch import booking, judge
from gpusched.watch.booking import Booked, NotSent
from gpusched.watch.rules import Rule
from gpusched.watch.sources import Source

Log = Callable[[str], None]
# A booking that cannot be sent for this time is dropped: the need has changed.
RETRY_MINUTES = 10.0
# Of texts that the endpoint judges, per look at a rule: a log that floods must not flood it, too.
MAX_ASKED = 20


class Books(Protocol):
    """Books reservations: the control plane, or a list in tests."""

    default_tenant: str | None

    def book(self, request: dict[str, Any], key: str) -> Booked: ...


@dataclass
class Watched:
    """A rule with its source and its state. `pending`: a booking that could not be sent yet, with its key."""

    rule: Rule
    source: Source
    due_at: datetime | None = None
    cooled_at: datetime | None = None
    pending: tuple[dict[str, Any], str, datetime] | None = None


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
                self._look(item, now)
        return min((item.due_at for item in self.watched if item.due_at), default=now + timedelta(seconds=1))

    def _look(self, item: Watched, now: datetime) -> None:
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
        confidence = self._judge(item.rule, texts)
        if confidence is not None:
            request = booking.body(item.rule, confidence, now, self.books.default_tenant)
            item.pending = request, f"watch-{secrets.token_hex(16)}", now
            self._send(item, now)

    def _judge(self, rule: Rule, texts: Sequence[str]) -> float | None:
        """Return the confidence of the first match."""
        matching = [text for text in texts if judge.is_match(rule, text)]
        for text in matching[-MAX_ASKED:] if rule.ask else matching:
            try:
                confidence = judge.confidence(rule, text, self.ask)
            except judge.EndpointFailed as error:
                self.log(f"{rule.name}: {error}")
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
        except GpuschedError as error:
            self.log(f"{item.rule.name}: not booked: {error}")
        else:
            because = f": {booked.problem}" if booked.problem else ""
            gpus = f"{request['gpus']} GPU{'s' if request['gpus'] > 1 else ''}"
            self.log(f"{item.rule.name}: reservation {booked.id} of {gpus} is {booked.state}{because}")
        # Also after a refusal: the next line would only be refused, too.
        item.pending, item.cooled_at = None, now + timedelta(minutes=item.rule.cool_down_minutes)
