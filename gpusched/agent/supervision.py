"""Supervision of the agent's own parts: restarts one that fails, and ends the process if a node can no longer report.

The rule (A41): whatever a part raises, once or always, its node reports again within 5 s, or the process ends with a
non-zero exit code and logs the reason. Jobs run on in both cases: the next agent adopts them."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NoReturn

logger = logging.getLogger(__name__)
# From the first failure of a conversation to the next report. Leaves a second for the process to end.
REPORT_SECONDS = 4.0
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 1.0
# A part that ran for so long before it failed is restarted as quickly as at the first failure.
STEADY_SECONDS = 30.0
# The same failure again is logged at most so often.
REPEAT_SECONDS = 60.0
# A task whose cancellation was lost is cancelled again after this time.
CANCEL_SECONDS = 1.0


class CannotReport(Exception):
    """A node whose conversation with the control plane failed did not recover in time."""


class Pulse:
    """The reports of one node. After `failed`, sets `lost` to CannotReport unless `beat` follows in time."""

    def __init__(self, node: str, lost: "asyncio.Future[None]") -> None:
        self._node, self._lost = node, lost
        self._deadline: asyncio.TimerHandle | None = None

    def beat(self) -> None:
        """The node reported, or would have if the control plane could be reached."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def failed(self, error: BaseException) -> None:
        if self._deadline is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(REPORT_SECONDS, self._give_up, error)

    def _give_up(self, error: BaseException) -> None:
        if not self._lost.done():
            reason = f"node {self._node} has not reported for {REPORT_SECONDS:g} s since {error!r}"
            self._lost.set_exception(CannotReport(reason))


async def keep_running(
    part: Callable[[], Awaitable[None]], name: str, node: str, failed: Callable[[BaseException], None] | None = None
) -> None:
    """Run a part that should never end, again and again. Log why it ended, and pass that to `failed`."""
    log = _FailureLog(name, node)
    pause = FIRST_PAUSE_SECONDS
    while True:
        started_at = time.monotonic()
        try:
            await part()
            error: BaseException = RuntimeError("it ended without an error")
        except asyncio.CancelledError as cancelled:
            # One that was not requested of this task comes from the part: from a future that was cancelled.
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            error = cancelled
        except Exception as raised:  # noqa: BLE001 - the one place that restarts whatever a part raises
            error = raised
        log.record(error)
        if failed is not None:
            failed(error)
        if time.monotonic() - started_at > STEADY_SECONDS:
            pause = FIRST_PAUSE_SECONDS
        await asyncio.sleep(pause)
        pause = min(MAX_PAUSE_SECONDS, pause * 2)


async def cancel_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel until all have ended. In Python 3.11 `wait_for` loses a cancellation if what it waits for arrives at the
    same moment, and the task would go on for ever."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_SECONDS)


class _FailureLog:
    """Logs each new failure of a part with its traceback, and the same one again only now and then."""

    def __init__(self, name: str, node: str) -> None:
        self._name, self._node = name, node
        self._logged, self._logged_at, self._repeats = "", 0.0, 0

    def record(self, error: BaseException) -> None:
        now = time.monotonic()
        if repr(error) == self._logged and now - self._logged_at < REPEAT_SECONDS:
            self._repeats += 1
            return
        more = f" ({self._repeats} more times since)" if self._repeats else ""
        sentence = "%s: %s failed and is restarted: %r%s"
        about = {"node": self._node} if self._node else {}
        logger.error(sentence, self._node or "agent", self._name, error, more, exc_info=error, extra=about)
        self._logged, self._logged_at, self._repeats = repr(error), now, 0


async def until_first(*parts: Coroutine[Any, Any, None]) -> None:
    """Run parts side by side until one of them ends, then cancel the others. Raise what it raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all(tasks)
        await asyncio.gather(*tasks, return_exceptions=True)  # retrieves what they raised
    for task in ended:
        task.result()


def end_stuck() -> NoReturn:
    """Exit with code 0 after an orderly stop, without waiting for threads that hang."""
    try:
        logger.warning("the agent ends while a thread hangs, perhaps in the driver or on a disk")
        logging.shutdown()
        sys.stderr.flush()
    finally:
        os._exit(0)


def end_process(error: BaseException) -> NoReturn:
    """Log the reason and exit with code 1, without waiting for threads: one may hang in a driver for ever."""
    try:
        logger.critical("the agent ends: %s", str(error) or repr(error), exc_info=error)
        logging.shutdown()
        sys.stderr.flush()
    finally:
        os._exit(1)
