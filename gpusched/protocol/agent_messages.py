"""Messages between the agent of a node and the control plane, the same over WebSocket and HTTP.

Each entry states a fact that never becomes false again ("attempt 3 of job 7 shall stop"), so messages may be lost,
repeated or reordered without harm. JSON through msgspec; unknown fields are ignored so that one version of skew is
tolerated.
"""

import msgspec

PROTOCOL_VERSION = 1


def rank_key(job_id: int, attempt: int, rank: int) -> str:
    """The name of one rank of one attempt in messages, on disk and in logs: `7.3.0`."""
    return f"{job_id}.{attempt}.{rank}"


class DeviceFacts(msgspec.Struct, kw_only=True, frozen=True):
    """What a device is; changes only with the hardware. None: the driver does not say. `nvlink_island`: devices of the
    node with one number reach each other over NVLink, directly or through others; None also: it is alone. Of a MIG
    instance: `mig_parent`, the UUID of its GPU, and `mig_slices`, of how many of the GPU's slices it is."""

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
    """How a node keeps ranks apart. `cgroup`: each has a group of its own, with those `limits` (memory, cpu, pids) that
    the kernel keeps; else `why` not. `users`: `any` if jobs run as the Unix user of their tenant, `agent` if all run as
    the agent's."""

    cgroup: bool = False
    limits: list[str] = []
    users: str = "agent"
    why: str = ""


class Hint(msgspec.Struct, kw_only=True, frozen=True):
    """What `gpusched-agent doctor` would not call well of the machine: `level` is `warn` or `fail`."""

    check: str
    level: str
    says: str
    next_step: str = ""


class NodeFacts(msgspec.Struct, kw_only=True, frozen=True):
    """What a node is. `pretend` marks a node of the demo fleet whose devices do not exist. `runtimes`: container
    runtimes that answer there, and their versions. `hints`: what to do on the machine."""

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
    """An error that the driver told of a device. Told again for a minute, for a message may be lost."""

    code: int
    seconds_ago: int


class Reading(msgspec.Struct, kw_only=True, frozen=True):
    """One look at one device through NVML. None: unknown, never zero. `lost`: the driver says the device is gone.
    `occupancy`: `clear`, `dirty` or `foreign` by the processes and the memory that were seen in several readings, with
    who in `occupant`; None: not known, or not sure yet. `ecc_…`: errors of its memory since the driver was loaded."""

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
    """POST /agent/join with a join token: who I am. The same `node_key` (a random word that the agent keeps on its
    disk) joins the same node again."""

    name: str
    node_key: str
    facts: NodeFacts
    protocol: int = PROTOCOL_VERSION


class Joined(msgspec.Struct, kw_only=True, frozen=True):
    """The answer: the node's own credential, shown once."""

    node_id: int
    credential: str
    heartbeat_seconds: float


class RankSpec(msgspec.Struct, kw_only=True, frozen=True):
    """All that an agent needs to run one rank. `argv` is complete unless `script` is set, then the script's text is
    written to a file and run by its `#!` line with `argv` as its arguments. With an `image` it runs in a container, of
    `runtime` (`auto`: any), with `mounts` (`/data:/data:ro`). `user`: the Unix user, empty for the node's choice.
    `secrets`: name → text, for files that only the job reads; never written to a disk. `unfit`: why
    it cannot be started at all. `limit_version`: which of the job's time limits this one is; see Limit.
    `traceparent`: the W3C trace context of the job's submit, if it was traced."""

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
    """This rank shall run here. An agent that has ever started (or refused, or ended) this key does nothing more."""

    key: str
    spec: RankSpec


class Stop(msgspec.Struct, kw_only=True, frozen=True, tag="stop", tag_field="action"):
    """This rank shall not run here (any more): SIGTERM, grace, SIGKILL of everything. If it was never started here, it
    never will be, and the agent reports it as ended without start."""

    key: str
    reason: str
    grace_seconds: int = 30


class Limit(msgspec.Struct, kw_only=True, frozen=True):
    """The time limit of a rank, counted from its start, is this from `version` on; a lower version than one that is
    known says nothing. Agents of before do not know it, and keep the limit of the start."""

    key: str
    version: int
    max_runtime_seconds: int


class Signal(msgspec.Struct, kw_only=True, frozen=True):
    """The first process of this rank is to get the signal (`USR1`; gpusched/protocol/signals.py) once. `sequence`:
    ascending in an attempt; one that is not above the latest that was taken says nothing. Agents of before do not know
    it."""

    key: str
    sequence: int
    signal: str


class Started(msgspec.Struct, kw_only=True, frozen=True, tag="started", tag_field="kind"):
    """`at`: by the node's wall clock, which may be wrong; `seconds_ago`: by one that nobody sets, when this is said.
    None: not known, as after a boot."""

    key: str
    at: str
    pid: int
    seconds_ago: float | None = None


class Ended(msgspec.Struct, kw_only=True, frozen=True, tag="ended", tag_field="kind"):
    """The rank is over and no process of it is alive. `at`, `seconds_ago`: as of a start; from `started_at` to `at` is
    as long as it ran, whatever was done to the wall clock. `exit_code` None when a signal ended it or it never started.
    `reason`: an EndReason. `peak_memory_of`: what the peak is the peak of: all processes of the `rank` together, or its
    largest `process`. `log_bytes`: the final size of its log. `exit_class`: one of exits.SEEN_BY_AGENT, if
    the agent can tell. `left`: those of its devices that were looked at after its end and were not free, by UUID, and
    who or what is on them; older agents do not look."""

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
    """Agent to server, each heartbeat and at once when something happened. `held` names the keys in the journal that
    have not been forgotten, `running` those of them that may still have a live process; `reports` repeats each report
    until its key stands in `acknowledged`. `facts` is sent with the first sync of a connection and when the hardware
    changed. `saved`: when running ranks last saved their work, by key. `limits`: which versions of changed time limits
    are in force, by key. `signalled`: the latest signals that were taken, by key."""

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


class Desired(msgspec.Struct, kw_only=True, frozen=True):
    """Server to agent, as the answer to a sync (`seq` then repeats the sync's) or by itself (`seq` 0) when something
    changed. `acknowledged`: keys whose `ended` report is durable here (the agent forgets them once their log is
    shipped); `started`: keys whose `started` report is durable here; `limits`: time limits that were changed after the
    start; `signals`: those that have not been taken yet. An absent key means nothing."""

    seq: int = 0
    assignments: list[Run | Stop] = []
    limits: list[Limit] = []
    signals: list[Signal] = []
    acknowledged: list[str] = []
    started: list[str] = []
    error: str | None = None


class LogAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """Answer to POST /agent/logs?key=&offset= (body: the bytes): the size stored; the agent goes on from there.
    `most_bytes`: the server keeps no more of the log of one rank."""

    size: int
    most_bytes: int | None = None
