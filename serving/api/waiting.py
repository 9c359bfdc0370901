"""Answers to clients that wait for the end of tasks."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from django.http import HttpResponse
from django.http.response import HttpResponseBase

from gpusched.lib.api.concurrency_limit import ConcurrencyLimiter
from gpusched.lib.api.problems import Problem, database_away, not_found, response_for
from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread
from gpusched.lib.web.deferred import DeferredResponse
from gpusched.protocol.batches import JSON
from serving.models import OPEN_STATES
from serving.requests import recent_ends, representation
from serving.requests.shared_reads import Rows, SharedReads
from serving.requests.waiting_clients import waiting_clients
from tenants.auth.identity import Identity
from tenants.auth.page_access import Credential, identity_of

# Limits the delay when a notification of the database is lost.
POLL_SECONDS = 2.0
# Tasks that end soon after each other come in one answer.
GATHER_SECONDS = 0.05
# After a longer wait, the caller's rights are checked again: they may have ended meanwhile.
UNCHECKED_SECONDS = 2.0
_limiter = ConcurrencyLimiter(
    5_000,
    1_000,
    code="too_many_streams",
    subject="clients wait for tasks",
    next_step="try again later, or ask without `wait`",
)


def _read(ids: Sequence[int]) -> Rows:
    return {task["id"]: task for task in representation.tasks(ids, None)}


_reads = SharedReads(_read)
_checks = ThreadPoolExecutor(1, thread_name_prefix="callers")


def answer(
    ids: Sequence[int],
    caller: Identity,
    seconds: float,
    *,
    credential: Credential | None = None,
    more: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    status: int = 200,
    is_first_enough: bool = False,
    new: Sequence[Mapping[str, Any]] = (),
) -> HttpResponseBase:
    """Return these tasks, which the caller may see; with `seconds`, once all have ended or after that time.
    `is_first_enough`: only those that have ended, once there are any. `new`: the tasks as this request has submitted
    them. `credential`: of the caller, who may lose the right during the wait: then the answer is a refusal, or `new`,
    as an error would have them submitted again. Too many waiting clients get all at once. 503 if the database did not
    answer in that time."""
    began = time.monotonic()

    def response(items: Sequence[Mapping[str, Any]]) -> HttpResponse:
        content = msgspec.json.encode({"items": items, **(more or {})})
        return HttpResponse(content, content_type=JSON, status=status, headers=headers)

    async def ended() -> list[Mapping[str, Any]]:
        try:
            with _limiter.slot(caller.username):
                return await _once_ended(ids, seconds, is_first_enough, new)
        except Problem:
            return await _once_ended(ids, 0.0, is_first_enough, new)

    async def wait() -> HttpResponse:
        try:
            items = await ended()
            refusal = await _refusal_after(time.monotonic() - began, ids, credential)
        except DatabaseAway:
            refusal = database_away()
        if refusal is None:
            return response(items)
        return response(new) if new else response_for(refusal)

    if seconds:
        return DeferredResponse(wait)
    return response(representation.tasks(ids, caller.visible_tenants()))


async def _refusal_after(seconds: float, ids: Sequence[int], credential: Credential | None) -> Problem | None:
    """Return why the caller may not see these tasks after a wait; None if they may. Raises DatabaseAway."""
    if seconds <= UNCHECKED_SECONDS or credential is None:
        return None
    return await run_in_thread(_checks, partial(_refusal, ids, credential))


def _refusal(ids: Sequence[int], credential: Credential) -> Problem | None:
    caller = identity_of(credential)
    if caller is None:
        detail = "the token or session is no longer valid"
        return Problem(401, "not_authenticated", detail, next_step="use another token, or log in again")
    visible = representation.visible_ids(ids, caller.visible_tenants())
    return next((not_found(f"task {task_id}") for task_id in ids if task_id not in visible), None)


async def _once_ended(
    ids: Sequence[int], seconds: float, is_first_enough: bool, new: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the tasks as they are once they have ended. An outage of the database does not end the wait; without one
    read until its end, raises DatabaseAway or WorkFailed."""
    ends_at = time.monotonic() + seconds
    known: dict[int, Mapping[str, Any]] = {task["id"]: task for task in new}
    with waiting_clients.watch(ids) as changed:
        if new:  # a read now would find them queued
            await _set_or_after(changed, min(seconds, POLL_SECONDS))
        while True:
            changed.clear()
            open_ids = [number for number in ids if number not in known or not _has_ended(known[number])]
            known.update(recent_ends.tasks(open_ids))
            if unread := [number for number in open_ids if number not in known or not _has_ended(known[number])]:
                try:
                    known.update(await _reads.rows(unread))
                except (DatabaseAway, WorkFailed):
                    if not known and time.monotonic() >= ends_at:
                        raise
            ended = [number for number in ids if number in known and _has_ended(known[number])]
            remaining = ends_at - time.monotonic()
            if len(ended) == len(ids) or remaining <= 0 or (is_first_enough and ended):
                break
            await _set_or_after(changed, min(remaining, POLL_SECONDS))
            if len(open_ids) > 1:
                await asyncio.sleep(min(GATHER_SECONDS, max(0.0, ends_at - time.monotonic())))
    shown = ended if is_first_enough else [number for number in ids if number in known]
    return [known[number] for number in shown]


def _has_ended(task: Mapping[str, Any]) -> bool:
    return task["state"] not in OPEN_STATES


async def _set_or_after(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, or for this time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
