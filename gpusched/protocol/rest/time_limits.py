"""The request to change a job's time limit, and its answer."""

from datetime import datetime

import msgspec

from gpusched.protocol.rest.jobs import JobData


class Extension(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Either the new limit, counted from the start, or the change (negative: shorter). `force`, for admins: even if it
    delays a waiting job's promised start."""

    max_runtime_minutes: float | None = None
    add_minutes: float | None = None
    force: bool = False


class Delay(msgspec.Struct, kw_only=True):
    """A waiting job that starts later because of the change, if all running jobs use up their limits. `p90_at` None:
    unknown."""

    job_id: int
    was_p90_at: datetime
    p90_at: datetime | None = None


class Extended(msgspec.Struct, kw_only=True):
    """The result of the change. `status`: changed, unchanged, or would_be_changed (`job` is then as it is).
    `ends_at`: when a running job reaches the limit. `delays`: jobs that you can see; `others_delayed`: the number of
    further ones."""

    job_id: int
    status: str
    message: str
    job: JobData
    ends_at: datetime | None = None
    delays: list[Delay] = []
    others_delayed: int = 0
