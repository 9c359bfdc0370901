"""The server's answers about events of jobs, as structs; fields of a newer server are ignored."""

from datetime import datetime
from typing import Any

import msgspec


class Event(msgspec.Struct, kw_only=True):
    """An event of a job. `id`: its position in the order of all jobs' events. `actor`: the person, if a person caused
    it. `via`: page, `token` and its prefix, agent, or scheduler."""

    id: int = 0
    at: datetime
    kind: str
    attempt: int | None = None
    actor: str | None = None
    via: str = ""
    data: dict[str, Any] = {}


class JobEvent(Event, kw_only=True):
    """An event among those of all jobs: `id` is its position in their order, `name` the job's."""

    id: int
    job_id: int
    tenant: str = ""
    name: str = ""


class EventPage(msgspec.Struct, kw_only=True):
    """Events in order. Continue with `next_since`; `more`: further events exist already."""

    items: list[JobEvent]
    next_since: int
    more: bool = False
