"""REST for inference requests, which are called tasks here."""

import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from django.db import transaction
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.concurrency_limit import ConcurrencyLimiter
from gpusched.lib.api.dry_run import is_dry_run
from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.api.rest import PAGED, cursor_number, page_limit, paged, read_body, read_query, whole_number
from gpusched.lib.audit import log
from gpusched.lib.bus import events
from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread
from gpusched.protocol.batches import JSON
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.serving import CancelledTask, SubmittedTasks, TaskData
from gpusched.protocol.states import Role
from serving.endpoints import endpoints
from serving.models import InferenceRequest, RequestState
from serving.requests import endings, representation
from serving.requests.submit import NewRequest, submit
from serving.requests.waiting_clients import waiting_clients
from tenants import buckets
from tenants.api.tenants import find_tenant
from tenants.auth.identity import Identity, identity

MAX_TASKS, MAX_WAIT_SECONDS, MAX_INPUT_BYTES = 1000, 60, 256 << 10
MAX_UNITS = 1e6
_FINAL = frozenset(RequestState) - {RequestState.QUEUED, RequestState.RUNNING}
_WAIT = {"wait": f"0 to {MAX_WAIT_SECONDS} (0): seconds to wait for the results"}
_threads = ThreadPoolExecutor(2, thread_name_prefix="tasks")
_limiter = ConcurrencyLimiter(
    5_000,
    1_000,
    code="too_many_streams",
    subject="clients wait for tasks",
    next_step="try again later, or ask without `wait`",
)


class NewTasks(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Either `input`, any JSON, or `inputs`, at most 1,000 of them, each at most 256 KiB. `units`: of each, its cost is
    that of the endpoint times this. `tenant`: needed if several of yours have an endpoint of this name."""

    endpoint: str
    tenant: str | None = None
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    inputs: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    units: float = 1.0


class Tasks(APIView):
    @documented(
        "Submit tasks",
        tag="serving",
        who="member",
        body=NewTasks,
        answer=SubmittedTasks,
        status=201,
        parameters=_WAIT,
        refusals=(400, 401, 403, 404, 409, 413, 415, 429),
    )
    def post(self, request: Request) -> HttpResponseBase:
        """All of them or none. The answer comes once they are durable, or with `wait` once they have ended, and then
        has their results. `Queue-Warning`: the queue is nearly full. `RateLimit-*`: of the bucket with the fewest
        tokens."""
        caller, seconds = identity(request), _wait_seconds(request)
        if seconds and (is_dry_run(request) or request.headers.get("Idempotency-Key")):
            message = "does not go with dry_run or an Idempotency-Key; wait with GET /tasks/{id}?wait="
            raise invalid([FieldError("wait", "conflict", message)])
        body = read_body(request, NewTasks)
        new = _new_requests(body)
        tenant_id = find_tenant(body.tenant, caller).pk if body.tenant else None
        endpoint = endpoints.find(body.endpoint, tenant_id, caller)
        endpoints.require_use(endpoint, caller)
        submitted = submit(endpoint, new, caller)
        headers = buckets.headers(submitted.room) if submitted.room else {}
        if submitted.is_nearly_full:
            headers["Queue-Warning"] = f"endpoint={endpoint.name};used={submitted.queued};limit={endpoint.max_queue}"
        return _answer(submitted.ids, caller, seconds, {"queued": submitted.queued}, headers)

    @documented(
        "List tasks, newest first",
        tag="serving",
        who="viewer",
        answer=Page[TaskData],
        parameters={"endpoint": "name of an endpoint", "tenant": "its tenant", "state": "a state", **PAGED},
    )
    def get(self, request: Request) -> Response:
        """Of your own tenants. Ended ones are kept for 24 hours."""
        caller, filters = identity(request), read_query(request)
        if filters.get("state", "queued") not in RequestState.values:
            raise invalid([FieldError("state", "unknown_value", f"must be one of {', '.join(RequestState.values)}")])
        endpoint_id = None
        if "endpoint" in filters:
            tenant_id = find_tenant(filters["tenant"], caller).pk if "tenant" in filters else None
            endpoint_id = endpoints.find(filters["endpoint"], tenant_id, caller).pk
        limit = page_limit(filters)
        items = representation.listed(
            caller.visible_tenants(), limit, endpoint=endpoint_id, before=cursor_number(filters, "tasks"),
            state=filters.get("state"),
        )  # fmt: skip
        return Response(paged(items, limit, "tasks"))


class OneTask(APIView):
    @documented("Read a task", tag="serving", who="viewer", answer=SubmittedTasks, parameters=_WAIT)
    def get(self, request: Request, task_id: int) -> HttpResponseBase:
        """With its result, if it has ended; `wait` waits for that."""
        caller, seconds = identity(request), _wait_seconds(request)
        if not representation.tasks([task_id], caller.visible_tenants()):
            raise not_found(f"task {task_id}")
        return _answer([task_id], caller, seconds, {}, {}, status=200)


class TaskResult(APIView):
    @documented(
        "Read the result of a task as bytes",
        tag="serving",
        who="viewer",
        media_types=("application/octet-stream",),
        refusals=(400, 401, 403, 404, 409),
    )
    def get(self, request: Request, task_id: int) -> HttpResponse:
        """With the media type that its replica returned. 409 while there is none."""
        found = _find(task_id, identity(request))
        if found.result is None:
            detail = f"task {task_id} is {found.state} and has no result"
            raise Problem(409, "no_result", detail, next_step="wait until it is completed")
        # Never as a page of this site, whatever the replica says.
        headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
        return HttpResponse(bytes(found.result), content_type=found.result_type or None, headers=headers)


class CancelTask(APIView):
    @documented(
        "Cancel a task",
        tag="serving",
        who="own tasks: member, else owner",
        answer=CancelledTask,
        operation_id="tasks_cancel",
    )
    def post(self, request: Request, task_id: int) -> Response:
        """Harmless when repeated. A task in progress is cancelled, too: its result is dropped."""
        caller = identity(request)
        found = _find(task_id, caller)
        caller.require(caller.role_for(found.user_id), found.endpoint.tenant_id, f"task {task_id}")
        with transaction.atomic():
            ended = endings.cancel([task_id])
            found.refresh_from_db(fields=["state"])
            if ended:
                before = RequestState.QUEUED if ended[0].was_queued else RequestState.RUNNING
                log.record("task.cancel", f"task {task_id}", {"state": str(before)}, {"state": found.state})
                events.changed("tasks", [task_id])
        return Response({"id": task_id, "status": "cancelled" if ended else "had_ended", "state": found.state})


def _new_requests(body: NewTasks) -> list[NewRequest]:
    """Return the requests of a body; 400 for a wrong number or size."""
    if (body.input is msgspec.UNSET) == (body.inputs is msgspec.UNSET):
        raise invalid([FieldError("input", "required", "give either input or inputs")])
    inputs: Sequence[msgspec.Raw] = body.inputs if isinstance(body.inputs, list) else [body.input]  # type: ignore[list-item]
    name = "inputs" if isinstance(body.inputs, list) else "input"
    if not 1 <= len(inputs) <= MAX_TASKS:
        raise invalid([FieldError("inputs", "out_of_range", f"must have 1 to {MAX_TASKS} entries")])
    if not 0 < body.units <= MAX_UNITS:
        raise invalid([FieldError("units", "out_of_range", f"must be above 0 and at most {MAX_UNITS:g}")])
    for number, entry in enumerate(inputs):
        if len(bytes(entry)) > MAX_INPUT_BYTES:
            field = name if name == "input" else f"{name}[{number}]"
            raise invalid([FieldError(field, "too_long", f"has more than {MAX_INPUT_BYTES >> 10} KiB")])
    return [NewRequest(bytes(entry), JSON, body.units) for entry in inputs]


def _find(task_id: int, caller: Identity) -> InferenceRequest:
    found = InferenceRequest.objects.select_related("endpoint").filter(pk=task_id).first()
    if found is None or not caller.sees(found.endpoint.tenant_id):
        raise not_found(f"task {task_id}")
    caller.require(Role.VIEWER, found.endpoint.tenant_id, f"task {task_id}")
    return found


def _wait_seconds(request: Request) -> int:
    return whole_number(read_query(request), "wait", 0, 0, MAX_WAIT_SECONDS)


def _answer(
    ids: Sequence[int], caller: Identity, seconds: int, more: dict[str, Any], headers: dict[str, str], status: int = 201
) -> HttpResponseBase:
    """Return the answer, with the results if the client waits. Too many waiting clients get it at once instead."""
    visible = caller.visible_tenants()
    options: dict[str, Any] = {"content_type": JSON, "status": status}
    if seconds:
        content = _once_ended(ids, visible, seconds, more)
        with suppress(Problem):
            streamed = {**headers, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
            return _limiter.streamed(caller.username, content, headers=streamed, **options)
    items = representation.tasks(ids, visible)
    return HttpResponse(msgspec.json.encode({"items": items, **more}), headers=headers, **options)


async def _once_ended(
    ids: Sequence[int], visible: Sequence[int] | None, seconds: float, more: dict[str, Any]
) -> AsyncIterator[bytes]:
    """Yield one answer, once all have ended or after `seconds`. An outage of the database does not end the wait."""
    ends_at, items = time.monotonic() + seconds, []
    while True:
        with suppress(DatabaseAway, WorkFailed):
            items = await run_in_thread(_threads, partial(representation.tasks, ids, visible))
        unfinished = [item["id"] for item in items if item["state"] not in _FINAL] if items else list(ids)
        remaining = ends_at - time.monotonic()
        if not unfinished or remaining <= 0:
            break
        await waiting_clients.wait(unfinished, remaining)
    yield msgspec.json.encode({"items": items, **more})
