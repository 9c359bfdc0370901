"""What the server answers about jobs, as structs; fields that a newer server adds are ignored."""

from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from gpusched.client import notebook
from gpusched.protocol.states import FINAL, WAITING

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T]):
    items: list[T]
    next_cursor: str | None = None


class Reason(msgspec.Struct, kw_only=True):
    """Why something is in its state: a stable code, a sentence, and what can be done."""

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


class JobData(msgspec.Struct, kw_only=True):
    """A job at one moment. `state` is a word of `gpusched.protocol.states.JobState`."""

    id: int
    state: str
    tenant: str = ""
    user: str = ""
    name: str = ""
    reason: Reason | None = None
    priority: int = 0
    gpu_count: int = 0
    gpu_memory_mb: int | None = None
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
    predicted_runtime_minutes: float | None = None
    preemptible: bool = True
    requeue: bool = True
    max_retries: int = 0
    retry_on: list[str] = []
    grace_seconds: float = 0
    not_before: datetime | None = None
    depends_on: list["JobDependency"] = []
    labels: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    anti_affinity: str | None = None
    topology: str = "any"
    attempt: int = 0
    retries_used: int = 0
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    signal: int | None = None
    nodes: list[str] = []
    devices: list[JobDevice] = []

    def __repr__(self) -> str:
        return notebook.as_line(self)

    def _repr_html_(self) -> str:
        return notebook.as_html(self)

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in FINAL

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING


class Acted(msgspec.Struct, kw_only=True):
    """The answer to a submit, cancel, hold, release or requeue."""

    job: JobData
    message: str = ""


class JobDependency(msgspec.Struct, kw_only=True):
    """A job that another one waits for: its id, and how it is to end (after_ok, after_any, after_fail)."""

    job: int
    kind: str = "after_ok"


class BulkActed(msgspec.Struct, kw_only=True):
    """The answer to many jobs in one request: their ids in its order; none of a dry run."""

    job_ids: list[int]
    count: int = 0
    message: str = ""


class Position(msgspec.Struct, kw_only=True):
    """What is ahead in the queue."""

    jobs: int = 0
    gpus: int = 0


class WaitsFor(msgspec.Struct, kw_only=True):
    """How many running jobs end, and how many waiting ones start, before a job starts."""

    jobs_ending: int = 0
    jobs_starting: int = 0


class Estimate(msgspec.Struct, kw_only=True):
    """When a job starts: `p50_at` if jobs use their time limits as jobs of late did, `p90_at` if they use them up."""

    p50_at: datetime | None = None
    p90_at: datetime | None = None
    later_than: datetime | None = None
    waits_for: WaitsFor | None = None
    sentence: str = ""


class Counterfactual(msgspec.Struct, kw_only=True):
    """What would have to be different, as a program reads it and as a sentence; `starts`: then the job would start."""

    change: str
    to: str | int | float | bool | None = None
    dimension: str = ""
    starts: bool = False
    sentence: str = ""


class Also(msgspec.Struct, kw_only=True):
    """A reason that would remain if the dominant one were cured."""

    code: str
    sentence: str = ""


class Period(msgspec.Struct, kw_only=True):
    """For how long a job had a reason; the present one has no `until_at`."""

    code: str
    since_at: datetime | None = None
    until_at: datetime | None = None
    seconds: float = 0.0


class Explanation(msgspec.Struct, kw_only=True):
    """Why a job is where it is; what stands ahead of it, and what the scheduler foresees, while it waits."""

    job_id: int
    state: str
    code: str | None = None
    sentence: str = ""
    next_step: str = ""
    evidence: dict[str, Any] = {}
    since: datetime | None = None
    position: Position | None = None
    also: list[Also] = []
    counterfactual: Counterfactual | None = None
    estimate: Estimate | None = None
    history: list[Period] = []


class PlacedRank(msgspec.Struct, kw_only=True):
    """Where a rank would go; `gpus`: the numbers of its GPUs on the node."""

    rank: int
    node: str = ""
    gpus: list[int] = []
    models: list[str] = []


class Victims(msgspec.Struct, kw_only=True):
    """Whom a job would preempt; `own_jobs`: those of them that you may see."""

    jobs: int = 0
    gpus: int = 0
    rule: str = ""
    lost_gpu_seconds: float = 0
    own_jobs: list[int] = []


class Simulation(msgspec.Struct, kw_only=True):
    """What would become of a job if it were submitted now."""

    tenant: str = ""
    starts_now: bool = False
    sentence: str = ""
    placement: list[PlacedRank] = []
    reason: Reason | None = None
    estimate: Estimate | None = None
    victims: Victims | None = None
    alternatives: list[Counterfactual] = []


class RankRun(msgspec.Struct, kw_only=True):
    """One rank of an attempt. `peak_memory_of`: whether the peak is that of the whole `rank` or of its largest
    `process`."""

    rank: int
    node: str = ""
    state: str = ""
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
    """One execution of a job. `exit_class`: of what kind its end was (docs/rest.md)."""

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


class QueueItem(msgspec.Struct, kw_only=True):
    job_id: int
    position: int | None = None
    gpus_ahead: int | None = None
    name: str = ""
    tenant: str = ""
    user: str = ""
    gpu_count: int = 0
    priority: float = 0
    submitted_at: datetime | None = None
    reason: Reason | None = None
    estimate: Estimate | None = None
