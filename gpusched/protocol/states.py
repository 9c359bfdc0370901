"""The closed vocabularies of state; why something is in a state is a reason code, never a new state."""

from enum import StrEnum


class JobState(StrEnum):
    PENDING = "pending"
    HELD = "held"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"


WAITING = frozenset({JobState.PENDING, JobState.HELD})
# States in which an attempt exists and may hold devices.
LIVE = frozenset({JobState.SCHEDULED, JobState.RUNNING, JobState.STOPPING})
FINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.PREEMPTED})


class RankState(StrEnum):
    """Of one rank of one attempt, on its node."""

    ASSIGNED = "assigned"
    RUNNING = "running"
    ENDED = "ended"


class NodeState(StrEnum):
    """What the control plane observes. What an admin wants is NodeIntent."""

    JOINED = "joined"
    ONLINE = "online"
    LOST = "lost"


class NodeIntent(StrEnum):
    OPEN = "open"
    CORDONED = "cordoned"
    DRAINING = "draining"


class DeviceHealth(StrEnum):
    OK = "ok"
    HOT = "hot"
    DEGRADED = "degraded"
    DIRTY = "dirty"
    FOREIGN = "foreign"
    QUARANTINED = "quarantined"
    LOST = "lost"


class Topology(StrEnum):
    """How near to each other the GPUs of each rank must be, or should be where possible."""

    ANY = "any"
    NVLINK = "nvlink"
    NUMA = "numa"
    PREFER_NVLINK = "prefer_nvlink"
    PREFER_NUMA = "prefer_numa"


class Sharing(StrEnum):
    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class WorkloadClass(StrEnum):
    ONLINE = "online"
    BATCH = "batch"


class Role(StrEnum):
    VIEWER = "viewer"
    MEMBER = "member"
    OWNER = "owner"


class Scope(StrEnum):
    """What a token may do; a token never does more than its user may."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
