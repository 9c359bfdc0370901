"""The server's explanations and forecasts of a job: why it waits, what would help, when it starts, which jobs it would
preempt."""

from datetime import datetime
from typing import Any

import msgspec

from gpusched.protocol.rest.jobs import GpuMemoryChoice, Predicted, Reason


class Position(msgspec.Struct, kw_only=True):
    """The jobs ahead in the queue."""

    jobs: int = 0
    gpus: int = 0


class WaitsFor(msgspec.Struct, kw_only=True):
    """The numbers of running jobs that end, and of waiting jobs that start, before a job starts."""

    jobs_ending: int = 0
    jobs_starting: int = 0


class Estimate(msgspec.Struct, kw_only=True):
    """The estimated start of a job: `p50_at` if jobs use their time limits as recent jobs did, `p90_at` if they use
    them up. `blockers`: the first three visible jobs whose end it depends on; `more_blockers`: the number of further
    ones. Both are empty where they are not computed, as in lists."""

    p50_at: datetime | None = None
    p90_at: datetime | None = None
    later_than: datetime | None = None
    waits_for: WaitsFor | None = None
    blockers: list[int] = []
    more_blockers: int = 0
    sentence: str = ""


class Counterfactual(msgspec.Struct, kw_only=True):
    """A change that would help, as data and as a sentence; `starts`: the job would then start."""

    change: str
    to: str | int | float | bool | None = None
    dimension: str = ""
    starts: bool = False
    sentence: str = ""


class Also(msgspec.Struct, kw_only=True):
    """A reason that would remain without the dominant one."""

    code: str
    sentence: str = ""


class Period(msgspec.Struct, kw_only=True):
    """A period in which a job had one reason; the current one has no `until_at`."""

    code: str
    since_at: datetime | None = None
    until_at: datetime | None = None
    seconds: float = 0.0


class Explanation(msgspec.Struct, kw_only=True):
    """The reason for a job's state; for a waiting job also the jobs ahead of it and the scheduler's forecast.
    `estimate_reason`: why a waiting job has no estimate. `cycle_id`: the recorded cycle that placed the job or left it
    waiting, which an admin can replay."""

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
    estimate_reason: str | None = None
    history: list[Period] = []
    cycle_id: int | None = None
    predicted: Predicted | None = None


class PlacedRank(msgspec.Struct, kw_only=True):
    """The place of a rank; `gpus`: the numbers of its GPUs on the node."""

    rank: int
    node: str = ""
    gpus: list[int] = []
    models: list[str] = []


class Victims(msgspec.Struct, kw_only=True):
    """The jobs that a job would preempt; `own_jobs`: those that you can see."""

    jobs: int = 0
    gpus: int = 0
    rule: str = ""
    lost_gpu_seconds: float = 0
    own_jobs: list[int] = []


class Advice(msgspec.Struct, kw_only=True):
    """A change of the request that `n` earlier runs suggest: `field` should be `value`."""

    field: str
    value: int
    n: int = 0
    sentence: str = ""


class Simulation(msgspec.Struct, kw_only=True):
    """The result of submitting a job now. `estimate_reason`: why it would wait without an estimate."""

    tenant: str = ""
    starts_now: bool = False
    sentence: str = ""
    placement: list[PlacedRank] = []
    reason: Reason | None = None
    estimate: Estimate | None = None
    estimate_reason: str | None = None
    victims: Victims | None = None
    alternatives: list[Counterfactual] = []
    predicted: Predicted | None = None
    gpu_memory_auto: GpuMemoryChoice | None = None
    advice: list[Advice] = []


class WouldSubmit(msgspec.Struct, kw_only=True):
    """The answer to a dry run of a submit (`dry_run`): there is no job."""

    job_id: None = None
    status: str = "would_be_submitted"
    message: str = ""
    job: None = None
    simulation: Simulation
