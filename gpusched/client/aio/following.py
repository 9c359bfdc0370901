"""Operations that poll the server: wait for the end of a job or an element, follow its output, and follow events."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from gpusched.client.aio.connection import AsyncConnection
from gpusched.client.calls import jobs
from gpusched.client.errors import Invalid, Timeout
from gpusched.client.transport import polling
from gpusched.client.transport.call import Call
from gpusched.protocol.rest.arrays import Element
from gpusched.protocol.rest.events import JobEvent
from gpusched.protocol.rest.jobs import JobData, Log
from gpusched.protocol.states import FINAL

T = TypeVar("T")
S = TypeVar("S", JobData, Element)


async def until_final(read: Callable[[float], Coroutine[Any, Any, S]], timeout: float | None, subject: str) -> S:
    """Return what `read` returns once it has ended; `read` gets the seconds left. Raises Timeout after `timeout`
    seconds."""
    if timeout is not None and math.isnan(timeout):
        raise Invalid(f"timeout must be a number of seconds, not {timeout}")
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = polling.QUICK_SECONDS
    while True:
        latest = await read(math.inf if deadline is None else max(0.0, deadline - time.monotonic()))
        if latest.state in FINAL:
            return latest
        remaining = pause if deadline is None else deadline - time.monotonic()
        if remaining <= 0:
            raise Timeout(
                f"{subject} is still {latest.state}, and the timeout has passed",
                next_step="it continues; wait longer or cancel it",
            )
        await asyncio.sleep(min(pause, remaining))
        pause = polling.longer(pause)


async def send_within(client: AsyncConnection, call: Call[T], seconds: float) -> T:
    """Send a call that survives a restart or an upgrade of the server, but ends soon after `seconds`."""
    return await client.send(polling.within(call, seconds), min(polling.RETRY_SECONDS, seconds))


async def follow(
    client: AsyncConnection, job_id: int, attempt: int | None, rank: int, offset: int
) -> AsyncIterator[Log | JobData]:
    """Yield the job whenever its state, attempt or reason changes, and its output as it grows, from `offset` bytes on:
    of all attempts from the current one on, or of one attempt only. End with the ended job, or with that attempt."""
    job = await client.send(jobs.job(job_id), polling.RETRY_SECONDS)
    yield job
    current = attempt or max(job.attempt, 1)
    while True:
        pause = polling.QUICK_SECONDS
        while job.attempt < current and not job.is_final:
            await asyncio.sleep(pause)
            pause = polling.longer(pause)
            latest = await client.send(jobs.job(job_id), polling.RETRY_SECONDS)
            if polling.has_changed(job, latest):
                job = latest
                yield job
        if job.attempt < current:
            return
        async for item in _follow_attempt(client, job, current, rank, offset):
            if isinstance(item, JobData):
                job = item
            yield item
        if attempt is not None or (job.is_final and job.attempt <= current):
            return
        current, offset = current + 1, 0


async def _follow_attempt(
    client: AsyncConnection, job: JobData, attempt: int, rank: int, offset: int
) -> AsyncIterator[Log | JobData]:
    """Yield the output of one attempt up to its end, and the job when it changes."""
    idle = polling.QUICK_SECONDS
    read_at = time.monotonic()
    quiet_since: float | None = None  # since when the attempt is over and no output arrives
    while True:
        call = jobs.logs(job.id, attempt=attempt, rank=rank, offset=offset, limit=polling.PIECE_BYTES)
        piece = await client.send(call, polling.RETRY_SECONDS)
        offset = piece.next_offset
        if piece.data:
            yield piece
            idle, quiet_since = polling.QUICK_SECONDS, None
            if offset < piece.size:
                continue
        now = time.monotonic()
        if piece.is_complete or now - read_at >= polling.READ_JOB_SECONDS:
            latest = await client.send(jobs.job(job.id), polling.RETRY_SECONDS)
            if polling.has_changed(job, latest):
                job = latest
                yield job
            read_at = now
        if job.is_final or job.attempt > attempt or job.is_waiting:
            quiet_since = quiet_since or now
            if piece.is_complete or now - quiet_since > polling.LATE_BYTES_SECONDS:
                return
        await asyncio.sleep(idle)
        idle = polling.longer(idle)


async def events(
    client: AsyncConnection, since: int | None, tenant: str | None, kind: str | None, *, is_following: bool
) -> AsyncIterator[JobEvent]:
    """Yield events of all jobs in order, after the id `since`; without `is_following` up to now. Resume after a lost
    connection."""
    while True:
        requested_at = time.monotonic()
        # The first answer gives the position at once: a long poll without one that broke would begin later.
        wait_seconds = polling.LONG_POLL_SECONDS if is_following and since is not None else 0
        call = jobs.events(since, wait_seconds=wait_seconds, tenant=tenant, kind=kind)
        page = await client.send(call, polling.RETRY_SECONDS)
        for event in page.items:
            yield event
        since = page.next_since
        if not page.more and not is_following:
            return
        if not page.more and time.monotonic() - requested_at < polling.QUICK_SECONDS:
            # A server that answers at once without events must not be polled in a tight loop.
            await asyncio.sleep(polling.QUICK_SECONDS)
