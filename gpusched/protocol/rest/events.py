"""What the server answers about what happened to jobs, as structs; fields that a newer server adds are ignored."""

from datetime import datetime
from typing import Any

import msgspec


class Event(msgspec.Struct, kw_only=True):
    """`id`: its place in the order of all jobs' events. `actor`: the person, if it was one. `via`: page, `token` and
    its prefix, agent, or scheduler."""

    id: int = 0
    at: datetime
    kind: str
    attempt: int | None = None
    actor: str | None = None
    via: str = ""
    data: dict[str, Any] = {}


class JobEvent(Event, kw_only=True):
    """An event among those of all jobs: `id` is its place in their order, `name` that of the job."""

    id: int
    job_id: int
    tenant: str = ""
    name: str = ""


class EventPage(msgspec.Struct, kw_only=True):
    """Events in order. Go on with `next_since`; `more`: there is something to look at already."""

    items: list[JobEvent]
    next_since: int
    more: bool = False
