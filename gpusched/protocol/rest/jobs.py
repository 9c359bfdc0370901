"""The server's answers about jobs, as structs; fields of a newer server are ignored."""

from datetime import datetime
from html import escape
from typing import Any, Generic, TypeVar

import msgspec

from gpusched.protocol.affinity import NodeAffinity, Toleration
from gpusched.protocol.states import FINAL, WAITING

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T]):
    items: list[T]
    next_cursor: str | None = None


class JobCount(msgspec.Struct, kw_only=True):
    """The number of matching jobs. `jobs`: an array counts once; `is_more`: the server stopped after 10,000 jobs, so
    there may be more. `with_elements`: the same with each matching element of an array; None if `is_more`, or with more
    than 100 arrays."""

    jobs: int
    is_more: bool = False
    with_elements: int | None = None


class Reason(msgspec.Struct, kw_only=True):
    """The reason for a state: a stable code, a sentence, and the next step."""

    code: str
    sentence: str = ""
    next_step: str = ""
    evidence: dict[str, Any] = {}
    since: datetime | None = None


class JobDevice(msgspec.Struct, kw_only=True):
    node: str = ""
    index: int | None = None
    uuid: str = ""
    model: str = ""
    memory_mb: int | None = None


class ArrayData(msgspec.Struct, kw_only=True):
    """An array's progress. `remaining`: elements that wait to be placed, for the first time or again; `by_state` counts
    each element once. `max_parallel` None: any number at once."""

    count: int
    max_parallel: int | None = None
    remaining: int = 0
    by_state: dict[str, int] = {}


class Predicted(msgspec.Struct, kw_only=True):
    """The run time that the history predicts, in seconds: of ten such jobs one ends before `p10`, half before `p50` and
    nine before `p90`; of a running job, in all. `source`: the runs it comes from, `n` of them. `is_used`: the scheduler
    orders by it. Only of one job that waits or runs; null in lists and with fewer than two runs."""

    p10: float
    p50: float
    p90: float
    n: int = 0
    source: str = ""
    is_used: bool = False


class GpuMemoryChoice(msgspec.Struct, kw_only=True):
    """The server's choice for `gpu_memory_mb: "auto"`: the amount at the submit (None: whole GPUs of any size), its
    source, `n` earlier runs, and `retries`: how often it was raised since, after the job ran out of GPU memory."""

    gpu_memory_mb: int | None = None
    n: int = 0
    source: str = ""
    retries: int = 0


class JobData(msgspec.Struct, kw_only=True):
    """A job at one moment. `state` is a value of `gpusched.protocol.states.JobState`."""

    id: int
    state: str
    tenant: str = ""
    user: str = ""
    name: str = ""
    reason: Reason | None = None
    priority: int = 0
    gpu_count: int = 0
    gpu_memory_mb: int | None = None
    gpu_memory_auto: GpuMemoryChoice | None = None
    gpu_model: str | None = None
    gpu_sharing: str = ""
    cpu_cores: float = 0.0
    memory_mb: int = 0
    command: list[str] = []
    args: list[str] = []
    script: str | None = None
    workdir: str | None = None
    environment: dict[str, str] = {}
    secrets: list[str] = []
    image: str | None = None
    runtime: str = "auto"
    mounts: list[str] = []
    gang_scheduling: bool = False
    ranks: int | None = None
    workload_class: str = ""
    max_runtime_minutes: float | None = None
    max_runtime_source: str | None = None
    predicted_runtime_minutes: float | None = None
    predicted: Predicted | None = None
    preemptible: bool = True
    requeue: bool = True
    max_retries: int = 0
    retry_on: list[str] = []
    grace_seconds: float = 0
    not_before: datetime | None = None
    depends_on: list["JobDependency"] = []
    array: ArrayData | None = None
    array_id: int | None = None
    array_index: int | None = None
    labels: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    node_affinity: NodeAffinity | None = None
    tolerations: list[Toleration] = []
    anti_affinity: str | None = None
    topology: str = "any"
    reservation: int | None = None
    attempt: int = 0
    retries_used: int = 0
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    deadline_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    signal: int | None = None
    nodes: list[str] = []
    devices: list[JobDevice] = []

    def __repr__(self) -> str:
        return _as_line(self)

    def _repr_html_(self) -> str:
        return _as_html(self)

    @property
    def is_final(self) -> bool:
        """True if nothing more will happen to the job."""
        return self.state in FINAL

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING


class Acted(msgspec.Struct, kw_only=True):
    """The answer to a submit, cancel, hold, release or requeue. `status`: submitted, or the state of the job."""

    job_id: int = 0
    status: str = ""
    job: JobData
    message: str = ""


class JobDependency(msgspec.Struct, kw_only=True):
    """A job that another one waits for: its id, and the required end (after_ok, after_any, after_fail)."""

    job: int
    kind: str = "after_ok"


class BulkActed(msgspec.Struct, kw_only=True):
    """The answer to many jobs in one request: their ids in its order; empty for a dry run."""

    job_ids: list[int]
    status: str = ""
    count: int = 0
    message: str = ""


class RankRun(msgspec.Struct, kw_only=True):
    """A rank of an attempt. `peak_memory_of`: the scope of the peak: the whole `rank` or its largest `process`."""

    rank: int
    node: str = ""
    state: str = ""
    reason: str | None = None
    exit_class: str | None = msgspec.field(default=None, name="class")
    exit_code: int | None = None
    signal: int | None = None
    detail: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    peak_memory_mb: int | None = None
    peak_memory_of: str | None = None
    devices: list[JobDevice] = []


class Attempt(msgspec.Struct, kw_only=True):
    """An execution of a job. `exit_class`: the kind of its end (docs/rest.md)."""

    number: int
    state: str = ""
    reason: str | None = None
    sentence: str | None = None
    exit_class: str | None = msgspec.field(default=None, name="class")
    exit_code: int | None = None
    signal: int | None = None
    scheduled_at: datetime | None = None
    started_at: datetime | None = None
    saved_at: datetime | None = None
    ended_at: datetime | None = None
    ranks: list[RankRun] = []


class Log(msgspec.Struct, kw_only=True):
    """Bytes [offset, next_offset) of the output of one rank of one attempt, which is `size` bytes long so far."""

    data: bytes
    offset: int = 0
    next_offset: int = 0
    size: int = 0
    is_complete: bool = False
    attempt: int = 0

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


def _as_line(job: JobData) -> str:
    """Return text such as <job 42 train: running on n1>."""
    nodes = f" on {', '.join(job.nodes)}" if job.nodes else ""
    reason = f": {job.reason.sentence}" if job.reason and job.reason.sentence else ""
    name = f" {job.name}" if job.name else ""
    return f"<job {job.id}{name} is {job.state}{nodes}{reason}>"


def _as_html(job: JobData) -> str:
    """Return a table of the most important fields. Names and sentences come from other users, and are escaped."""
    rows = {
        "job": f"{job.id} {job.name}".rstrip(),
        "state": job.state,
        "why": job.reason.sentence if job.reason else "",
        "tenant, user": f"{job.tenant}, {job.user}",
        "GPUs": f"{job.gpu_count} {job.gpu_model or ''}".rstrip(),
        "nodes": ", ".join(job.nodes),
        "exit code": "" if job.exit_code is None else str(job.exit_code),
    }
    cells = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items() if text)
    return f"<table>{cells}</table>"
