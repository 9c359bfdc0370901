"""The frozen values that the engine thinks in: a snapshot of the cluster, the policy, and the plan that comes out.

Times are seconds since the epoch (UTC), sizes MiB, CPU in millicores (1000 = one core). Ids are the database's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduling.engine.affinity import Expression, Preference, Taint, Toleration
from scheduling.engine.candidates import CandidateSet

Evidence = Mapping[str, str | int | float | bool | None]
# What jobs and tenants are sorted by: the smallest comes first.
Key = tuple[float, ...]

# Of an array so many elements wait as jobs as could start now. The next one has the array's id, and each after it that
# of the one before plus this, so that they come in their order.
ELEMENT_ID_STEP = 1 << 40


def public_id(job_id: int) -> int:
    """The id that people know a waiting job by: of an element that is no job yet, its array's."""
    return job_id % ELEMENT_ID_STEP


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. `memory_mb` None: unknown, then it is only offered whole and only to jobs that ask for no memory.
    `exclusive`: held whole; `shared_mb`: memory held by jobs that share it.

    `is_hot`: placed on last; `is_slowed`: the hardware slows itself down, so no new work. `compute`: measured use of
    its processors, 0 to 1, None where unknown. `numa`, `island`: devices of a node with equal numbers share a NUMA
    node, or reach each other over NVLink; None: unknown, or alone."""

    id: int
    model: str
    memory_mb: int | None
    is_healthy: bool = True
    exclusive: bool = False
    shared_mb: int = 0
    is_hot: bool = False
    is_slowed: bool = False
    compute: float | None = None
    numa: int | None = None
    island: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """`is_open` False: cordoned, draining or lost; its running jobs still count, nothing new is placed on it.
    `taints`: in any order; a taint stops no running job."""

    id: int
    name: str
    cpu_milli: int
    memory_mb: int
    cpu_milli_free: int
    memory_mb_free: int
    devices: tuple[Device, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    is_open: bool = True
    is_online: bool = True
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """The shape of a job: jobs of one shape stand or fall together in a cycle. Totals, as users type them.

    `topology`: any, nvlink or numa (the GPUs of each rank on one node in one island or NUMA node), or prefer_nvlink,
    prefer_numa (so where possible). `apart`: jobs of one such name never share a node; empty: they may.

    `node_selector`, `required`: what the labels of its nodes must be; `preferred`: what they should be."""

    gpu_count: int = 0
    gpu_memory_mb: int | None = None
    gpu_models: tuple[str, ...] = ()
    shared: bool = False
    cpu_milli: int = 1000
    memory_mb: int = 0
    gang: bool = False
    ranks: int | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    topology: str = "any"
    apart: str = ""
    tolerations: tuple[Toleration, ...] = ()
    required: tuple[Expression, ...] = ()
    preferred: tuple[Preference, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """A job that waits. `queued_at`: its original queue time; `eligible_at`: later with not_before or a back-off;
    `predicted_seconds`: how long it will probably run, if somebody supplied a prediction."""

    id: int
    tenant_id: int
    request: Request
    priority: int = 500
    user_id: int = 0
    queued_at: float = 0.0
    eligible_at: float = 0.0
    eligible_reason: str = "not_before"
    max_runtime_seconds: int | None = None
    predicted_seconds: float | None = None
    is_online: bool = False


@dataclass(frozen=True, slots=True)
class DeviceHold:
    """`memory_mb` None: the whole device."""

    device_id: int
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """One rank on one node, with the CPU and memory it takes there."""

    rank: int
    node_id: int
    cpu_milli: int
    memory_mb: int
    holds: tuple[DeviceHold, ...] = ()
    apart: str = ""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that holds what its ranks name. `ends_by` None: it has no time limit.

    `saved_at`: its last checkpoint, where work before it is not lost; None: its start. `is_stopping`: it has been told
    to end, so it is nobody's victim any more; `stopping_for`: the job that waits for what it gives back.
    `waited_seconds`: how long it had waited when it started."""

    job_id: int
    tenant_id: int
    request: Request
    ranks: tuple[RankPlacement, ...]
    started_at: float
    ends_by: float | None = None
    priority: int = 500
    preemptible: bool = True
    user_id: int = 0
    is_online: bool = False
    saved_at: float | None = None
    grace_seconds: float = 30.0
    is_stopping: bool = False
    stopping_for: int | None = None
    waited_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Tenant:
    """Limits are None where there is none; `max_gpus_by_model`: (model, GPUs). `usage_gpu_seconds` is decayed to the
    snapshot's time; `history_gpu_seconds` is the plain sum over the policy's history; `window_cost` is the cost of
    what ran in the policy's sliding window. `preemptions_left`: how many more of its jobs may be preempted this hour,
    None: any number. `budget_gpu_hours`: what it may use in its `budget_period`, in words, where it is bounded."""

    id: int
    name: str
    weight: float = 1.0
    tier: int = 1
    guaranteed_gpus: int = 0
    max_gpus: int | None = None
    max_gpu_memory_mb: int | None = None
    max_cpu_milli: int | None = None
    max_memory_mb: int | None = None
    max_concurrent_jobs: int | None = None
    usage_gpu_seconds: float = 0.0
    max_gpus_per_user: int | None = None
    max_gpus_by_model: tuple[tuple[str, int], ...] = ()
    history_gpu_seconds: float = 0.0
    window_cost: float = 0.0
    allow_preemption: bool = True
    can_preempt_others: bool = True
    preemptions_left: int | None = None
    budget_gpu_hours: float | None = None
    budget_used_gpu_hours: float = 0.0
    budget_period: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """What admins may turn. Aging: points per minute of waiting, at most up to the end of the job's priority band.

    `online_percent`: the part of the GPUs that is for online jobs (0: no split). `cost_by_model`: (model, cost of a
    GPU-hour), others cost 1. `dynamic_share_bound`: by how much at most (0.2 = 20 %) a tenant's weight follows its
    past use; 0: not at all. `placement`: how nodes are scored (see placement.py). `window_seconds`: the sliding window
    of `Tenant.window_cost`."""

    name: str = "fair"
    aging_points_per_minute: float = 1.0
    usage_half_life_seconds: float = 7 * 86400.0
    load_ceiling_shared: float = 0.85
    load_ceiling: float = 1.0
    gangs: bool = True
    unlimited_runtime_seconds: float = 30 * 86400.0
    preemption: bool = True
    min_runtime_seconds: float = 600.0
    preemption_delay_seconds: float = 60.0
    online_percent: int = 0
    thermal: bool = True
    window_seconds: float = 300.0
    cost_by_model: tuple[tuple[str, float], ...] = ()
    dynamic_share_bound: float = 0.0
    placement: str = "fragmentation"


@dataclass(frozen=True, slots=True)
class Nomination:
    """What a waiting job was promised when others were stopped for it: it starts there when they have given it back."""

    job_id: int
    ranks: tuple[RankPlacement, ...]
    rule: str = "priority"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`reserved_job_id`: the job that held the reservation of the last plan; it keeps its turn until it starts.
    `claims` go before everything else, in order, until their jobs have started.
    `mix`: (request, how many) of late, what free room should stay useful for; empty: what waits now.
    `behind`: (job, how many alike wait behind it that are not among the jobs)."""

    jobs: tuple[Job, ...]
    running: tuple[RunningJob, ...]
    nodes: tuple[Node, ...]
    tenants: tuple[Tenant, ...]
    reserved_job_id: int | None = None
    claims: tuple[Nomination, ...] = ()
    mix: tuple[tuple[Request, float], ...] = ()
    behind: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """`considered`: of the first placements of a plan, unless they span nodes."""

    job_id: int
    ranks: tuple[RankPlacement, ...]
    considered: CandidateSet | None = None


class Reason(NamedTuple):
    """Why a job that stays pending waits: a code of gpusched.protocol.reasons.Pending and the evidence it names."""

    job_id: int
    code: str
    evidence: Evidence


class PendingGroup(NamedTuple):
    """The one `Reason` of all these jobs: most of a long queue waits for a few causes."""

    job_ids: tuple[int, ...]
    code: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Promise:
    """The one blocked job that devices are promised to, when it starts at the latest, and where it would."""

    job_id: int
    at: float
    node_ids: tuple[int, ...]
    ranks: tuple[RankPlacement, ...] = ()


@dataclass(frozen=True, slots=True)
class Preemption:
    """Running jobs to stop so that a waiting one starts in their place. `rule`: priority (they rank lower), reclaim
    (its tenant is under its guarantee, theirs borrows) or online (batch borrows of the online part).
    `lost_gpu_seconds`: their work since their last checkpoints."""

    job_id: int
    victims: tuple[int, ...]
    rule: str
    ranks: tuple[RankPlacement, ...]
    lost_gpu_seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Placements in the order in which they were decided; each job that stays pending is in one of `waits`. `claims`:
    those of the snapshot that still hold, and those of the preemptions."""

    placements: tuple[Placement, ...] = ()
    waits: tuple[PendingGroup, ...] = ()
    reservation: Promise | None = None
    preemptions: tuple[Preemption, ...] = ()
    claims: tuple[Nomination, ...] = ()

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """One for each job that stays pending."""
        return tuple(Reason(job_id, wait.code, wait.evidence) for wait in self.waits for job_id in wait.job_ids)

    def reason_of(self, job_id: int) -> Reason | None:
        """None: it starts, or does not wait."""
        return next((Reason(job_id, wait.code, wait.evidence) for wait in self.waits if job_id in wait.job_ids), None)


class PendingReason(NamedTuple):
    """A reason that does not depend on what runs: `never_fits`, `tenant_limit`, `constraint` or `taint`."""

    code: str
    evidence: Evidence
