"""The server's answers about the elements of arrays."""

from datetime import datetime

import msgspec

from gpusched.protocol.rest.jobs import Reason


class Element(msgspec.Struct, kw_only=True):
    """An element of an array at one moment. `job_id` None: it is not a job yet, and becomes one when it is placed."""

    index: int
    state: str
    job_id: int | None = None
    reason: Reason | None = None
    attempt: int = 0
    exit_code: int | None = None
    signal: int | None = None
    nodes: list[str] = []
    started_at: datetime | None = None
    ended_at: datetime | None = None
