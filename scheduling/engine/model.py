"""The frozen values of the engine: a snapshot of the cluster, the policy, and the resulting plan.

Times are seconds since the epoch (UTC), sizes MiB, CPU in millicores (1000 = one core). Ids are the database's.
Recorded cycles store the fields under these names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from scheduling.engine.affinity import Expression, Preference, Taint, Toleration
from scheduling.engine.candidates import CandidateSet

T = TypeVar("T")
Evidence = Mapping[str, str | int | float | bool | None]
# A sort key of jobs and tenants: the smallest comes first.
Key = tuple[float, ...]

# An array has as many elements in the queue as could start now. The first has the array's id, and each following one
# the id of its predecessor plus this step, which keeps their order.
ELEMENT_ID_STEP = 1 << 40


def public_id(job_id: int) -> int:
    """Return the public id of a waiting job: that of its array for an element that is not yet a job."""
    return job_id % ELEMENT_ID_STEP


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. `memory_mb` None: unknown, so it is offered whole and only to jobs that request no memory. `exclusive`:
    held whole; `shared_mb`: memory held by jobs that share it.

    `is_hot`: used last; `is_slowed`: the hardware throttles itself, so no new work. `compute`: measured use of its
    processors, 0 to 1, None if unknown. `numa`, `island`: devices of a node with equal numbers share a NUMA node or are
    connected by NVLink; None: unknown, or alone.
    """

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


class _Derived:
    """Room for values that are computed from an object: most nodes are the same objects in each cycle."""

    __slots__ = ("_derived",)
    _derived: dict[str, tuple[object, object]]

    def derived(self, name: str, basis: object, compute: Callable[[], T]) -> T:
        """Return what `compute` returned for this name, from this object and an equal `basis` alone."""
        try:
            values = self._derived
        except AttributeError:
            values = {}
            object.__setattr__(self, "_derived", values)
        known = values.get(name)
        if known is None or known[0] != basis:
            known = values[name] = basis, compute()
        return known[1]  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Node(_Derived):
    """A node. `is_open` False: cordoned, draining or lost; its running jobs still count, nothing new is placed on it.
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
    """The resources of a job, in total, as submitted; jobs with equal requests start or wait together in a cycle.

    `topology`: any, nvlink or numa (the GPUs of each rank on one node in one island or NUMA node), or prefer_nvlink,
    prefer_numa (if possible). `apart`: the anti-affinity key; jobs with the same key never share a node; empty: no key.

    `node_selector`, `required`: labels that its nodes must have; `preferred`: labels that they should have.
    """

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
    """A waiting job. `queued_at`: its original queue time; `eligible_at`: later with not_before or a back-off;
    `predicted_seconds`: its probable run time, if a prediction was supplied. `booking_id`: the booking that it insists
    on; None: it may start anywhere, and in its tenant's active bookings first. `grace_seconds`: as in `RunningJob`."""

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
    booking_id: int | None = None
    grace_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class DeviceHold:
    """A rank's part of a device. `memory_mb` None: the whole device."""

    device_id: int
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """A rank on a node, with the CPU and memory that it takes there. `apart`: the anti-affinity key of its job."""

    rank: int
    node_id: int
    cpu_milli: int
    memory_mb: int
    holds: tuple[DeviceHold, ...] = ()
    apart: str = ""


@dataclass(frozen=True, slots=True)
class Booking:
    """Capacity that a tenant has reserved from `starts_at` until before `ends_at`: the devices, CPU and memory of
    `ranks`. `user_ids`: only jobs of these users may use it; empty: all of the tenant.

    `is_hard` False: a preference only; the jobs of others avoid its devices while there are others that suit them.
    """

    id: int
    tenant_id: int
    starts_at: float
    ends_at: float
    ranks: tuple[RankPlacement, ...]
    user_ids: frozenset[int] = frozenset()
    is_hard: bool = True


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that holds the resources of its ranks. `ends_by` None: it has no time limit.

    `saved_at`: its last checkpoint, which keeps the work before it; None: its start. `is_stopping`: it is ending
    already, so it cannot be a victim; `stopping_for`: the job that waits for its resources. `waited_seconds`: how long
    it had waited when it started. `booking_id`: the booking in whose capacity it runs.
    `predicted_end_at`: its probable end; None: no prediction, or it has outlived it.
    """

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
    booking_id: int | None = None
    predicted_end_at: float | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant. A limit of None: no limit; `max_gpus_by_model`: (model, GPUs). `usage_gpu_seconds` is decayed to the
    snapshot's time; `history_gpu_seconds` is the plain sum over the policy's history; `window_cost` is the cost of the
    jobs in the policy's sliding window. `preemptions_left`: how many more of its jobs may be preempted this hour, None:
    any number. `budget_gpu_hours`: its budget for its `budget_period` (a phrase), if it has one."""

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
    """The settings of admins. Aging: points per minute of waiting, at most up to the end of the job's priority band.

    `online_percent`: the part of the GPUs for online jobs (0: no split). `cost_by_model`: (model, cost of a GPU-hour),
    others cost 1. `dynamic_share_bound`: the maximum (0.2 = 20 %) by which a tenant's weight follows its past use; 0:
    never. `placement`: how nodes are scored (see placement.py). `window_seconds`: the sliding window of
    `Tenant.window_cost`.
    """

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
    """The place of a waiting job for which running ones were preempted: it starts there once they have released it."""

    job_id: int
    ranks: tuple[RankPlacement, ...]
    rule: str = "priority"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The input of a plan. `reserved_job_id`: the job of the last plan's promise; it keeps its turn until it starts.
    `claims`: nominations; they go before everything else, in order, until their jobs have started. `mix`: (request, how
    many) of recent jobs, for which free capacity should stay useful; empty: use the queue. `behind`: (job, how many
    identical jobs wait behind it that are not among the jobs)."""

    jobs: tuple[Job, ...]
    running: tuple[RunningJob, ...]
    nodes: tuple[Node, ...]
    tenants: tuple[Tenant, ...]
    reserved_job_id: int | None = None
    claims: tuple[Nomination, ...] = ()
    mix: tuple[tuple[Request, float], ...] = ()
    behind: tuple[tuple[int, int], ...] = ()
    bookings: tuple[Booking, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """A job that starts. `considered`: the candidates of the first placements of a plan, unless they span nodes.
    `booking_id`: the booking in whose capacity it starts."""

    job_id: int
    ranks: tuple[RankPlacement, ...]
    considered: CandidateSet | None = None
    booking_id: int | None = None


class Reason(NamedTuple):
    """The reason of a pending job: a code of gpusched.protocol.reasons.Pending and the evidence for its sentence."""

    job_id: int
    code: str
    evidence: Evidence


class PendingGroup(NamedTuple):
    """The one `Reason` of all these jobs: most of a long queue waits for a few reasons."""

    job_ids: tuple[int, ...]
    code: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Promise:
    """The place and latest start time of the one blocked job to which the plan promises devices."""

    job_id: int
    at: float
    node_ids: tuple[int, ...]
    ranks: tuple[RankPlacement, ...] = ()


@dataclass(frozen=True, slots=True)
class Preemption:
    """Running jobs to stop so that a waiting one starts in their place.

    `rule`: priority (they rank lower), reclaim (its tenant is under its guarantee, theirs borrows) or online (batch
    borrows online capacity). `lost_gpu_seconds`: their work since their last checkpoints.
    """

    job_id: int
    victims: tuple[int, ...]
    rule: str
    ranks: tuple[RankPlacement, ...]
    lost_gpu_seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Placements in the order of the decisions; each job that stays pending is in one of the groups `waits`. `claims`:
    nominations of the snapshot that still hold, and those of the preemptions. `reservation`: the promise."""

    placements: tuple[Placement, ...] = ()
    waits: tuple[PendingGroup, ...] = ()
    reservation: Promise | None = None
    preemptions: tuple[Preemption, ...] = ()
    claims: tuple[Nomination, ...] = ()

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Return one reason for each job that stays pending."""
        return tuple(Reason(job_id, group.code, group.evidence) for group in self.waits for job_id in group.job_ids)

    def reason_of(self, job_id: int) -> Reason | None:
        """Return the reason of a job; None: it starts, or does not wait."""
        return next(
            (Reason(job_id, group.code, group.evidence) for group in self.waits if job_id in group.job_ids), None
        )


class PendingReason(NamedTuple):
    """A reason without its job: a code and the evidence for its sentence."""

    code: str
    evidence: Evidence
