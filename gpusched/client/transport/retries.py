"""The retries of one call: which failures to repeat, when, and for how long."""

import random
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, TypeVar

import httpx
import msgspec

from gpusched.client.errors import GpuschedError, QueueWarning, RateLimited, ServerError, Unreachable, from_answer
from gpusched.client.transport.call import Call, require_sendable
from gpusched.protocol.addresses import redirect_target

T = TypeVar("T")

# Long enough for a restart of the server; short enough for a person with a wrong URL.
RETRY_TIMEOUT_SECONDS = 6.0
# A server that answers 503 with Retry-After is up, and waits for its database; recovery after a crash takes longer.
OUTAGE_FACTOR = 5
# A proxy or a server that cannot answer at present.
_AWAY = (502, 503, 504)
# The code of a server that lost its database, perhaps after the write.
_OUTAGE = "database_unavailable"
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 2.0


@dataclass(frozen=True, slots=True)
class NoResponse:
    """The outcome of a request without an answer. `was_sent`: the server may have carried it out. `next_step`: what to
    do about a failure that lasts, so that the client does not repeat the request."""

    sentence: str
    was_sent: bool
    next_step: str = ""


class Retries:
    """The retries of one call, for `patience_seconds`, or five times as long for a server that says when to retry (503
    with Retry-After). Raises Invalid for a call that cannot be sent."""

    def __init__(self, call: Call[Any], patience_seconds: float) -> None:
        require_sendable(call)
        self._call, self._patience_seconds, self._max_seconds = call, patience_seconds, patience_seconds
        self._started_at, self._tries = time.monotonic(), 0
        self._may_be_done = False

    def pause(self, outcomes: Sequence[httpx.Response | NoResponse]) -> tuple[float, str]:
        """Return the seconds to wait before the next try, and why; raise the error if this was the last. `outcomes`: of
        the addresses, in order."""
        outcome = _of_all(outcomes)
        error = _error(self._call, outcome)
        self._may_be_done |= error.code == _OUTAGE or any(map(_may_be_done, outcomes))
        seconds = _pause_seconds(outcome, self._tries)
        self._max_seconds = max(self._max_seconds, self._patience_seconds * _factor(outcome))
        if self._call.max_seconds is not None:
            self._max_seconds = min(self._max_seconds, self._call.max_seconds)
        waited = time.monotonic() - self._started_at
        if not may_repeat(self._call, outcome) or waited + seconds > self._max_seconds:
            # The answer to a repetition counts for the tries before it, unless it was refused before it was read.
            is_unanswered = isinstance(error, Unreachable | RateLimited)
            raise _in_doubt(self._call, error) if self._may_be_done and is_unanswered else error
        self._tries += 1
        return seconds, str(error)


def is_success(outcome: httpx.Response | NoResponse) -> TypeGuard[httpx.Response]:
    """Return whether the server carried the call out."""
    return isinstance(outcome, httpx.Response) and outcome.is_success


def read(call: Call[T], response: httpx.Response) -> T:
    """Return the parsed answer. Raises ServerError if another server sent it."""
    if warning := response.headers.get("queue-warning"):
        warnings.warn(f"the queue is nearly full for you: {warning}", QueueWarning, stacklevel=2)
    try:
        return call.parse(response)
    except (msgspec.MsgspecError, ValueError) as error:
        foreign = ServerError(
            f"the answer to {call.method} {call.path} is not a gpusched server's ({error})",
            next_step="check the URL, and that client and server have compatible versions (gpusched version)",
            status=response.status_code,
        )
        raise _in_doubt(call, foreign) from error


def is_away(outcome: httpx.Response | NoResponse) -> bool:
    """Return whether another address of the control plane may do better."""
    return isinstance(outcome, NoResponse) or outcome.status_code in _AWAY


def may_repeat(call: Call[Any], outcome: httpx.Response | NoResponse) -> bool:
    """Return whether sending the call again cannot carry it out twice."""
    if isinstance(outcome, NoResponse):
        return not outcome.next_step and (call.is_repeatable or not outcome.was_sent)
    # The server refuses with a 429 before doing anything; behind a proxy's 502 or 504 it may have acted.
    if outcome.status_code == 429:
        return call.repeats_refused
    return outcome.status_code in _AWAY and call.is_repeatable


def _of_all(outcomes: Sequence[httpx.Response | NoResponse]) -> httpx.Response | NoResponse:
    """Return the outcome of a call that failed: the last answer, or all failures to get one."""
    failures: list[NoResponse] = []
    for outcome in reversed(outcomes):
        if isinstance(outcome, httpx.Response):
            return outcome
        failures.insert(0, outcome)
    sentence = "; ".join(failure.sentence for failure in failures)
    return replace(failures[-1], sentence=sentence, was_sent=any(failure.was_sent for failure in failures))


def _may_be_done(outcome: httpx.Response | NoResponse) -> bool:
    """Return whether the server may have carried the call out: a proxy can lose its answer."""
    return outcome.was_sent if isinstance(outcome, NoResponse) else outcome.status_code in (502, 504)


def _in_doubt(call: Call[Any], error: GpuschedError) -> GpuschedError:
    """Return the error of a call that may have been carried out."""
    if not call.acts_again:
        return error
    if error.code != _OUTAGE:  # it says so itself
        error.args = (f"{error}; the server may have carried out the request",)
    error.next_step = "check the result before you repeat it"
    if key := call.headers.get("Idempotency-Key"):
        error.next_step += f"; its idempotency key was {key}"
    return error


def _factor(outcome: httpx.Response | NoResponse) -> int:
    is_outage = isinstance(outcome, httpx.Response) and outcome.status_code == 503 and "retry-after" in outcome.headers
    return OUTAGE_FACTOR if is_outage else 1


def _pause_seconds(outcome: httpx.Response | NoResponse, tries: int) -> float:
    pause: float = min(_MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**tries)
    # Jitter, so that a thousand clients of a restarted server do not retry in step.
    pause *= random.uniform(0.7, 1.0)  # noqa: S311 not for secrets
    retry_after = outcome.headers.get("retry-after", "") if isinstance(outcome, httpx.Response) else ""
    # A proxy can ask for 0 seconds: without the pause, the client would do nothing but retry.
    return (float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0) or pause


def _error(call: Call[Any], outcome: httpx.Response | NoResponse) -> GpuschedError:
    if isinstance(outcome, httpx.Response):
        if location := outcome.headers.get("location", ""):
            # Not followed: a redirected POST becomes a GET, and the token would go to the target.
            target = redirect_target(location, call.path)
            other = "check the URL: another server answers, such as a login page of the network"
            return ServerError(
                f"the server redirects to {target}",
                next_step=other if target == location else "use that URL",
                status=outcome.status_code,
            )
        return from_answer(outcome.status_code, outcome.content, f"{call.method} {call.path}")
    return Unreachable(
        outcome.sentence,
        next_step=outcome.next_step
        or "check that the server runs and that the URL is right (--url, GPUSCHED_URL or gpusched login)",
    )
