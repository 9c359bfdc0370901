"""Messages between the agent of a node and the control plane, the same over WebSocket and HTTP.

Each entry states a fact that never becomes false ("attempt 3 of job 7 must stop"), so messages may be lost, repeated
or reordered without harm. JSON through msgspec; unknown fields are ignored, so that agent and server may differ by one
version.
"""

import msgspec

PROTOCOL_VERSION = 1
# The handshake of the WebSocket names the boot, as messages do: the server refuses a copy before it sends it orders.
BOOT_HEADER = "Gpusched-Boot"


def rank_key(job_id: int, attempt: int, rank: int) -> str:
    """Return the name of one rank of one attempt in messages, on disk and in logs: `7.3.0`."""
    return f"{job_id}.{attempt}.{rank}"


RankKey = tuple[int, int, int]


def parse_rank_key(text: str) -> RankKey | None:
    """Parse `7.3.0` into (7, 3, 0). Return None for anything else."""
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        return None
    job, attempt, rank = map(int, parts)
    return (job, attempt, rank) if attempt < 2**31 and rank < 2**31 else None


class DeviceFacts(msgspec.Struct, kw_only=True, frozen=True):
    """A device's properties, which change only with the hardware. None: not reported by the driver. `nvlink_island`:
    devices of a node with the same number are connected by NVLink, directly or through others; None also: connected to
    none. Of a MIG instance: `mig_parent`, the UUID of its GPU, and `mig_slices`, its number of the GPU's slices."""

    uuid: str
    index: int
    model: str
    memory_mb: int | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    nvlink_island: int | None = None
    mig_parent: str | None = None
    mig_slices: int | None = None


class Isolation(msgspec.Struct, kw_only=True, frozen=True):
    """A node's isolation of ranks. `cgroup`: each rank has its own group, with those `limits` (memory, cpu, pids) that
    the kernel enforces; `why`: the reason if not. `users`: `any` if jobs run as the Unix user of their tenant, `agent`
    if all run as the agent's."""

    cgroup: bool = False
    limits: list[str] = []
    users: str = "agent"
    why: str = ""


class Hint(msgspec.Struct, kw_only=True, frozen=True):
    """A warning of `gpusched-agent doctor` about the machine: `level` is `warn` or `fail`."""

    check: str
    level: str
    says: str
    next_step: str = ""


class NodeFacts(msgspec.Struct, kw_only=True, frozen=True):
    """A node's properties. `pretend` marks a node of the demo fleet whose devices do not exist. `runtimes`: available
    container runtimes, and their versions. `hints`: what to do on the machine."""

    hostname: str
    boot_id: str
    agent_version: str
    cpu_cores: int
    memory_mb: int
    devices: list[DeviceFacts] = []
    labels: dict[str, str] = {}
    driver_version: str | None = None
    isolation: Isolation | None = None
    runtimes: dict[str, str] = {}
    hints: list[Hint] = []
    pretend: bool = False


class Xid(msgspec.Struct, kw_only=True, frozen=True):
    """An error of a device, from the driver. Repeated for a minute, because a message may be lost."""

    code: int
    seconds_ago: int


class Reading(msgspec.Struct, kw_only=True, frozen=True):
    """A device's reading through NVML. None: unknown, never zero. `lost`: the driver reports that the device is gone.
    `occupancy`: `clear`, `dirty` or `foreign` by the processes and the memory of several readings, described in
    `occupant`; None: unknown, or not certain yet. `ecc_…`: errors of its memory since the driver was loaded."""

    uuid: str
    utilisation_percent: int | None = None
    memory_used_mb: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    process_ids: list[int] | None = None
    lost: bool = False
    occupancy: str | None = None
    occupant: str = ""
    xids: list[Xid] = []


class Join(msgspec.Struct, kw_only=True, frozen=True):
    """POST /agent/join with a join token: the node's name and facts. The same `node_key` (a random word on the agent's
    disk) joins the same node again."""

    name: str
    node_key: str
    facts: NodeFacts
    protocol: int = PROTOCOL_VERSION


class Joined(msgspec.Struct, kw_only=True, frozen=True):
    """The answer to a join: the node's own credential, shown only once."""

    node_id: int
    credential: str
    heartbeat_seconds: float


class RankSpec(msgspec.Struct, kw_only=True, frozen=True):
    """Everything that an agent needs to run one rank. `argv` is complete unless `script` is set; then the script's text
    is written to a file and run by its `#!` line with `argv` as its arguments. With an `image` it runs in a container,
    of `runtime` (`auto`: any), with `mounts` (`/data:/data:ro`). `user`: the Unix user, empty for the node's choice.
    `secrets`: name → text, for files that only the job can read; never written to a disk. `unfit`: why it cannot be
    started at all. `limit_version`: which of the job's time limits this one is; see Limit. `traceparent`: the W3C trace
    context of the job's submit, if it was traced."""

    job_id: int
    attempt: int
    rank: int
    ranks: int
    name: str
    argv: list[str]
    environment: dict[str, str] = {}
    traceparent: str = ""
    user: str = ""
    secrets: dict[str, str] = {}
    unfit: str = ""
    script: str | None = None
    workdir: str | None = None
    image: str | None = None
    runtime: str = "auto"
    mounts: list[str] = []
    device_uuids: list[str] = []
    gpu_memory_mb: int | None = None
    cpu_cores: float = 0.0
    memory_mb: int = 0
    max_runtime_seconds: int | None = None
    limit_version: int = 0
    grace_seconds: int = 30
    master_addr: str | None = None
    master_port: int | None = None


class Run(msgspec.Struct, kw_only=True, frozen=True, tag="run", tag_field="action"):
    """Run this rank here. An agent that has ever started (or refused, or ended) this key ignores the order."""

    key: str
    spec: RankSpec


class Stop(msgspec.Struct, kw_only=True, frozen=True, tag="stop", tag_field="action"):
    """Stop this rank, or never start it, here: SIGTERM, grace, SIGKILL of everything. If it was never started here, it
    never will be, and the agent reports it as ended without a start."""

    key: str
    reason: str
    grace_seconds: int = 30


class Limit(msgspec.Struct, kw_only=True, frozen=True):
    """A rank's time limit, counted from its start, from `version` on; the agent ignores a version lower than its own.
    Older agents do not know this message, and keep the limit of the start."""

    key: str
    version: int
    max_runtime_seconds: int


class Signal(msgspec.Struct, kw_only=True, frozen=True):
    """A signal (`USR1`; gpusched/protocol/signals.py) to send once to the first process of this rank. `sequence`:
    ascending in an attempt; the agent ignores one that is not above the latest sent one. Older agents do not know this
    message."""

    key: str
    sequence: int
    signal: str


class Started(msgspec.Struct, kw_only=True, frozen=True, tag="started", tag_field="kind"):
    """A rank's process started. `at`: by the node's wall clock, which may be wrong; `seconds_ago`: by a monotonic
    clock, at the time of the message; None: unknown, as after a boot. `device_uuids`: the devices that it has; None:
    unknown, as from an older agent."""

    key: str
    at: str
    pid: int
    seconds_ago: float | None = None
    device_uuids: list[str] | None = None


class Ended(msgspec.Struct, kw_only=True, frozen=True, tag="ended", tag_field="kind"):
    """A rank ended, and none of its processes is alive. `at`, `seconds_ago`: as of a start; `at` minus `started_at` is
    the run time, whatever happened to the wall clock. `exit_code` is None if a signal ended it or it never started.
    `reason`: an EndReason. `peak_memory_of`: the scope of the peak: all processes of the `rank` together, or its
    largest `process`. `log_bytes`: the final size of its log. `exit_class`: one of exits.SEEN_BY_AGENT, if the agent
    can tell. `left`: those of its devices that were checked after its end and were not free, by UUID, with their
    occupants; older agents do not check."""

    key: str
    at: str
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    started_at: str | None = None
    detail: str | None = None
    peak_memory_mb: int | None = None
    peak_memory_of: str | None = None
    log_bytes: int = 0
    exit_class: str | None = None
    seconds_ago: float | None = None
    left: dict[str, str] = {}


Report = Started | Ended


class Sync(msgspec.Struct, kw_only=True, frozen=True):
    """Agent to server, at each heartbeat and at once when something happened. `held`: the keys in the journal that are
    not dropped; `running`: those of them that may still have a live process; `reports` repeats each report until its
    key is in `acknowledged`. `facts` is sent with the first sync of a connection and when the hardware changed.
    `saved`: the time of each rank's latest checkpoint, by key, also in the message that reports its end. `limits`: the
    versions of changed time limits in force, by key. `signalled`: the sequence number of the latest signal sent, by
    key. `next_credential_hash`: the SHA-256 of the secret with which the agent wants to replace that of its
    credential."""

    seq: int
    at: str
    boot_id: str
    held: list[str] = []
    running: list[str] = []
    saved: dict[str, str] = {}
    limits: dict[str, int] = {}
    signalled: dict[str, int] = {}
    reports: list[Report] = []
    readings: list[Reading] = []
    facts: NodeFacts | None = None
    next_credential_hash: str = ""


class Desired(msgspec.Struct, kw_only=True, frozen=True):
    """Server to agent, as the answer to a sync (`seq` then repeats the sync's) or unrequested (`seq` 0) when something
    changed. `acknowledged`: keys whose `ended` report the server has stored (the agent drops them once their log is
    shipped); `started`: keys whose `started` report the server has stored; `limits`: time limits that were changed
    after the start; `signals`: those not yet sent; `missing`: keys that run by the server's database, which may be a
    restored backup, and that the agent does not list: it repeats their ends. An absent key means nothing. `rotate`: an
    admin wants the agent to replace its credential; `next_credential_hash`: the server accepts the secret with this
    hash, and no other one after its first use. Older agents and servers do not know these."""

    seq: int = 0
    assignments: list[Run | Stop] = []
    limits: list[Limit] = []
    signals: list[Signal] = []
    acknowledged: list[str] = []
    started: list[str] = []
    missing: list[str] = []
    rotate: bool = False
    next_credential_hash: str = ""
    error: str | None = None


class LogAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """Answer to POST /agent/logs?key=&offset= (body: the bytes): the stored size, from which the agent continues.
    `most_bytes`: the server stores at most this much of the log of one rank."""

    size: int
    most_bytes: int | None = None
