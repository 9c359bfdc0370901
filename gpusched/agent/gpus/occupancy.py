"""Says of each device whether somebody is on it who should not be: a process that is not of a live rank, or memory that
an ended rank left behind.

A process of a rank that has ended makes the device `dirty`, any other `foreign`. Only what two readings in a row say
is told, because a process is listed for a moment after its end. What the driver does not say is unknown."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from gpusched.agent import processes
from gpusched.agent.rank_files import rank_dir
from gpusched.agent.rank_files.rank_dir import SCOPE_VARIABLE
from gpusched.protocol.agent_messages import Reading

CLEAR, DIRTY, FOREIGN = "clear", "dirty", "foreign"
READINGS = 2
# Above the lowest that was seen while free: what a driver keeps for itself varies by tens of MiB, a CUDA context alone
# takes 300 MiB and more.
SPARE_MB = 256
MAX_NAMED = 3
MAX_SCOPES = 10_000
# The control daemon of CUDA MPS, run by root: it computes for the jobs (the kernel cuts names at 15 characters).
MPS = "nvidia-cuda-mps"
FILE = "devices.json"


@dataclass(frozen=True)
class Live:
    """What the ranks that have not ended hold, and the sessions and scopes of those that ended a moment ago.
    `supervisors` is a question to the disk, asked only about processes that are not known otherwise."""

    devices: frozenset[str]
    scopes: frozenset[str]
    sessions: frozenset[int]
    ended_sessions: frozenset[int]
    ended_scopes: frozenset[str]
    supervisors: Callable[[], frozenset[int]]


class OccupancyChecker:
    """Remembers what was seen on the devices of one node; what an agent that is started again could not see anew
    also in a file of the `directory`. To be asked once per reading, by one thread at a time."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._ours: set[tuple[int, int]] = set()  # (pid, start) of processes of live ranks that are on a device
        self._base_mb: dict[str, int] = {}
        self._was_held: set[str] = set()  # by a live rank since it was last seen free and clear
        self._bad_looks: dict[str, int] = {}
        self._scopes: dict[str, None] = {}  # of ranks that there were, the latest last
        self.left: set[tuple[int, int]] = set()  # (pid, start) on a device now, proved to be of ranks that have ended
        self._kept = self._read()

    def _read(self) -> dict[str, object]:
        fact = rank_dir.read(self._directory, FILE) if self._directory is not None else None
        # A boot takes from a device all that was left on it, and may bring another driver.
        if isinstance(fact, dict) and fact.get("boot_id") == rank_dir.boot_id():
            with contextlib.suppress(KeyError, TypeError, ValueError):
                self._base_mb = {str(uuid): int(mb) for uuid, mb in dict(fact["base_mb"]).items()}
                self._was_held = set(map(str, fact["was_held"]))
        return self._fact()

    def _fact(self) -> dict[str, object]:
        return {"boot_id": rank_dir.boot_id(), "base_mb": dict(self._base_mb), "was_held": sorted(self._was_held)}

    def _keep(self) -> None:
        if self._directory is not None and (fact := self._fact()) != self._kept:
            with contextlib.suppress(OSError):  # a full disk; the next look tries again
                rank_dir.write(self._directory, FILE, fact)
                self._kept = fact

    def judge(self, readings: Sequence[Reading], live: Live) -> list[Reading]:
        """The readings, each with `occupancy` and `occupant` as far as they can be told."""
        self._remember(live)
        self.left = set()
        listed = {pid for reading in readings for pid in reading.process_ids or ()}
        kinds = {pid: self._kind(pid, live) for pid in sorted(listed)}
        self._ours = {(pid, start) for pid, start in self._ours if pid in listed}
        told = [self._told(reading, kinds, live) for reading in readings]
        self._keep()
        return told

    def left_on(self, readings: Sequence[Reading], live: Live) -> dict[str, str]:
        """Who or what is on devices of ranks that have just ended, by UUID, as this look alone says. `readings`: of
        those devices."""
        self._remember(live)
        left = {}
        for reading in readings:
            self._was_held.add(reading.uuid)
            pids = [pid for pid in reading.process_ids or () if self._kind(pid, live) != CLEAR]
            memory_mb = self._left_mb(reading, live)
            if not reading.lost and (pids or memory_mb):
                left[reading.uuid] = _named(pids) or _memory(memory_mb)
                self._bad_looks[reading.uuid] = READINGS  # the next reading that says the same is believed
        self._keep()
        return left

    def _remember(self, live: Live) -> None:
        for scope in live.scopes | live.ended_scopes:
            self._scopes[scope] = self._scopes.pop(scope, None)
        while len(self._scopes) > MAX_SCOPES:
            del self._scopes[next(iter(self._scopes))]

    def _kind(self, pid: int, live: Live) -> str:
        """CLEAR for a process of a live rank, DIRTY for one of an ended rank, FOREIGN for all others."""
        seen = processes.look(pid)
        if seen is None:
            # Not of this process namespace, or just gone: known only if it was ours.
            return DIRTY if any(pid == known for known, _ in self._ours) else FOREIGN
        if _is_of(seen, live):
            self._ours.add((pid, seen.start))
            return CLEAR
        if (pid, seen.start) in self._ours or seen.environment.get(SCOPE_VARIABLE) in self._scopes:
            self.left.add((pid, seen.start))
            return DIRTY
        # A session may be another's by now, and everybody can set a variable: no proof, but reason enough to wait.
        if seen.session in live.ended_sessions or "GPUSCHED_JOB_ID" in seen.environment:
            return DIRTY
        return CLEAR if seen.name == MPS and seen.user == "root" else FOREIGN

    def _told(self, reading: Reading, kinds: dict[int, str], live: Live) -> Reading:
        if reading.lost or (reading.process_ids is None and reading.memory_used_mb is None):
            return reading
        by_kind = {kind: [pid for pid in reading.process_ids or () if kinds[pid] == kind] for kind in (FOREIGN, DIRTY)}
        left = self._left_mb(reading, live)
        kind = FOREIGN if by_kind[FOREIGN] else DIRTY if by_kind[DIRTY] or left else CLEAR
        if kind == CLEAR:
            self._bad_looks.pop(reading.uuid, None)
            return replace(reading, occupancy=CLEAR)
        self._bad_looks[reading.uuid] = self._bad_looks.get(reading.uuid, 0) + 1
        if self._bad_looks[reading.uuid] < READINGS:
            return reading
        return replace(reading, occupancy=kind, occupant=_named(by_kind[kind]) or _memory(left))

    def _left_mb(self, reading: Reading, live: Live) -> int | None:
        """The memory that ended ranks seem to have left behind; None if none, or if it cannot be told."""
        uuid, used = reading.uuid, reading.memory_used_mb
        if uuid in live.devices:
            self._was_held.add(uuid)
            return None
        if used is None or reading.process_ids:
            return None
        base = self._base_mb[uuid] = min(used, self._base_mb.get(uuid, used))
        if uuid in self._was_held and used > base + SPARE_MB:
            return used
        self._was_held.discard(uuid)
        return None


def _is_of(seen: processes.Seen, live: Live) -> bool:
    if seen.environment.get(SCOPE_VARIABLE) in live.scopes or seen.session in live.sessions:
        return True
    # Whatever a rank starts stays below its supervisor, with another user's rights or an empty environment, too.
    return bool(live.scopes) and not live.supervisors().isdisjoint(processes.ancestors(seen.pid))


def _memory(used_mb: int | None) -> str:
    return f"{used_mb} MiB are still in use after a job ended"


def _named(pids: Iterable[int]) -> str:
    known = sorted(pids)
    more = f" and {len(known) - MAX_NAMED} more" if len(known) > MAX_NAMED else ""
    return ", ".join(map(processes.describe, known[:MAX_NAMED])) + more
