"""Operations of several calls: read all pages, wait for the end of a job or an element, and follow its output."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from gpusched.client.calls.jobs import elements as read_elements
from gpusched.client.calls.jobs import events as read_events
from gpusched.client.calls.jobs import job as read_job
from gpusched.client.calls.jobs import logs as read_logs
from gpusched.client.errors import Invalid, NotFound, Timeout
from gpusched.client.transport.call import Call
from gpusched.client.transport.exchange import Emit, Flow, Pause, exchange
from gpusched.protocol.rest.arrays import Element
from gpusched.protocol.rest.jobs import JobData, Log, Page
from gpusched.protocol.states import FINAL

T = TypeVar("T")
S = TypeVar("S", JobData, Element)

MAX_PER_PAGE = 1000
PIECE_BYTES = 1 << 20
# A wait of hours for a job must survive a restart or an upgrade of the server.
FOLLOW_RETRY_SECONDS = 120.0
# A server may take this long to answer, even just before the timeout.
_MIN_SECONDS = 2.0
_QUICK_SECONDS, _SLOW_SECONDS = 0.1, 1.0
_READ_JOB_SECONDS = 2.0
# The last bytes can reach the server after the end does; a lost node never sends them.
_LATE_BYTES_SECONDS = 10.0
# Below the timeout of a request.
_POLL_SECONDS = 20


def all_items(
    call: Call[Page[T]], retry_seconds: float, limit: int | None = None, *, is_sized: bool = False
) -> Flow[list[T]]:
    """Return up to `limit` items (None: all), from as many pages as needed. `is_sized`: the call has a `limit`
    parameter; a `limit` that it already has applies instead."""
    items: list[T] = []
    if isinstance(fixed := call.query.get("limit"), int):
        limit, is_sized = fixed, True
    while True:
        if is_sized:
            size = MAX_PER_PAGE if limit is None else min(MAX_PER_PAGE, limit - len(items))
            call = replace(call, query={**call.query, "limit": size})
        page = yield from exchange(call, retry_seconds)
        items += page.items
        if page.next_cursor is None or (limit is not None and len(items) >= limit):
            return items
        call = replace(call, query={**call.query, "cursor": page.next_cursor})


def wait(job_id: int, timeout: float | None) -> Flow[JobData]:
    """Return the job once it has ended. Raises Timeout after `timeout` seconds; the job continues."""
    return _until_final(
        lambda retry_seconds: exchange(_within(read_job(job_id), retry_seconds), retry_seconds),
        timeout,
        f"job {job_id}",
    )


def element(array_id: int, index: int, retry_seconds: float) -> Flow[Element]:
    """Return an element of an array. Raises NotFound if the job is no array, or has no such element."""
    page = yield from exchange(read_elements(array_id, index=index), retry_seconds)
    for item in page.items:
        return item
    raise NotFound(f"job {array_id} is no array", next_step="read the job itself")


def wait_element(array_id: int, index: int, timeout: float | None) -> Flow[Element]:
    """The same as `wait`, for an element of an array, which may not be a job yet."""
    subject = f"element {index} of array {array_id}"
    return _until_final(lambda retry_seconds: element(array_id, index, retry_seconds), timeout, subject)


def _within(call: Call[T], seconds: float) -> Call[T]:
    """Return the call with a shorter timeout, so that it ends soon after the deadline."""
    return replace(call, max_seconds=max(seconds, _MIN_SECONDS))


def _until_final(read: Callable[[float], Flow[S]], timeout: float | None, subject: str) -> Flow[S]:
    if timeout is not None and math.isnan(timeout):
        raise Invalid(f"timeout must be a number of seconds, not {timeout}")
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _QUICK_SECONDS
    while True:
        remaining = FOLLOW_RETRY_SECONDS if deadline is None else deadline - time.monotonic()
        latest = yield from read(min(FOLLOW_RETRY_SECONDS, max(remaining, 0.0)))
        if latest.state in FINAL:
            return latest
        remaining = pause if deadline is None else deadline - time.monotonic()
        if remaining <= 0:
            raise Timeout(
                f"{subject} is still {latest.state}, and the timeout has passed",
                next_step="it continues; wait longer or cancel it",
            )
        yield Pause(min(pause, remaining))
        pause = min(pause * 1.5, _SLOW_SECONDS)


def follow(job_id: int, attempt: int | None = None, rank: int = 0, offset: int = 0) -> Flow[None]:
    """Emit the job (JobData) whenever its state, attempt or reason changes, and its output (Log) as it grows, from
    `offset` bytes on: of all attempts from the current one on, or of one attempt only. End with the ended job, or with
    that attempt."""
    job = yield from _read(job_id, None)
    current = attempt or max(job.attempt, 1)
    while True:
        job = yield from _await_attempt(job, current)
        if job.attempt < current:
            return
        job = yield from _one_attempt(job, current, rank, offset)
        if attempt is not None or (job.is_final and job.attempt <= current):
            return
        current, offset = current + 1, 0


def events(since: int | None, tenant: str | None, kind: str | None, *, is_following: bool) -> Flow[None]:
    """Emit events of all jobs (JobEvent) in order, after the id `since`; without `is_following` up to now. Resume after
    a lost connection."""
    while True:
        requested_at = time.monotonic()
        wait_seconds = _POLL_SECONDS if is_following else 0
        call = read_events(since, wait_seconds=wait_seconds, tenant=tenant, kind=kind)
        page = yield from exchange(call, FOLLOW_RETRY_SECONDS)
        for event in page.items:
            yield Emit(event)
        since = page.next_since
        if not page.more and not is_following:
            return
        if not page.more and time.monotonic() - requested_at < _QUICK_SECONDS:
            # A server that answers at once without events must not be polled in a tight loop.
            yield Pause(_QUICK_SECONDS)


def _await_attempt(job: JobData, number: int) -> Flow[JobData]:
    """Return the job once it has this attempt, or has ended without it."""
    pause = _QUICK_SECONDS
    while job.attempt < number and not job.is_final:
        yield Pause(pause)
        pause = min(pause * 1.5, _SLOW_SECONDS)
        job = yield from _read(job.id, job)
    return job


def _one_attempt(job: JobData, attempt: int, rank: int, offset: int) -> Flow[JobData]:
    """Emit the output of one attempt up to its end; return the job as last read."""
    idle = _QUICK_SECONDS
    read_at = time.monotonic()
    ended_at: float | None = None
    while True:
        piece: Log = yield from exchange(
            read_logs(job.id, attempt=attempt, rank=rank, offset=offset, limit=PIECE_BYTES), FOLLOW_RETRY_SECONDS
        )
        offset = piece.next_offset
        if piece.data:
            yield Emit(piece)
            idle = _QUICK_SECONDS
            if offset < piece.size:
                continue
        now = time.monotonic()
        if piece.is_complete or now - read_at >= _READ_JOB_SECONDS:
            job = yield from _read(job.id, job)
            read_at = now
        has_ended = job.is_final or job.attempt > attempt or job.is_waiting
        if has_ended:
            ended_at = ended_at or now
            if piece.is_complete or now - ended_at > _LATE_BYTES_SECONDS:
                return job
        yield Pause(idle)
        idle = min(idle * 1.5, _SLOW_SECONDS)


def _read(job_id: int, previous: JobData | None) -> Flow[JobData]:
    job: JobData = yield from exchange(read_job(job_id), FOLLOW_RETRY_SECONDS)
    if previous is None or _status(job) != _status(previous):
        yield Emit(job)
    return job


def _status(job: JobData) -> tuple[object, ...]:
    return job.state, job.attempt, job.reason and job.reason.code


def job_of(element: Element, array_id: int) -> int:
    """Return the id of the element's job. Raises NotFound before it is one."""
    if element.job_id is None:
        raise NotFound(f"element {element.index} of array {array_id} is {element.state} and no job yet")
    return element.job_id
