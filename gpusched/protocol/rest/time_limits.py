"""What a change of a job's time limit says, and what it is answered."""

from datetime import datetime

import msgspec

from gpusched.protocol.rest.jobs import JobData


class Extension(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Either the new limit, counted from the start, or by how much it changes (less than 0: shorter). `force`, of an
    admin: also past what a waiting job is promised."""

    max_runtime_minutes: float | None = None
    add_minutes: float | None = None
    force: bool = False


class Delay(msgspec.Struct, kw_only=True):
    """A waiting job that starts later by it, if all that runs uses up its limits. `p90_at` None: nobody can say."""

    job_id: int
    was_p90_at: datetime
    p90_at: datetime | None = None


class Extended(msgspec.Struct, kw_only=True):
    """`status`: changed, unchanged, or would_be_changed (`job` is then as it is). `ends_at`: when a running job reaches
    the limit. `delays`: jobs that you may see; `others_delayed`: how many more."""

    job_id: int
    status: str
    message: str
    job: JobData
    ends_at: datetime | None = None
    delays: list[Delay] = []
    others_delayed: int = 0
