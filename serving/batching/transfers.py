"""Move large inputs and results of a batch between their files and memory, off the event loop."""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from serving import payloads
from serving.requests.claims import Claimed
from serving.requests.results import Outcome

logger = logging.getLogger(__name__)
_threads = ThreadPoolExecutor(4, thread_name_prefix="payloads")


async def load(requests: Sequence[Claimed]) -> tuple[list[Claimed], list[Outcome]]:
    """Return the requests with their payloads, and the outcomes of those whose payload cannot be read."""
    loaded: list[Claimed] = []
    failed: list[Outcome] = []
    for request in requests:
        if not request.payload_file:
            loaded.append(request)
            continue
        try:
            payload = await asyncio.get_running_loop().run_in_executor(_threads, payloads.read, request.payload_file)
            loaded.append(request._replace(payload=payload))
        except Exception as error:  # each storage raises its own
            logger.exception("the payload of task %d cannot be read", request.id)
            failed.append(_failed(request.id, request.attempt, "input_lost", f"the input cannot be read: {error}"))
    return loaded, failed


async def store(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes with large results in files. One that cannot be written fails its request."""
    return [await _stored(outcome) for outcome in outcomes]


async def _stored(outcome: Outcome) -> Outcome:
    result = outcome.result
    if result is None or len(result) <= payloads.INLINE_BYTES:
        return outcome
    if len(result) > payloads.max_bytes():
        text = f"the result has more than {payloads.max_bytes() >> 20} MiB (GPUSCHED_TASK_MAX_MB)"
        return _failed(outcome.id, outcome.attempt, "result_too_large", text)
    try:
        name = await asyncio.get_running_loop().run_in_executor(_threads, payloads.store, result)
    except Exception as error:  # each storage raises its own
        logger.exception("the result of task %d cannot be stored", outcome.id)
        return _failed(outcome.id, outcome.attempt, "result_not_stored", f"the result cannot be stored: {error}")
    return outcome._replace(result=None, result_file=name, result_bytes=len(result))


def _failed(request: int, attempt: int, code: str, message: str) -> Outcome:
    return Outcome(request, attempt, error_code=code, error=message)
