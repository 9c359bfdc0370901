"""The job of a trace: its submit and its real run time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace. `id`: its position in the file, from 1; `name`: its name in the file. Times are seconds,
    `submitted_at` on the file's own clock. `limit_seconds`, `predicted_seconds`: the limit and the prediction before it
    ran."""

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
