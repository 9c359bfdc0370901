"""The server's answers about scheduling, as structs: the queue, shares, cycles and the policy."""

from datetime import datetime
from typing import Any

import msgspec

from gpusched.protocol.rest.cluster import Effect
from gpusched.protocol.rest.explain import Estimate
from gpusched.protocol.rest.jobs import Page, Reason


class QueueItem(msgspec.Struct, kw_only=True):
    """A waiting job; `position` and `gpus_ahead` (whole GPUs of the jobs before it) count the jobs of all users,
    except for held ones. `elements`: the number of an array's waiting elements, each of which counts as a job.
    `estimate_reason`: why there is no estimate."""

    job_id: int
    position: int | None = None
    gpus_ahead: int | None = None
    elements: int | None = None
    name: str = ""
    tenant: str = ""
    user: str = ""
    state: str = ""
    gpu_count: int = 0
    priority: float = 0
    submitted_at: datetime | None = None
    reason: Reason | None = None
    estimate: Estimate | None = None
    estimate_reason: str | None = None


class QueuePage(Page[QueueItem], kw_only=True):
    """Your waiting jobs; `total` and `total_gpus` count the jobs of all users."""

    total: int = 0
    total_gpus: int = 0


class QueueUser(msgspec.Struct, kw_only=True):
    """The waiting jobs of a user in a tenant; deferred ones are held, before their `not_before`, or wait for others."""

    user: str
    queued_jobs: int = 0
    deferred_jobs: int = 0


class QueueUsage(msgspec.Struct, kw_only=True):
    """The waiting jobs of a tenant and of its users, with their limits. An array counts as one job."""

    tenant: str
    queued_jobs: int = 0
    deferred_jobs: int = 0
    max_queued_jobs: int = 0
    max_deferred_jobs: int = 0
    max_queued_jobs_per_user: int = 0
    max_deferred_jobs_per_user: int = 0
    users: list[QueueUser] = []


class Cycle(msgspec.Struct, kw_only=True):
    """A scheduling cycle. `stale`: decisions skipped because their jobs changed before the commit; `reserved_job_id`:
    the job that is promised GPUs, at `reserved_at`."""

    id: int
    started_at: datetime
    trigger: str = ""
    worker: str = ""
    pending: int = 0
    placed: int = 0
    preempted: int = 0
    stale: int = 0
    reasons_written: int = 0
    reserved_job_id: int | None = None
    reserved_at: datetime | None = None
    sweep_ms: float = 0.0
    snapshot_ms: float = 0.0
    plan_ms: float = 0.0
    commit_ms: float = 0.0
    is_recorded: bool = False


class ReplayedPlacement(msgspec.Struct, kw_only=True):
    job_id: int
    nodes: list[str] = []
    gpus: int = 0


class ReplayedPreemption(msgspec.Struct, kw_only=True):
    """The running jobs (`victims`) that stop for a waiting one. `rule`: priority, reclaim or online."""

    job_id: int
    victims: list[int] = []
    rule: str = ""


class ReplayedWait(msgspec.Struct, kw_only=True):
    """The jobs that wait for one reason; `job_ids`: the first 100 of them."""

    code: str
    sentence: str = ""
    jobs: int = 0
    job_ids: list[int] = []


class Obstacle(msgspec.Struct, kw_only=True):
    """A test that a node fails for a job."""

    test: str
    sentence: str = ""


class ReplayedJob(msgspec.Struct, kw_only=True):
    """A job of a replay: `nodes` where it starts; or `reason` for which it waits, and `changes` that would start it.
    `obstacles`: why it does not start on `node`."""

    job_id: int
    starts: bool = False
    nodes: list[str] = []
    reason: Reason | None = None
    changes: list[str] = []
    node: str | None = None
    obstacles: list[Obstacle] = []


class CycleReplay(msgspec.Struct, kw_only=True):
    """A recorded cycle, planned again. `is_same`: the plan equals the recorded one byte for byte; null under another
    policy than the recorded one. `starts_only_recorded` and `starts_only_here`: the first 100 jobs that start in only
    one of the two plans."""

    cycle_id: int
    decided_at: datetime
    recorded_policy: str
    policy: str
    is_same: bool | None = None
    placements: list[ReplayedPlacement] = []
    preemptions: list[ReplayedPreemption] = []
    waits: list[ReplayedWait] = []
    promised_job_id: int | None = None
    promised_at: datetime | None = None
    starts_only_recorded: list[int] = []
    starts_only_here: list[int] = []
    job: ReplayedJob | None = None


class PolicyFields(msgspec.Struct, kw_only=True):
    """The policy that admins set, from the next cycle on (docs/settings.md describes each field)."""

    policy: str
    aging_points_per_minute: float
    usage_half_life_days: float
    usage_window_minutes: float
    dynamic_share_bound: float
    cost_by_model: dict[str, float]
    online_percent: int
    enable_gang_scheduling: bool
    enable_preemption: bool
    min_runtime_seconds: float
    preemption_delay_seconds: float
    enable_thermal_aware: bool
    thermal_threshold_celsius: int
    thermal_moves: str
    thermal_move_minutes: float
    held_idle_policy: str
    held_idle_percent: int
    held_idle_minutes: float
    held_idle_interactive_minutes: float
    held_idle_grace_minutes: float
    member_extend_minutes: float
    load_threshold: float
    load_threshold_shared: float


class EditedPolicy(PolicyFields, kw_only=True):
    """The current policy, or the policy after an edit (`status` would_be_changed, with the `effect`). `version` 0:
    never edited."""

    version: int = 0
    status: str = ""
    effect: Effect | None = None


class Changed(msgspec.Struct, kw_only=True):
    """The values of a field before and after an edit."""

    before: Any = msgspec.field(default=None, name="from")
    after: Any = msgspec.field(default=None, name="to")


class PolicyEdit(msgspec.Struct, kw_only=True):
    """An edit of the policy: its time, its author, and the changed values; `version`: the resulting version."""

    at: datetime
    by: str = ""
    version: int = 0
    changes: dict[str, Changed] = {}
