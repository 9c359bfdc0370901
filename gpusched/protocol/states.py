"""The closed lists of states. The reason for a state is a reason code, never a new state."""

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
    """The state of one rank of one attempt, on its node."""

    ASSIGNED = "assigned"
    RUNNING = "running"
    ENDED = "ended"


class NodeState(StrEnum):
    """The state of a node as observed; NodeIntent is the admin's."""

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
    """How close the GPUs of each rank must be, or should be if possible."""

    ANY = "any"
    NVLINK = "nvlink"
    NUMA = "numa"
    PREFER_NVLINK = "prefer_nvlink"
    PREFER_NUMA = "prefer_numa"


class Sharing(StrEnum):
    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class LimitSource(StrEnum):
    """Where the time limit of a job comes from."""

    REQUEST = "request"
    TENANT = "tenant"  # the default of its tenant
    CHANGED = "changed"  # since the submit


class WorkloadClass(StrEnum):
    ONLINE = "online"
    BATCH = "batch"


class Role(StrEnum):
    VIEWER = "viewer"
    MEMBER = "member"
    OWNER = "owner"


class Scope(StrEnum):
    """The permissions of a token; a token never permits more than its user may do."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
