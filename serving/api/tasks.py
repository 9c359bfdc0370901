"""REST for inference requests, which are called tasks here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
from django.db import transaction
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.dry_run import is_dry_run
from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.api.rest import PAGED, cursor_number, page_limit, paged, read_body, read_query, whole_number
from gpusched.lib.audit import log
from gpusched.lib.bus import events
from gpusched.protocol.batches import JSON
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.serving import CancelledTask, SubmittedTasks, TaskData
from gpusched.protocol.states import Role
from serving import payloads
from serving.api import waiting
from serving.api.uploads import streamed_result, uploaded_request, uploads
from serving.endpoints import endpoints
from serving.models import OPEN_STATES, Endpoint, InferenceRequest, RequestState
from serving.requests import endings, representation
from serving.requests.submit import NewRequest, Submitted, require_units, submit, submit_if_unchanged
from tenants import buckets
from tenants.api.tenants import find_tenant
from tenants.auth.identity import Identity, identity
from tenants.auth.page_access import Credential, credential_of

MAX_TASKS, MAX_WAIT_SECONDS = 1000, 60
# The ids of one read fit an address.
MAX_IDS = 500
_WAIT = {"wait": f"0 to {MAX_WAIT_SECONDS} (0): seconds to wait for the results"}
_FILTERS = {"endpoint": "name of an endpoint", "tenant": "its tenant", "state": "a state", **PAGED}


class NewTasks(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Either `input`, any JSON, or `inputs`, at most 1,000 of them, each at most 256 KiB; larger ones, and bytes, are
    sent as the body, with `endpoint` in the query. `units`: of each, its cost is
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
        parameters={
            **_WAIT,
            "endpoint": "name of the endpoint, if the body is the input",
            "tenant": "of the endpoint, if the body is the input",
            "units": "of the input, if the body is it: default 1",
        },
        refusals=(400, 401, 403, 404, 409, 413, 415, 429),
        takes_bytes=True,
    )
    def post(self, request: Request) -> HttpResponseBase:
        """All of them or none. The answer comes once they are durable, or with `wait` once they have ended, and then
        has their results. `Queue-Warning`: the queue is nearly full. `RateLimit-*`: of the bucket with the fewest
        tokens. With `endpoint` in the query, the body itself is one input, up to `GPUSCHED_TASK_MAX_MB`: JSON for
        `Content-Type: application/json`, else bytes, as `image/png` or `application/octet-stream`."""
        caller, seconds = identity(request), _wait_seconds(request)
        if seconds and (is_dry_run(request) or request.headers.get("Idempotency-Key")):
            message = "does not go with dry_run or an Idempotency-Key; wait with GET /tasks/{id}?wait="
            raise invalid([FieldError("wait", "conflict", message)])
        query = read_query(request)
        if "endpoint" in query:
            endpoint = _usable(query["endpoint"], query.get("tenant"), caller)
            with uploads.slot(caller.username):
                new = [uploaded_request(request, query)]
                # A dry run stores no file, since nothing would delete it soon.
                queued = [replace(new[0], payload=b"")] if is_dry_run(request) else new
                submitted = submit(endpoint, queued, caller)
        else:
            body = read_body(request, NewTasks)
            endpoint, new, submitted = _submitted(body, caller)
        headers = buckets.headers(submitted.room)
        if submitted.warning:
            headers["Queue-Warning"] = submitted.warning
        more = {"queued": submitted.queued}
        items = representation.queued(endpoint, caller.username, submitted.ids, new, submitted.queued_at)
        if seconds:
            return waiting.answer(
                submitted.ids, caller, seconds, credential=credential_of(request._request), more=more, headers=headers,
                status=201, new=items,
            )  # fmt: skip
        content = msgspec.json.encode({"items": items, **more})
        return HttpResponse(content, content_type=JSON, status=201, headers=headers)

    @documented(
        "List tasks, newest first, or wait for many",
        tag="serving",
        who="viewer",
        answer=Page[TaskData],
        parameters={
            **_FILTERS,
            "ids": f"up to {MAX_IDS} numbers of tasks, with commas; instead of the other filters",
            "wait": f"0 to {MAX_WAIT_SECONDS} (0), with `ids`: seconds to wait until some have ended",
        },
    )
    def get(self, request: Request) -> HttpResponseBase:
        """Of your own tenants. Ended ones are deleted after 24 hours. With `ids` and `wait`, the answer comes as soon
        as some of these tasks have ended, and has only those; ask again for the others."""
        caller, filters = identity(request), read_query(request)
        seconds = _wait_seconds(request)
        if "ids" in filters:
            return _selected(filters, caller, seconds, credential_of(request._request))
        if seconds:
            raise invalid([FieldError("wait", "conflict", "needs ids: the tasks to wait for")])
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
        _require_visible([task_id], caller)
        return waiting.answer([task_id], caller, seconds, credential=credential_of(request._request))


class TaskResult(APIView):
    @documented(
        "Read the result of a task as bytes",
        tag="serving",
        who="viewer",
        media_types=("application/octet-stream",),
        refusals=(400, 401, 403, 404, 409),
    )
    def get(self, request: Request, task_id: int) -> HttpResponseBase:
        """With the media type that its replica returned. 409 while there is none."""
        caller = identity(request)
        found = _find(task_id, caller)
        # Never as a page of this site, whatever the type of the result is.
        headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
        kind = found.result_type or None
        if found.result_file:
            return streamed_result(found.result_file, found.result_bytes or 0, caller.username, headers, kind)
        if found.result is None:
            detail = f"task {task_id} is {found.state} and has no result{found.error and f': {found.error}'}"
            step = "wait until it is completed" if found.state in OPEN_STATES else "submit its input again"
            raise Problem(409, "no_result", detail, next_step=step)
        return HttpResponse(bytes(found.result), content_type=kind, headers=headers)


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
    require_units(body.units)
    for number, entry in enumerate(inputs):
        if len(bytes(entry)) > payloads.INLINE_BYTES:
            field = name if name == "input" else f"{name}[{number}]"
            text = f"has more than {payloads.INLINE_BYTES >> 10} KiB; send it as the body of POST /tasks?endpoint="
            raise invalid([FieldError(field, "too_long", text)])
    return [NewRequest(bytes(entry), JSON, body.units) for entry in inputs]


def _submitted(body: NewTasks, caller: Identity) -> tuple[Endpoint, list[NewRequest], Submitted]:
    """Submit the inputs of a body to its endpoint, which is read only if it is not the one that was read last."""
    cached = endpoints.cached_usable(body.endpoint, body.tenant, caller)
    endpoint = cached or _usable(body.endpoint, body.tenant, caller)
    new = _new_requests(body)
    if cached is not None:
        if submitted := submit_if_unchanged(cached, new, caller):
            return cached, new, submitted
        endpoint = _usable(body.endpoint, body.tenant, caller)
    return endpoint, new, submit(endpoint, new, caller)


def _usable(name: str, tenant: str | None, caller: Identity) -> Endpoint:
    """Return the endpoint that the caller may use. 404 or 403 otherwise."""
    endpoint = endpoints.find(name, find_tenant(tenant, caller).pk if tenant else None, caller)
    endpoints.require_use(endpoint, caller)
    return endpoint


def _find(task_id: int, caller: Identity) -> InferenceRequest:
    found = InferenceRequest.objects.defer("payload").select_related("endpoint").filter(pk=task_id).first()
    if found is None or not caller.sees(found.endpoint.tenant_id):
        raise not_found(f"task {task_id}")
    caller.require(Role.VIEWER, found.endpoint.tenant_id, f"task {task_id}")
    return found


def _wait_seconds(request: Request) -> int:
    return whole_number(read_query(request), "wait", 0, 0, MAX_WAIT_SECONDS)


def _selected(
    filters: Mapping[str, str], caller: Identity, seconds: int, credential: Credential | None
) -> HttpResponseBase:
    """Return the tasks that `ids` names."""
    if others := sorted(_FILTERS.keys() & filters.keys()):
        raise invalid([FieldError(others[0], "conflict", "does not go with ids")])
    texts = filters["ids"].split(",")
    if len(texts) > MAX_IDS or not all(re.fullmatch("[0-9]{1,18}", text) for text in texts):
        raise invalid([FieldError("ids", "invalid", f"must be 1 to {MAX_IDS} numbers of tasks, with commas between")])
    ids = list(dict.fromkeys(map(int, texts)))
    _require_visible(ids, caller)
    more = {"next_cursor": None}
    return waiting.answer(ids, caller, seconds, credential=credential, more=more, is_first_enough=True)


def _require_visible(ids: Sequence[int], caller: Identity) -> None:
    """Raise 404 for the first of these tasks that does not exist or that the caller must not see."""
    visible = representation.visible_ids(ids, caller.visible_tenants())
    for task_id in ids:
        if task_id not in visible:
            raise not_found(f"task {task_id}")
