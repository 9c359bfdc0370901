"""Move large inputs and results of a batch between their files and memory, off the event loop."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from serving import payloads
from serving.requests.claims import Claimed
from serving.requests.results import Outcome

logger = logging.getLogger(__name__)
_threads = ThreadPoolExecutor(4, thread_name_prefix="payloads")
T = TypeVar("T")
# Of the files of one batch, which waits meanwhile. A storage may fail for a moment: an object store that asks to slow
# down, a file server that restarts.
RETRY_SECONDS = 60.0
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 5.0


async def load(requests: Sequence[Claimed]) -> tuple[list[Claimed], list[Outcome]]:
    """Return the requests with their payloads, and the outcomes of those whose payload cannot be read, also after
    RETRY_SECONDS."""
    until = time.monotonic() + RETRY_SECONDS
    loaded: list[Claimed] = []
    failed: list[Outcome] = []
    for request in requests:
        if not request.payload_file:
            loaded.append(request)
            continue
        try:
            payload = await _retried(partial(payloads.read, request.payload_file), until)
            loaded.append(request._replace(payload=payload))
        except Exception as error:  # each storage raises its own
            logger.exception("the payload of task %d cannot be read", request.id)
            failed.append(_failed(request.id, request.attempt, "input_lost", f"the input cannot be read: {error}"))
    return loaded, failed


async def store(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with large results in files. One that cannot be written, also after RETRY_SECONDS, fails its
    request."""
    until = time.monotonic() + RETRY_SECONDS
    return [await _stored(outcome, until) for outcome in outcomes]


async def _stored(outcome: Outcome, until: float) -> Outcome:
    result = outcome.result
    if result is None or len(result) <= payloads.INLINE_BYTES:
        return outcome
    if len(result) > payloads.max_bytes():
        text = f"the result has more than {payloads.max_bytes() >> 20} MiB (GPUSCHED_TASK_MAX_MB)"
        return _failed(outcome.id, outcome.attempt, "result_too_large", text)
    try:
        name = await _retried(partial(payloads.store, result), until)
    except Exception as error:  # each storage raises its own
        logger.exception("the result of task %d cannot be stored", outcome.id)
        return _failed(outcome.id, outcome.attempt, "result_not_stored", f"the result cannot be stored: {error}")
    return outcome._replace(result=None, result_file=name, result_bytes=len(result))


async def _retried(work: Callable[[], T], until: float) -> T:
    """Return what the storage answers. Retry until then, by the monotonic clock, unless a file does not exist."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await asyncio.get_running_loop().run_in_executor(_threads, work)
        except FileNotFoundError:
            raise
        except Exception as error:  # each storage raises its own
            if time.monotonic() + pause > until:
                raise
            logger.warning("the storage of large tasks failed, trying again: %r", error)
        await asyncio.sleep(pause)
        pause = min(MAX_PAUSE_SECONDS, pause * 2)


def _failed(request: int, attempt: int, code: str, message: str) -> Outcome:
    return Outcome(request, attempt, error_code=code, error=message)
