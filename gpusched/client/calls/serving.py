"""The calls for endpoints, tasks and token buckets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, TypeVar

import msgspec

from gpusched.client.transport import polling
from gpusched.client.transport.call import (
    Call,
    delete,
    get,
    get_bytes,
    require_sendable_value,
    segment,
    upload,
    without_none,
    write,
)
from gpusched.protocol.batches import BYTES, JSON
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.serving import BucketData, CancelledTask, EndpointData, SubmittedTasks, TaskData

T = TypeVar("T")
# Of one read of tasks, and of one submit.
MAX_IDS, MAX_INPUTS = 500, 1000
MAX_INLINE_BYTES = 256 << 10


class EndpointOptions(TypedDict, total=False):
    """Options of an endpoint besides its name, tenant and template; docs/reference/rest.md, POST /endpoints."""

    type: str
    cost: float
    protocol: str
    port: int
    shares_replicas_with: str
    allowed_users: Sequence[str]
    max_batch: int
    max_wait_ms: int
    memory_per_request_mb: int
    max_queue: int
    timeout_seconds: float
    min_replicas: int
    max_replicas: int
    idle_seconds: int
    prewarming: bool
    warm_up: Sequence[str]
    warm_up_seconds: int


def endpoints(tenant: str | None = None) -> Call[Page[EndpointData]]:
    """Return the endpoints that you can see, with their load now."""
    return get("/endpoints", Page[EndpointData], tenant=tenant)


def endpoint(name: str, *, tenant: str | None = None) -> Call[EndpointData]:
    """Return an endpoint with its load now."""
    return get(f"/endpoints/{segment(name)}", EndpointData, tenant=tenant)


def create_endpoint(
    name: str, tenant: str | None, template: Mapping[str, Any], options: EndpointOptions
) -> Call[EndpointData]:
    """Create an endpoint; `template` is the job request of a replica."""
    return write("POST", "/endpoints", EndpointData, {"name": name, "tenant": tenant, "template": template, **options})


def change_endpoint(
    name: str, changes: Mapping[str, Any], *, tenant: str | None = None, version: int | None = None
) -> Call[EndpointData]:
    """Change fields of an endpoint, like {"max_replicas": 4}; running replicas continue as they started. `version`, as
    read, prevents lost updates."""
    path = f"/endpoints/{segment(name)}"
    return _with(write("PATCH", path, EndpointData, dict(changes), version=version), tenant=tenant)


def drain_endpoint(name: str, *, tenant: str | None = None) -> Call[EndpointData]:
    """Let an endpoint refuse new tasks; its replicas end once the waiting ones are done."""
    return _with(write("POST", f"/endpoints/{segment(name)}/drain", EndpointData), tenant=tenant)


def remove_endpoint(name: str, *, tenant: str | None = None, with_queue: bool = False) -> Call[None]:
    """Remove an endpoint and stop its replicas. `with_queue`: also if tasks wait, which are then refused."""
    return _with(delete(f"/endpoints/{segment(name)}"), tenant=tenant, with_queue="true" if with_queue else None)


def submit_tasks(
    endpoint: str, inputs: Sequence[Any], tenant: str | None, units: float, *, waits_for_room: bool = True
) -> Call[SubmittedTasks]:
    """Submit tasks, all or none. `waits_for_room`: retry while the queue is full."""
    body = without_none(endpoint=endpoint, tenant=tenant, inputs=list(inputs), units=units)
    return replace(write("POST", "/tasks", SubmittedTasks, body), repeats_refused=waits_for_room)


def is_bytes(value: object) -> bool:
    return isinstance(value, bytes | bytearray | memoryview)


def submit_inputs(
    endpoint: str, inputs: Sequence[Any], tenant: str | None, units: float, *, waits_for_room: bool
) -> Call[SubmittedTasks]:
    """Submit JSON inputs, all or none, or one input of any type."""
    if len(inputs) == 1:
        return replace(submit_task(endpoint, inputs[0], tenant, units, None), repeats_refused=waits_for_room)
    return submit_tasks(endpoint, inputs, tenant, units, waits_for_room=waits_for_room)


def submit_task(
    endpoint: str, input: Any, tenant: str | None, units: float, content_type: str | None
) -> Call[SubmittedTasks]:
    """Submit one task. Bytes and large JSON are sent as the body of the request."""
    if is_bytes(input):
        content, kind = bytes(input), content_type or BYTES
    else:
        require_sendable_value("input", input)
        content, kind = msgspec.json.encode(input), JSON
        if len(content) <= MAX_INLINE_BYTES:
            return submit_tasks(endpoint, [input], tenant, units)
    query = {"endpoint": endpoint, "tenant": tenant, "units": None if units == 1.0 else str(units)}
    return upload("/tasks", SubmittedTasks, content, kind, **query)


def task_result(task_id: int) -> Call[bytes]:
    """Return the result of a completed task as bytes, of any type and size."""
    return get_bytes(f"/tasks/{task_id}/result")


def task(task_id: int) -> Call[SubmittedTasks]:
    """Return a task, with its result if it has ended."""
    return get(f"/tasks/{task_id}", SubmittedTasks)


def ended_tasks(task_ids: Sequence[int], wait_seconds: float) -> Call[Page[TaskData]]:
    """Return those of at most MAX_IDS tasks that have ended, as soon as there are any. Below a second, ask at once."""
    wait = max(1, round(min(wait_seconds, polling.LONG_POLL_SECONDS)))
    return get("/tasks", Page[TaskData], ids=",".join(map(str, task_ids)), wait=wait)


def tasks(
    *, endpoint: str | None = None, tenant: str | None = None, state: str | None = None, limit: int = 100
) -> Call[Page[TaskData]]:
    """Return the latest tasks of your tenants, newest first."""
    return get("/tasks", Page[TaskData], endpoint=endpoint, tenant=tenant, state=state, limit=limit)


def cancel_task(task_id: int) -> Call[CancelledTask]:
    """Cancel a task. Harmless when repeated."""
    return write("POST", f"/tasks/{task_id}/cancel", CancelledTask)


def buckets(tenant: str | None = None) -> Call[Page[BucketData]]:
    """Return the token buckets of your tenants."""
    return get("/buckets", Page[BucketData], tenant=tenant)


def create_bucket(
    tenant: str,
    *,
    rate_per_second: float,
    burst: float,
    user: str | None = None,
    scope: str = "user",
    limits: str = "tasks",
    daily_budget: float | None = None,
) -> Call[BucketData]:
    """Create a token bucket (admins). `scope`: user, each or the named one, or tenant, all users together."""
    body = {"tenant": tenant, "scope": scope, "user": user, "limits": limits, "daily_budget": daily_budget}
    return write("POST", "/buckets", BucketData, {**body, "rate_per_second": rate_per_second, "burst": burst})


def change_bucket(bucket_id: int, changes: Mapping[str, Any]) -> Call[BucketData]:
    """Change the rate, burst or daily budget of a token bucket (admins), like {"rate_per_second": 5}."""
    return write("PATCH", f"/buckets/{bucket_id}", BucketData, dict(changes))


def delete_bucket(bucket_id: int) -> Call[None]:
    """Delete a token bucket (admins)."""
    return delete(f"/buckets/{bucket_id}")


def _with(call: Call[T], **query: str | None) -> Call[T]:
    return replace(call, query={**call.query, **without_none(**query)})
