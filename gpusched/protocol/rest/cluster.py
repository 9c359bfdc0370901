"""The server's answers about everything but jobs: tenants, quotas, nodes, devices and the cluster."""

from datetime import datetime

import msgspec

from gpusched.protocol.affinity import Taint


class Quota(msgspec.Struct, kw_only=True):
    """The limits of a tenant; None is no limit. `max_queued_jobs`, `max_deferred_jobs`: limits of waiting jobs; None is
    the server's setting. `default_runtime_minutes`: the time limit of jobs submitted without one; None is none."""

    max_gpus: int | None = None
    max_gpu_memory_mb: int | None = None
    max_cpu_cores: float | None = None
    max_memory_mb: int | None = None
    max_concurrent_jobs: int | None = None
    max_gpus_per_user: int | None = None
    max_gpus_by_model: dict[str, int] = {}
    max_queued_jobs: int | None = None
    max_deferred_jobs: int | None = None
    default_runtime_minutes: int | None = None
    guaranteed_gpus: int = 0
    version: int = 0


class Affected(msgspec.Struct, kw_only=True):
    """A number of jobs, with their number of GPUs; the ids of the first ones."""

    jobs: int = 0
    gpus: int = 0
    ids: list[int] = []


class Excess(msgspec.Struct, kw_only=True):
    """A tenant's current use beyond an edited limit; `users`: for a limit per user, the number of users above it."""

    dimension: str
    in_use: float = 0
    limit: float = 0
    users: int = 0


class Effect(msgspec.Struct, kw_only=True):
    """The immediate effect of an edit. `contradicts`: running or waiting work violates it."""

    sentences: list[str] = []
    contradicts: bool = False
    running_over: list[Excess] = []
    would_start: Affected = msgspec.field(default_factory=Affected)
    would_wait: Affected = msgspec.field(default_factory=Affected)
    would_never_start: Affected = msgspec.field(default_factory=Affected)
    would_stop: Affected = msgspec.field(default_factory=Affected)


class EditedQuota(Quota, kw_only=True):
    """A quota after an edit, or as it would be (`status` would_be_changed)."""

    status: str = "changed"
    effect: Effect = msgspec.field(default_factory=Effect)


class InUse(msgspec.Struct, kw_only=True):
    gpus: float = 0
    gpu_memory_mb: int = 0
    cpu_cores: float = 0
    memory_mb: int = 0
    jobs: int = 0


class Tenant(msgspec.Struct, kw_only=True):
    """A tenant, its limits and its use. Its fair share: `Share`. `archived_at`: from then on it accepts no jobs."""

    id: int = 0
    name: str
    display_name: str = ""
    weight: float = 1.0
    tier: str = ""
    allow_preemption: bool = True
    can_preempt_others: bool = True
    preemption_budget_per_hour: int | None = None
    unix_user: str = ""
    time_zone: str = "UTC"
    created_at: datetime | None = None
    archived_at: datetime | None = None
    quota: Quota = msgspec.field(default_factory=Quota)
    in_use: InUse = msgspec.field(default_factory=InUse)
    pending_jobs: int = 0


class ArchivedTenant(Tenant, kw_only=True):
    """An archived tenant. `cancelled_jobs` waited; `stopping_jobs` ran and are being stopped."""

    cancelled_jobs: int = 0
    stopping_jobs: int = 0


class Share(msgspec.Struct, kw_only=True):
    """The allocated and used share of a tenant, by weight. `effective_weight`: the weight in force, explained by
    `weight_reason`; `usage_gpu_hours`: decayed."""

    tenant: str
    tenant_id: int = 0
    share: float = 0.0
    weight: float = 1.0
    effective_weight: float = 1.0
    weight_reason: str = ""
    gpus_held: float = 0.0
    jobs_live: int = 0
    guaranteed_gpus: int = 0
    max_gpus: int | None = None
    usage_gpu_hours: float = 0.0


class Reading(msgspec.Struct, kw_only=True):
    """A reading of a device; None is unknown, never zero. `throttled_by`: why it runs below its clocks; `ecc_…`: errors
    of its memory since the driver was loaded."""

    utilisation_percent: float | None = None
    memory_used_mb: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    process_count: int | None = None
    throttled_by: list[str] | None = None
    read_at: datetime | None = None


class Device(msgspec.Struct, kw_only=True):
    """A GPU, or a MIG instance of the GPU with the UUID `mig_parent`. Devices of one node with the same `nvlink_island`
    are connected by NVLink."""

    id: int
    uuid: str = ""
    index: int | None = None
    model: str = ""
    memory_mb: int | None = None
    numa_node: int | None = None
    nvlink_island: int | None = None
    mig_parent: str | None = None
    mig_slices: int | None = None
    health: str = ""
    health_note: str = ""
    is_slowed: bool = False
    held: str = ""
    shared_mb: int | None = None
    jobs: list[int] = []
    reading: Reading | None = None


class NodeDevice(Device, kw_only=True):
    """A device with the name of its node."""

    node: str = ""


class Isolation(msgspec.Struct, kw_only=True):
    """A node's isolation of the ranks of jobs (docs/agent.md)."""

    cgroup: bool = False
    limits: list[str] = []
    users: str = ""
    why: str = ""

    def __str__(self) -> str:
        limited = "cgroup" + (f" ({', '.join(self.limits)})" if self.limits else "") if self.cgroup else "process group"
        return f"{limited}; users: {self.users or '?'}"


class Hint(msgspec.Struct, kw_only=True):
    """A problem that `gpusched-agent doctor` finds on a node: `level` is `warn` or `fail`, `says` is the problem."""

    check: str
    level: str = ""
    says: str = ""
    next_step: str = ""


class Node(msgspec.Struct, kw_only=True):
    """A node. `state` is observed, `intent` is the admin's. `clock_off_seconds`: how far its clock is ahead of the
    server's; None: unknown. `credential_at`: when its agent's credential was issued; `rotation_asked_at`: since when an
    admin waits for a new one. `hints`, for admins: failures first."""

    name: str
    state: str = ""
    intent: str = ""
    intent_note: str = ""
    hostname: str = ""
    pretend: bool = False
    cpu_cores: float = 0
    memory_mb: int = 0
    cpu_cores_free: float = 0
    memory_mb_free: int = 0
    labels: dict[str, str] = {}
    taints: list[Taint] = []
    agent_version: str | None = None
    driver_version: str | None = None
    runtimes: dict[str, str] = {}
    isolation: Isolation = msgspec.field(default_factory=Isolation)
    missing_users: dict[str, str] = {}
    hints: list[Hint] = []
    clock_off_seconds: float | None = None
    last_seen_at: datetime | None = None
    joined_at: datetime | None = None
    credential_at: datetime | None = None
    rotation_asked_at: datetime | None = None
    jobs: list[int] = []
    devices: list[Device] = []


class NodeLabels(msgspec.Struct, kw_only=True):
    """The labels of a node. `labels` are in force: the agent's, overridden by the admins'."""

    node: str
    labels: dict[str, str] = {}
    from_admin: dict[str, str] = {}
    from_agent: dict[str, str] = {}


class NodeTaints(msgspec.Struct, kw_only=True):
    node: str
    taints: list[Taint] = []


class NodeAction(msgspec.Struct, kw_only=True):
    node: str
    status: str = ""
    message: str = ""


class DeviceAction(msgspec.Struct, kw_only=True):
    id: int
    health: str = ""
    health_note: str = ""
    message: str = ""


class SchedulerLag(msgspec.Struct, kw_only=True):
    """The end and the duration of the last scheduling cycle; None: there was none."""

    last_cycle_at: datetime | None = None
    age_seconds: float | None = None
    last_cycle_ms: float | None = None
    is_alive: bool = False


class ClusterStatus(msgspec.Struct, kw_only=True):
    """Counts of the cluster. `pretend`: the GPUs are made up for a demo. `jobs_by_state` has only the states that
    occur."""

    total_nodes: int = 0
    online_nodes: int = 0
    total_gpus: int = 0
    available_gpus: int = 0
    used_gpus: int = 0
    total_jobs: int = 0
    running_jobs: int = 0
    pending_jobs: int = 0
    jobs_by_state: dict[str, int] = {}
    scheduler: SchedulerLag = msgspec.field(default_factory=SchedulerLag)
    version: str = ""
    pretend: bool = False


class Health(msgspec.Struct, kw_only=True):
    status: str
    version: str = ""


class Readiness(msgspec.Struct, kw_only=True):
    """The parts of the server. `cycle_age_seconds`: since the last cycle ended; None: there was none. `agents`:
    nodes by state, and `total`. `housekeeping`: whether the worker beside the cycles does its tasks, and how late the
    most overdue one is; None: one never succeeded. `agents_unheard_seconds`: the age of the oldest agent message that
    this web process has not yet written."""

    status: str
    database: bool
    scheduler: bool
    cycle_age_seconds: float | None
    agents: dict[str, int]
    housekeeping: bool = False
    housekeeping_lag_seconds: float | None = None
    agents_unheard_seconds: float = 0.0


class Exemption(msgspec.Struct, kw_only=True):
    """A tenant, or a job, that is exempt from the rule of allocated but idle GPUs."""

    id: int
    tenant: str | None = None
    job_id: int | None = None
    note: str = ""
    created_by: str = ""
    created_at: datetime | None = None
