"""The server's answers about endpoints, tasks and token buckets, as structs; fields of a newer server are ignored."""

from datetime import datetime
from typing import Any

import msgspec


class EndpointData(msgspec.Struct, kw_only=True):
    """A model that a tenant serves. `queued` and `running`: requests now; `oldest_wait_seconds`: of those that wait.
    `warm`: replicas that accept requests; `replicas`: all of them. `problem`: why no replica starts.

    `prewarming`: a replica stays or starts when requests are likely; `is_kept_warm`: one is wanted now. Of the last
    six weeks: `prewarming_hits` and `prewarming_misses` count the requests after a pause that met a warm replica or
    none; `cold_starts_avoided`: the hits after the idle time; `gpu_hours_wasted`: warm without requests. Beyond 5 % of
    the tenant's GPU-hours of a week it is off (`is_over_budget`). `request_chance`: the chance of a request in the next
    minute; from `keep_from_chance` on a replica is warm. Both are null while pre-warming has too little history, or
    while a fixed keep-alive would be better. `warm_up`: the command that a replica runs before its own, for at most
    `warm_up_seconds`, if pre-warming starts it."""

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
    prewarming: bool = True
    warm_up: list[str] | None = None
    warm_up_seconds: int = 300
    version: int = 1
    queued: int = 0
    running: int = 0
    oldest_wait_seconds: float | None = None
    replicas: int = 0
    warm: int = 0
    seconds_per_cost: float | None = None
    cold_start_seconds: float | None = None
    is_kept_warm: bool = False
    is_over_budget: bool = False
    request_chance: float | None = None
    keep_from_chance: float | None = None
    prewarming_hits: int = 0
    prewarming_misses: int = 0
    cold_starts_avoided: int = 0
    gpu_hours_wasted: float = 0.0
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
