"""The server's answers about notifications, as structs; fields of a newer server are ignored."""

from datetime import datetime
from typing import Literal

import msgspec

NoticeKind = Literal[
    "job_ended",
    "job_failed",
    "job_about_to_end",
    "job_preempted",
    "budget",
    "reservation_starting",
    "reservation_idle",
    "reservation_lost_gpus",
    "reservation_released",
    "incident",
]


class RouteData(msgspec.Struct, kw_only=True):
    """Where notices of some kinds go, for people. `target`: without its secrets. `tenant` null: your own. `pending` and
    `failed`: deliveries. `problem`: why the latest sends failed, since `failing_since`."""

    id: int
    name: str
    tenant: str | None = None
    target: str = ""
    kinds: list[str] = []
    enabled: bool = True
    time_zone: str = "UTC"
    quiet_from: str | None = None
    quiet_until: str | None = None
    digest_minutes: int = 0
    pending: int = 0
    failed: int = 0
    problem: str = ""
    failing_since: datetime | None = None
    last_sent_at: datetime | None = None
    version: int = 1
    created_by: str = ""
    created_at: datetime | None = None
    status: str = ""


class WebhookData(msgspec.Struct, kw_only=True):
    """A program that gets notices of some kinds as signed requests. `url`: without its path. `previous_secret_until`:
    until then the secret from before the rotation signs, too."""

    id: int
    name: str
    tenant: str | None = None
    url: str = ""
    kinds: list[str] = []
    enabled: bool = True
    previous_secret_until: datetime | None = None
    pending: int = 0
    failed: int = 0
    problem: str = ""
    failing_since: datetime | None = None
    last_sent_at: datetime | None = None
    version: int = 1
    created_by: str = ""
    created_at: datetime | None = None
    status: str = ""


class WebhookWithSecret(WebhookData, kw_only=True):
    """A webhook with a new secret. `secret`: only this answer has it."""

    secret: str


class DeliveryData(msgspec.Struct, kw_only=True):
    """A notice to a route or webhook. `uid`: its stable id, the same in each attempt. `subject_id`: the job,
    reservation or incident. `state`: pending, sent or failed (given up)."""

    id: int
    uid: str
    route_id: int
    route: str
    kind: str
    state: str
    subject_id: int | None = None
    at: datetime | None = None
    attempts: int = 0
    next_at: datetime | None = None
    status_code: int | None = None
    error: str = ""
    created_at: datetime | None = None
    ended_at: datetime | None = None
