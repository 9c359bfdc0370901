"""The server's answers about reservations, as structs; fields of a newer server are ignored."""

from datetime import datetime

import msgspec


class ReservedGpu(msgspec.Struct, kw_only=True):
    """A GPU of a reservation."""

    node: str
    index: int
    model: str = ""


class ReservationData(msgspec.Struct, kw_only=True):
    """GPUs that a tenant has reserved from `starts_at` until before `ends_at`. `users`: only their jobs may use it;
    empty: all of the tenant. `problem`: why it was refused or released, or what it lacks. `jobs`: those that run in
    it; `used_gpus`: the GPUs that they hold. `series`: the first reservation, if it recurs. `claimed_at`: the first
    start of a job in it."""

    id: int
    tenant: str
    state: str
    starts_at: datetime
    ends_at: datetime
    gpus: int
    user: str | None = None
    users: list[str] = []
    gpu_model: str | None = None
    gpu_memory_mb: int | None = None
    node_selector: dict[str, str] = {}
    one_node: bool = True
    kind: str = "hard"
    lease: bool = False
    source: str = ""
    confidence: float | None = None
    note: str = ""
    recurrence: str | None = None
    series: int | None = None
    problem: str = ""
    is_no_show: bool = False
    devices: list[ReservedGpu] = []
    jobs: list[int] = []
    used_gpus: int = 0
    created_at: datetime | None = None
    claimed_at: datetime | None = None
    ended_at: datetime | None = None
    status: str = ""


class NextSlot(msgspec.Struct, kw_only=True):
    """The next time at which the GPUs are free. `starts_at` null: none is known. `nodes`: where they are. `blocker`:
    what is in the way until then; empty: nothing is."""

    starts_at: datetime | None = None
    ends_at: datetime | None = None
    nodes: list[str] = []
    blocker: str = ""


class Renewal(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The new end: `for_seconds` from now."""

    for_seconds: int


class Cancellation(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`series`: also its later occurrences, if it recurs."""

    series: bool = False
