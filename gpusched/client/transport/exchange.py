"""How one call becomes requests, pauses and one answer: what is tried again, when, and for how long."""

import math
import random
import time
import warnings
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from gpusched.client.errors import GpuschedError, Invalid, QueueWarning, ServerError, Unreachable, from_answer
from gpusched.client.transport.call import Call, Reply

T = TypeVar("T")


def require_sendable(call: Call[Any]) -> None:
    """Raises Invalid that names the value: JSON has null for nan and infinity, which elsewhere is "no limit"; text is
    sent as UTF-8, and headers are ASCII."""
    for name, value in (*call.query.items(), *_fields(call.body)):
        _check(name, value)
    for name, value in call.headers.items():
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise Invalid(f"{name} must be ASCII characters that can be seen, not {value!r}")


def _fields(body: object) -> tuple[tuple[str, object], ...]:
    return tuple(body.items()) if isinstance(body, Mapping) else (("the body", body),)


def _check(name: str, value: object) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Invalid(f"{name} must be a finite number, not {value}")
    elif isinstance(value, str):
        # An argument of the shell that is no UTF-8 is a text with halves of characters here, which nothing encodes.
        if not value.isascii() and not _is_utf8(value):
            raise Invalid(f"{name} is not text in UTF-8")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not _is_utf8(key):
                raise Invalid(f"{name}: the name {key!r} is not text in UTF-8")
            _check(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _check(f"{name}[{number}]", item)


def _is_utf8(text: object) -> bool:
    try:
        str(text).encode()
    except UnicodeEncodeError:
        return False
    return True


# Long enough for a server that is restarted; short enough for a person whose URL is wrong.
RETRY_TIMEOUT_SECONDS = 6.0
# A server that answers 503 with Retry-After is there, and waits for its database; recovery after a crash takes longer.
OUTAGE_FACTOR = 5
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 2.0


@dataclass(frozen=True, slots=True)
class Pause:
    """Asks the driver to wait; `because` is set when it is for a failure."""

    seconds: float
    because: str = ""


@dataclass(frozen=True, slots=True)
class Emit:
    """Gives one item to whoever reads the stream."""

    item: Any


@dataclass(frozen=True, slots=True)
class NoResponse:
    """The outcome of a request without an answer. `was_sent`: the server may have carried it out."""

    sentence: str
    was_sent: bool


# A flow has no I/O and no sleep in it, so that the sync and the async client drive the same one: it yields what is to
# be done (a Call is answered by a Reply or a Lost, the others by nothing) and returns its result.
Flow = Generator[Call[Any] | Pause | Emit, Any, T]


def exchange(call: Call[T], patience_seconds: float) -> Flow[T]:
    """One call with its repeats, until an answer or until patience ends: five times as late for a server that says
    when to ask again (503 with Retry-After). Raises what the last outcome means, or Invalid
    for what cannot be sent."""
    require_sendable(call)
    started_at = time.monotonic()
    tries, most_seconds = 0, patience_seconds
    while True:
        outcome: Reply | NoResponse = yield call
        if isinstance(outcome, Reply) and 200 <= outcome.status < 300:
            if told := outcome.headers.get("queue-warning"):
                warnings.warn(f"the queue is nearly full for you: {told}", QueueWarning, stacklevel=2)
            return _read(call, outcome)
        seconds = _pause_seconds(outcome, tries)
        waited = time.monotonic() - started_at
        most_seconds = max(most_seconds, patience_seconds * _factor(outcome))
        if not _may_repeat(call, outcome) or waited + seconds > most_seconds:
            raise _error(call, outcome)
        yield Pause(seconds, because=str(_error(call, outcome)))
        tries += 1


def _may_repeat(call: Call[Any], outcome: Reply | NoResponse) -> bool:
    if isinstance(outcome, NoResponse):
        return call.is_repeatable or not outcome.was_sent
    # A 429 was refused before anything was done; behind a 502 or 504 of a proxy it may have been done.
    return outcome.status == 429 or (outcome.status in (502, 503, 504) and call.is_repeatable)


def _factor(outcome: Reply | NoResponse) -> int:
    is_outage = isinstance(outcome, Reply) and outcome.status == 503 and "retry-after" in outcome.headers
    return OUTAGE_FACTOR if is_outage else 1


def _pause_seconds(outcome: Reply | NoResponse, tries: int) -> float:
    if isinstance(outcome, Reply) and (told := outcome.headers.get("retry-after", "")).isdigit():
        return float(told)
    pause: float = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**tries)
    # Jitter, so that a thousand clients of a restarted server do not come back in step.
    return pause * random.uniform(0.7, 1.0)  # noqa: S311 not for secrets


def _read(call: Call[T], reply: Reply) -> T:
    try:
        return call.parse(reply)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ServerError(
            f"the answer to {call.method} {call.path} is not what a gpusched server says ({error})",
            next_step="check the URL, and that the versions of client and server go together (gpusched version)",
            status=reply.status,
        ) from error


def _error(call: Call[Any], outcome: Reply | NoResponse) -> GpuschedError:
    if isinstance(outcome, Reply):
        if target := outcome.headers.get("location", ""):
            # Not followed: a redirected POST becomes a GET, and the token would go wherever the answer points.
            return ServerError(
                f"the server redirects to {target}", next_step="use that as the URL", status=outcome.status
            )
        return from_answer(outcome.status, outcome.body, f"{call.method} {call.path}")
    if outcome.was_sent and not call.is_repeatable:
        return Unreachable(
            f"{outcome.sentence}, and it is not known whether the request was carried out",
            next_step="look before you repeat it",
        )
    return Unreachable(
        outcome.sentence,
        next_step="check that the server runs and that the URL is right (--url, GPUSCHED_URL or gpusched login)",
    )
