"""Detect processes and memory on a device that should not be there: a process of no live rank, or memory that an ended
rank left behind.

A process of an ended rank makes the device `dirty`, any other `foreign`. A verdict needs two readings in a row, because
the driver lists a process for a moment after its end. A value that the driver does not report is unknown."""

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
# Above the lowest use seen while free: a driver's own use varies by tens of MiB; a CUDA context alone takes 300 MiB or
# more.
SPARE_MB = 256
MAX_NAMED = 3
MAX_SCOPES = 10_000
# The control daemon of CUDA MPS, run by root: it computes for the jobs (the kernel cuts names at 15 characters).
MPS = "nvidia-cuda-mps"
FILE = "devices.json"


@dataclass(frozen=True)
class Live:
    """The devices, scopes and sessions of ranks that have not ended, and the sessions and scopes of those that ended a
    moment ago. `supervisors` reads the disk: it is called only for processes that are unknown otherwise."""

    devices: frozenset[str]
    scopes: frozenset[str]
    sessions: frozenset[int]
    ended_sessions: frozenset[int]
    ended_scopes: frozenset[str]
    supervisors: Callable[[], frozenset[int]]


class OccupancyChecker:
    """Track the occupancy of one node's devices. State that a restarted agent could not observe again is also kept in a
    file of `directory`. Call it once per reading, from one thread at a time."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._boot_id = rank_dir.boot_id()
        self._ours: set[tuple[int, int]] = set()  # (pid, start) of processes of live ranks that are on a device
        self._base_mb: dict[str, int] = {}
        self._was_allocated: set[str] = set()  # allocated to a live rank since it was last free and clear
        self._bad_readings: dict[str, int] = {}
        self._scopes: dict[str, None] = {}  # of all ranks so far, the latest last
        self.orphans: set[tuple[int, int]] = set()  # (pid, start) on a device now, proved to belong to ended ranks
        self._saved = self._read()

    def _read(self) -> dict[str, object]:
        fact = rank_dir.read(self._directory, FILE) if self._directory is not None else None
        # A boot clears the devices, and may bring another driver.
        if isinstance(fact, dict) and fact.get("boot_id") == self._boot_id:
            with contextlib.suppress(KeyError, TypeError, ValueError):
                self._base_mb = {str(uuid): int(mb) for uuid, mb in dict(fact["base_mb"]).items()}
                self._was_allocated = set(map(str, fact["was_held"]))
        return self._fact()

    def _fact(self) -> dict[str, object]:
        return {"boot_id": self._boot_id, "base_mb": dict(self._base_mb), "was_held": sorted(self._was_allocated)}

    def _save(self) -> None:
        if self._directory is not None and (fact := self._fact()) != self._saved:
            with contextlib.suppress(OSError):  # a full disk; the next reading tries again
                rank_dir.write(self._directory, FILE, fact)
                self._saved = fact

    def judge(self, readings: Sequence[Reading], live: Live) -> list[Reading]:
        """Return the readings, each with `occupancy` and `occupant` as far as they are known."""
        self._remember(live)
        self.orphans = set()
        listed = {pid for reading in readings for pid in reading.process_ids or ()}
        kinds = {pid: self._kind(pid, live) for pid in sorted(listed)}
        self._ours = {(pid, start) for pid, start in self._ours if pid in listed}
        judged = [self._with_verdict(reading, kinds, live) for reading in readings]
        self._save()
        return judged

    def occupants_of(self, readings: Sequence[Reading], live: Live) -> dict[str, str]:
        """Return the occupants of devices of ranks that have just ended, by UUID, from this reading alone. `readings`:
        of those devices."""
        self._remember(live)
        occupants = {}
        for reading in readings:
            self._was_allocated.add(reading.uuid)
            pids = [pid for pid in reading.process_ids or () if self._kind(pid, live) != CLEAR]
            memory_mb = self._leftover_mb(reading, live)
            if not reading.lost and (pids or memory_mb):
                occupants[reading.uuid] = _named(pids) or _memory(memory_mb)
                self._bad_readings[reading.uuid] = READINGS  # the next reading that agrees confirms it
        self._save()
        return occupants

    def _remember(self, live: Live) -> None:
        for scope in live.scopes | live.ended_scopes:
            self._scopes[scope] = self._scopes.pop(scope, None)
        while len(self._scopes) > MAX_SCOPES:
            del self._scopes[next(iter(self._scopes))]

    def _kind(self, pid: int, live: Live) -> str:
        """Return CLEAR for a process of a live rank, DIRTY for one of an ended rank, FOREIGN for all others."""
        process = processes.inspect(pid)
        if process is None:
            # Of another process namespace, or just gone: recognized only if it was ours.
            return DIRTY if any(pid == tracked for tracked, _ in self._ours) else FOREIGN
        if _is_of(process, live):
            self._ours.add((pid, process.start))
            return CLEAR
        if (pid, process.start) in self._ours or process.environment.get(SCOPE_VARIABLE) in self._scopes:
            self.orphans.add((pid, process.start))
            return DIRTY
        # A session id may have been reused, and anyone can set a variable: no proof, but reason enough to wait.
        if process.session in live.ended_sessions or "GPUSCHED_JOB_ID" in process.environment:
            return DIRTY
        return CLEAR if process.name == MPS and process.user == "root" else FOREIGN

    def _with_verdict(self, reading: Reading, kinds: dict[int, str], live: Live) -> Reading:
        if reading.lost or (reading.process_ids is None and reading.memory_used_mb is None):
            return reading
        by_kind = {kind: [pid for pid in reading.process_ids or () if kinds[pid] == kind] for kind in (FOREIGN, DIRTY)}
        leftover_mb = self._leftover_mb(reading, live)
        kind = FOREIGN if by_kind[FOREIGN] else DIRTY if by_kind[DIRTY] or leftover_mb else CLEAR
        if kind == CLEAR:
            self._bad_readings.pop(reading.uuid, None)
            return replace(reading, occupancy=CLEAR)
        self._bad_readings[reading.uuid] = self._bad_readings.get(reading.uuid, 0) + 1
        if self._bad_readings[reading.uuid] < READINGS:
            return reading
        return replace(reading, occupancy=kind, occupant=_named(by_kind[kind]) or _memory(leftover_mb))

    def _leftover_mb(self, reading: Reading, live: Live) -> int | None:
        """Return the memory that ended ranks seem to have left behind; None if there is none or it is unknown."""
        uuid, used = reading.uuid, reading.memory_used_mb
        if uuid in live.devices:
            self._was_allocated.add(uuid)
            return None
        if used is None or reading.process_ids:
            return None
        base = self._base_mb[uuid] = min(used, self._base_mb.get(uuid, used))
        if uuid in self._was_allocated and used > base + SPARE_MB:
            return used
        self._was_allocated.discard(uuid)
        return None


def _is_of(process: processes.Process, live: Live) -> bool:
    if process.environment.get(SCOPE_VARIABLE) in live.scopes or process.session in live.sessions:
        return True
    # All processes of a rank stay below its supervisor, even with another user's rights or an empty environment.
    return bool(live.scopes) and not live.supervisors().isdisjoint(processes.ancestors(process.pid))


def _memory(used_mb: int | None) -> str:
    return f"{used_mb} MiB are still in use after a job ended"


def _named(pids: Iterable[int]) -> str:
    ordered = sorted(pids)
    more = f" and {len(ordered) - MAX_NAMED} more" if len(ordered) > MAX_NAMED else ""
    return ", ".join(map(processes.describe, ordered[:MAX_NAMED])) + more
