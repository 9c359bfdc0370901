"""Turn one call into requests, pauses and one answer: which failures to retry, when, and for how long."""

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
    """Raise Invalid, which names the value, if a call cannot be sent: JSON would turn nan and infinity into null, which
    means "no limit" elsewhere; text is sent as UTF-8, and headers are ASCII."""
    for name, value in (*call.query.items(), *_fields(call.body)):
        _check(name, value)
    for name, value in call.headers.items():
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise Invalid(f"{name} must be printable ASCII characters, not {value!r}")


def _fields(body: object) -> tuple[tuple[str, object], ...]:
    return tuple(body.items()) if isinstance(body, Mapping) else (("the body", body),)


def _check(name: str, value: object) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Invalid(f"{name} must be a finite number, not {value}")
    elif isinstance(value, str):
        # A shell argument that is not UTF-8 arrives as a string with surrogates, which cannot be encoded.
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


# Long enough for a restart of the server; short enough for a person with a wrong URL.
RETRY_TIMEOUT_SECONDS = 6.0
# A server that answers 503 with Retry-After is up, and waits for its database; recovery after a crash takes longer.
OUTAGE_FACTOR = 5
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 2.0


@dataclass(frozen=True, slots=True)
class Pause:
    """Ask the driver to wait; `because` names the failure, if there was one."""

    seconds: float
    because: str = ""


@dataclass(frozen=True, slots=True)
class Emit:
    """Pass one item to the reader of the stream."""

    item: Any


@dataclass(frozen=True, slots=True)
class NoResponse:
    """The outcome of a request without an answer. `was_sent`: the server may have carried it out."""

    sentence: str
    was_sent: bool


# A flow has no I/O and no sleep, so that the sync and the async client drive the same one: it yields each step (a Reply
# or a NoResponse answers a Call, None the others) and returns its result.
Flow = Generator[Call[Any] | Pause | Emit, Any, T]


def exchange(call: Call[T], patience_seconds: float) -> Flow[T]:
    """Send a call, and retry it, until an answer or the timeout: five times as long for a server that says when to
    retry (503 with Retry-After). Raises the error of the last outcome, or Invalid for a call that cannot be sent."""
    require_sendable(call)
    started_at = time.monotonic()
    tries, max_seconds = 0, patience_seconds
    while True:
        outcome: Reply | NoResponse = yield call
        if isinstance(outcome, Reply) and 200 <= outcome.status < 300:
            if warning := outcome.headers.get("queue-warning"):
                warnings.warn(f"the queue is nearly full for you: {warning}", QueueWarning, stacklevel=2)
            return _read(call, outcome)
        seconds = _pause_seconds(outcome, tries)
        waited = time.monotonic() - started_at
        max_seconds = max(max_seconds, patience_seconds * _factor(outcome))
        if not _may_repeat(call, outcome) or waited + seconds > max_seconds:
            raise _error(call, outcome)
        yield Pause(seconds, because=str(_error(call, outcome)))
        tries += 1


def _may_repeat(call: Call[Any], outcome: Reply | NoResponse) -> bool:
    if isinstance(outcome, NoResponse):
        return call.is_repeatable or not outcome.was_sent
    # The server refuses with a 429 before doing anything; behind a proxy's 502 or 504 it may have acted.
    return outcome.status == 429 or (outcome.status in (502, 503, 504) and call.is_repeatable)


def _factor(outcome: Reply | NoResponse) -> int:
    is_outage = isinstance(outcome, Reply) and outcome.status == 503 and "retry-after" in outcome.headers
    return OUTAGE_FACTOR if is_outage else 1


def _pause_seconds(outcome: Reply | NoResponse, tries: int) -> float:
    if isinstance(outcome, Reply) and (seconds := outcome.headers.get("retry-after", "")).isdigit():
        return float(seconds)
    pause: float = min(_MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**tries)
    # Jitter, so that a thousand clients of a restarted server do not retry in step.
    return pause * random.uniform(0.7, 1.0)  # noqa: S311 not for secrets


def _read(call: Call[T], reply: Reply) -> T:
    try:
        return call.parse(reply)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ServerError(
            f"the answer to {call.method} {call.path} is not a gpusched server's ({error})",
            next_step="check the URL, and that client and server have compatible versions (gpusched version)",
            status=reply.status,
        ) from error


def _error(call: Call[Any], outcome: Reply | NoResponse) -> GpuschedError:
    if isinstance(outcome, Reply):
        if target := outcome.headers.get("location", ""):
            # Not followed: a redirected POST becomes a GET, and the token would go to the target.
            return ServerError(f"the server redirects to {target}", next_step="use that URL", status=outcome.status)
        return from_answer(outcome.status, outcome.body, f"{call.method} {call.path}")
    if outcome.was_sent and not call.is_repeatable:
        return Unreachable(
            f"{outcome.sentence}; the server may have carried out the request",
            next_step="check the result before you repeat it",
        )
    return Unreachable(
        outcome.sentence,
        next_step="check that the server runs and that the URL is right (--url, GPUSCHED_URL or gpusched login)",
    )
