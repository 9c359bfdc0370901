"""The job of a trace: what somebody once submitted, and how long it ran."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceJob:
    """`id`: its place in the file, from 1; `name`: what the file calls it. Times are seconds, `submitted_at` on the
    file's own clock. `limit_seconds`, `predicted_seconds`: what its user, or somebody, said before it ran."""

    id: int
    name: str
    submitted_at: float
    gpus: int
    run_seconds: float
    tenant: str = "all"
    user: str = ""
    priority: int = 500
    limit_seconds: int | None = None
    predicted_seconds: float | None = None
