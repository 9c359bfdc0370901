"""What takes several calls: reading all pages, waiting for the end of a job or an element, and following its output."""

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
# Whoever waits for a job of hours should not be thrown off by a restart or an upgrade of the server.
FOLLOW_PATIENCE_SECONDS = 120.0
# Even at the last moment a server may take so long to answer.
_MIN_SECONDS = 2.0
_QUICK_SECONDS, _SLOW_SECONDS = 0.1, 1.0
_LOOK_AT_JOB_SECONDS = 2.0
# The last bytes can reach the server after the end does; a lost node sends them never.
_LATE_BYTES_SECONDS = 10.0
# Below the time-out of a request.
_POLL_SECONDS = 20


def all_items(
    call: Call[Page[T]], patience: float, limit: int | None = None, *, is_sized: bool = False
) -> Flow[list[T]]:
    """Up to `limit` items (None: all), from as many pages as it takes. `is_sized`: the call takes a `limit` itself; one
    that has been given a `limit` gets no more than that."""
    found: list[T] = []
    if isinstance(given := call.query.get("limit"), int):
        limit, is_sized = given, True
    while True:
        if is_sized:
            size = MAX_PER_PAGE if limit is None else min(MAX_PER_PAGE, limit - len(found))
            call = replace(call, query={**call.query, "limit": size})
        page = yield from exchange(call, patience)
        found += page.items
        if page.next_cursor is None or (limit is not None and len(found) >= limit):
            return found
        call = replace(call, query={**call.query, "cursor": page.next_cursor})


def wait(job_id: int, timeout: float | None) -> Flow[JobData]:
    """The job once it has ended. Raises Timeout after `timeout` seconds; the job goes on then."""
    return _until_final(
        lambda patience: exchange(_within(read_job(job_id), patience), patience), timeout, f"job {job_id}"
    )


def element(array_id: int, index: int, patience: float) -> Flow[Element]:
    """One element of an array. Raises NotFound if the job is no array, or has no such element."""
    page = yield from exchange(read_elements(array_id, index=index), patience)
    for one in page.items:
        return one
    raise NotFound(f"job {array_id} is no array", next_step="ask for the job itself")


def wait_element(array_id: int, index: int, timeout: float | None) -> Flow[Element]:
    """As `wait`, of an element of an array, that need not be a job yet."""
    what = f"element {index} of array {array_id}"
    return _until_final(lambda patience: element(array_id, index, patience), timeout, what)


def _within(call: Call[T], seconds: float) -> Call[T]:
    """Given up soon after, and not only when the usual time for an answer is over."""
    return replace(call, most_seconds=max(seconds, _MIN_SECONDS))


def _until_final(look: Callable[[float], Flow[S]], timeout: float | None, what: str) -> Flow[S]:
    if timeout is not None and math.isnan(timeout):
        raise Invalid(f"timeout must be a number of seconds, not {timeout}")
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _QUICK_SECONDS
    while True:
        left = FOLLOW_PATIENCE_SECONDS if deadline is None else deadline - time.monotonic()
        seen = yield from look(min(FOLLOW_PATIENCE_SECONDS, max(left, 0.0)))
        if seen.state in FINAL:
            return seen
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise Timeout(
                f"{what} is still {seen.state}, and the time to wait for it is over",
                next_step="it goes on; wait longer or cancel it",
            )
        yield Pause(min(pause, left))
        pause = min(pause * 1.5, _SLOW_SECONDS)


def follow(job_id: int, attempt: int | None = None, rank: int = 0, offset: int = 0) -> Flow[None]:
    """Emits the job (JobData) whenever its state, attempt or reason is a new one, and its output (Log) as it grows,
    from `offset` bytes on; over all attempts from the first that it meets, or of one attempt only. Ends with the job
    as it ended, or with that attempt."""
    job = yield from _look(job_id, None)
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
    """Emits events of all jobs (JobEvent) in their order, after the id `since`; without `is_following` up to now. After
    a break it goes on where it was."""
    while True:
        asked_at = time.monotonic()
        wait_seconds = _POLL_SECONDS if is_following else 0
        call = read_events(since, wait_seconds=wait_seconds, tenant=tenant, kind=kind)
        page = yield from exchange(call, FOLLOW_PATIENCE_SECONDS)
        for event in page.items:
            yield Emit(event)
        since = page.next_since
        if not page.more and not is_following:
            return
        if not page.more and time.monotonic() - asked_at < _QUICK_SECONDS:
            # What answers at once although there is nothing must not be asked in a loop.
            yield Pause(_QUICK_SECONDS)


def _await_attempt(job: JobData, number: int) -> Flow[JobData]:
    """The job once it has this attempt, or has ended without it."""
    pause = _QUICK_SECONDS
    while job.attempt < number and not job.is_final:
        yield Pause(pause)
        pause = min(pause * 1.5, _SLOW_SECONDS)
        job = yield from _look(job.id, job)
    return job


def _one_attempt(job: JobData, attempt: int, rank: int, offset: int) -> Flow[JobData]:
    """Emits the output of one attempt up to its end; gives the job as last seen."""
    idle = _QUICK_SECONDS
    looked_at = time.monotonic()
    ended_at: float | None = None
    while True:
        piece: Log = yield from exchange(
            read_logs(job.id, attempt=attempt, rank=rank, offset=offset, limit=PIECE_BYTES), FOLLOW_PATIENCE_SECONDS
        )
        offset = piece.next_offset
        if piece.data:
            yield Emit(piece)
            idle = _QUICK_SECONDS
            if offset < piece.size:
                continue
        now = time.monotonic()
        if piece.is_complete or now - looked_at >= _LOOK_AT_JOB_SECONDS:
            job = yield from _look(job.id, job)
            looked_at = now
        has_ended = job.is_final or job.attempt > attempt or job.is_waiting
        if has_ended:
            ended_at = ended_at or now
            if piece.is_complete or now - ended_at > _LATE_BYTES_SECONDS:
                return job
        yield Pause(idle)
        idle = min(idle * 1.5, _SLOW_SECONDS)


def _look(job_id: int, before: JobData | None) -> Flow[JobData]:
    job: JobData = yield from exchange(read_job(job_id), FOLLOW_PATIENCE_SECONDS)
    if before is None or _news(job) != _news(before):
        yield Emit(job)
    return job


def _news(job: JobData) -> tuple[object, ...]:
    return job.state, job.attempt, job.reason and job.reason.code


def job_of(one: Element, array_id: int) -> int:
    """The id of the job that an element is. Raises NotFound before it is one."""
    if one.job_id is None:
        raise NotFound(f"element {one.index} of array {array_id} is {one.state} and no job yet")
    return one.job_id
