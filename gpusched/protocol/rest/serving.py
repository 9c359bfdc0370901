"""The server's answers about endpoints, tasks and token buckets, as structs; fields of a newer server are ignored."""

from datetime import datetime
from typing import Any

import msgspec


class EndpointData(msgspec.Struct, kw_only=True):
    """A model that a tenant serves. `queued` and `running`: requests now; `oldest_wait_seconds`: of those that wait.
    `warm`: replicas that accept requests; `replicas`: all of them. `problem`: why it gets no more replicas."""

    id: int
    name: str
    tenant: str
    owner: str
    state: str
    type: str
    cost: float
    protocol: str
    template: dict[str, Any]
    allowed_users: list[str] | None = None
    shares_replicas_with: str | None = None
    port: int | None = None
    max_batch: int = 8
    max_wait_ms: int = 10
    memory_per_request_mb: int = 0
    max_queue: int = 1000
    timeout_seconds: float = 30.0
    min_replicas: int = 0
    max_replicas: int = 1
    idle_seconds: int = 300
    version: int = 1
    queued: int = 0
    running: int = 0
    oldest_wait_seconds: float | None = None
    replicas: int = 0
    warm: int = 0
    seconds_per_cost: float | None = None
    cold_start_seconds: float | None = None
    problem: str = ""
    created_at: datetime | None = None
    status: str = ""


class TaskData(msgspec.Struct, kw_only=True):
    """An inference request. `output`: the result if it is JSON of at most 256 KiB; other results have `output_type` and
    `output_bytes`, and are fetched from tasks/{id}/result. `batch_size` and `flush_reason`: of the batch that it ran
    in."""

    id: int
    endpoint: str
    tenant: str
    user: str
    state: str
    cost: float
    attempt: int = 0
    output: Any = None
    output_type: str = ""
    output_bytes: int | None = None
    input_bytes: int = 0
    error_code: str = ""
    error: str = ""
    batch_size: int | None = None
    flush_reason: str = ""
    replica_job_id: int | None = None
    queued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


class SubmittedTasks(msgspec.Struct, kw_only=True):
    """The tasks of a submit, in its order; with `wait`, as they were when the wait ended."""

    items: list[TaskData]
    queued: int = 0


class CancelledTask(msgspec.Struct, kw_only=True):
    """`status`: `cancelled`, or `had_ended`."""

    id: int
    status: str
    state: str


class BucketData(msgspec.Struct, kw_only=True):
    """A limit on the speed of submits: `rate_per_second` tokens flow in, at most `burst` accumulate, and at most
    `daily_budget` are taken in a day of the tenant's time zone. `user` of the scope `user`: null is each user."""

    id: int
    tenant: str
    scope: str
    user: str | None = None
    limits: str = "tasks"
    rate_per_second: float = 0.0
    burst: float = 0.0
    daily_budget: float | None = None
    created_by: str = ""
    created_at: datetime | None = None
