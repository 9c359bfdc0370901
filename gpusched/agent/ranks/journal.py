"""The ranks on one node's disk: prepare, read after a restart, drop. The disk holds the agent's whole knowledge of
jobs; its memory is a copy."""

import contextlib
import errno
import logging
import os
import signal
import stat
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from gpusched.agent import processes
from gpusched.agent.containers import client
from gpusched.agent.isolation import cgroup, cgroup_base, confinement
from gpusched.agent.rank_files import rank_dir, removal, secret_files, socket_dir
from gpusched.agent.ranks.environment import job_spec
from gpusched.agent.supervisor import time_limit
from gpusched.json_log import rank_fields
from gpusched.protocol.agent_messages import Ended, RankSpec, Started
from gpusched.protocol.reasons import EndReason

logger = logging.getLogger(__name__)
# A message that arrives after the acknowledgement of its end is seconds late, not days.
TOMBSTONE_SECONDS = 7 * 86400
LATE_SECONDS = 60.0


class Journal:
    """The `ranks/` directory of one node and the keys that have ended and were dropped."""

    def __init__(self, directory: Path, boot_id: str, plane: str = "") -> None:
        self.ranks = directory / "ranks"
        self.ranks.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._confinement = confinement.current()
        above = directory.parents[:2] if directory.parent.name == "nodes" else ()
        for path in (self.ranks, directory, *above):
            confinement.open_way(path)
        self.boot_id = boot_id
        self._dropped_file = directory / "forgotten"
        # Beside it, so that an older agent still reads that one.
        self._ends_file = directory / "ends"
        self.joined(plane)
        self._dropped = dict(self._read_dropped())
        self._trash = directory / "trash"
        self._trash.mkdir(exist_ok=True, mode=0o700)
        self._to_remove = {entry.name for entry in self._trash.iterdir()}
        secret_files.sweep(self.ranks)
        socket_dir.sweep(self.ranks)
        if base := self._confinement.groups.base:
            cgroup_base.sweep(base.path)

    def on_disk(self) -> list[str]:
        """Return the keys that are not dropped. A dropped one that could not be moved away is tried again."""
        keys = sorted(entry.name for entry in self.ranks.iterdir() if rank_fields(entry.name))
        for key in filter(self.is_dropped, keys):
            self._discard(key)
        return [key for key in keys if not self.is_dropped(key)]

    def joined(self, plane: str) -> None:
        """Record the control plane: another one numbers its jobs anew, so its keys differ."""
        self._plane = f"@{plane}" if plane else ""

    def is_dropped(self, key: str) -> bool:
        """Return True if a key was here and has been dropped: it must never start again."""
        return self._dropped_at(key) is not None

    def is_long_dropped(self, key: str) -> bool:
        """Return True if it was dropped so long ago that no order from before its end can still arrive."""
        return time.time() - (self._dropped_at(key) or time.time()) > LATE_SECONDS

    def _dropped_at(self, key: str) -> float | None:
        # Keys without a control plane come from older agents.
        return self._dropped.get(f"{key}{self._plane}", self._dropped.get(key))

    def prune(self) -> None:
        """Drop the oldest keys. Once a day is enough."""
        self._dropped = dict(self._read_dropped())

    def prepare(self, key: str, spec: RankSpec, node: str) -> Path:
        """Write spec.json. Before the launch, `settle` must make it durable."""
        directory = self._make(key)
        if not os.path.exists(f"{directory}/{rank_dir.SPEC}"):
            fact = {"boot_id": self.boot_id, **job_spec(directory, spec, node, self._confinement)}
            rank_dir.write(directory, rank_dir.SPEC, fact, durable=True)
        elif spec.max_runtime_seconds:  # changed since an earlier order, which was not launched
            time_limit.change(directory, spec.limit_version, spec.max_runtime_seconds)
        return directory

    def settle(self) -> None:
        """Make the prepared ranks durable: after a power cut their keys are still known."""
        handle = os.open(self.ranks, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)

    def stop(self, key: str, reason: str, grace_seconds: int) -> None:
        """Ask a rank to end. A rank that has not started never will. If its disk has become read-only, end its
        processes in a hurry, and raise OSError: the end can be written when the disk is writable again."""
        directory = self._make(key)
        try:
            rank_dir.write_surely(directory, rank_dir.STOP, {"reason": reason, "grace_seconds": grace_seconds})
        except OSError as error:
            if error.errno == errno.EROFS:
                wake_supervisor(directory, signal.SIGTERM)
            raise
        if rank_dir.try_lock(directory) is None:
            self._end_unstarted(directory, reason)
        wake_supervisor(directory)

    def cannot_start(self, key: str) -> bool:
        """Return True if no supervisor has taken the rank and none can, for lack of a specification."""
        try:
            return not {rank_dir.SPEC, rank_dir.LOCK}.intersection(os.listdir(self.ranks / key))
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def inspect(self, key: str) -> tuple[Started | None, Ended | None, bool]:
        """Return (started, ended, is alive) of a rank from its files. Write its end if its supervisor can no longer do
        so; only return that end if the disk is broken."""
        directory = self.ranks / key
        self._restore(key)
        ended = self._end(key)
        is_alive = False
        if ended is None and (boot_id := self._boot_of(directory)) is not None:
            is_alive = rank_dir.holder(directory) is not None
            if not is_alive:
                # The exit may have been written just before the lock was released.
                ended = self._end(key) or self._write_lost_end(key, boot_id)
                is_alive = ended is None
        started = _start_in(directory)
        return None if started is None else self._started(key, started), ended, is_alive

    def _restore(self, key: str) -> None:
        """Undo damage to a rank's directory by a job of the agent's own user. Open a closed one. Replace a
        non-directory by one that marks the rank as ended: nothing else is known of it, and it must not start again."""
        directory = self.ranks / key
        try:
            mode = os.lstat(directory).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            self._discard(key)
            rank_dir.write(
                self._make(key), rank_dir.EXIT, {"at": rank_dir.now(), "reason": str(EndReason.SUPERVISOR_LOST)}
            )
        elif mode & 0o700 != 0o700:
            removal.open_up(str(directory))

    def drop(self, key: str) -> None:
        """Drop a rank whose end and log the server has. Record the key before the directory goes: one of both always
        exists."""
        if not self.is_dropped(key):
            try:
                self._record(key)
            except OSError as error:
                if error.errno not in rank_dir.FULL:
                    raise
                os.truncate(self.ranks / key / rank_dir.LOG, 0)  # it may be what fills the disk
                self._record(key)
        secret_files.remove(
            self.ranks / key, rank_dir.read(self.ranks / key, rank_dir.SPEC)
        )  # of one that never started
        socket_dir.remove(self.ranks / key)
        self._discard(key)

    def dropped_ends(self, keys: Iterable[str]) -> Iterator[Ended]:
        """Yield the ends of those of these ranks that were dropped, as they were reported."""
        names = {f"{key}{self._plane}".encode() for key in keys if self.is_dropped(key)}
        if not names or not self._ends_file.exists():
            return
        lines = (line.partition(b" ") for line in self._ends_file.read_bytes().splitlines())
        for fact in {name: fact for name, _, fact in lines if name in names}.values():
            with contextlib.suppress(msgspec.MsgspecError):  # cut off by a crash
                yield msgspec.json.decode(fact, type=Ended)

    def _record(self, key: str) -> None:
        """Record that a key is dropped, and its end."""
        if (ended := self._end(key)) is not None:
            fact = msgspec.json.encode(msgspec.structs.replace(ended, seconds_ago=None, log_bytes=0, left={}))
            _append(self._ends_file, f"{key}{self._plane} ".encode() + fact)
        _append(self._dropped_file, f"{key}{self._plane} {time.time():.0f}".encode())
        self._dropped[f"{key}{self._plane}"] = time.time()

    def _discard(self, key: str) -> None:
        """Move a rank out of the way, whatever its job put into its directory; `empty_trash` removes it."""
        name = f"{key}.{time.time_ns()}"
        try:
            removal.open_up(str(self.ranks / key))  # a closed directory can neither be moved nor removed
            os.rename(self.ranks / key, self._trash / name)
            self._to_remove.add(name)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.error(
                "%s cannot be moved to the trash before the next start: %s", key, error, extra=rank_fields(key)
            )

    @property
    def has_trash(self) -> bool:
        return bool(self._to_remove)

    def empty_trash(self) -> None:
        """Remove the trash as far as possible; the next agent retries the rest. May take long, and needs nothing else
        of the journal."""
        for name in list(self._to_remove):
            self._to_remove.discard(name)
            if not removal.remove(str(self._trash / name)):
                fields = rank_fields(name.rpartition(".")[0])
                sentence = "%s cannot be removed completely: is something mounted in it?"
                logger.warning(sentence, self._trash / name, extra=fields)

    def _started(self, key: str, fact: dict[str, Any]) -> Started:
        return Started(key=key, at=fact["at"], pid=fact["pid"], seconds_ago=self._seconds_ago(fact))

    def _end(self, key: str) -> Ended | None:
        """Return the end from its file; None if there is none or it is invalid.

        The supervisor that wrote it may be newer than this agent, after a downgrade."""
        fact = rank_dir.read(self.ranks / key, rank_dir.EXIT)
        return None if fact is None else self.end_of(key, fact)

    def end_of(self, key: str, fact: dict[str, Any]) -> Ended | None:
        """Return the end that a supervisor has noted; None if it is invalid."""
        fields = {name: value for name, value in fact.items() if name in Ended.__struct_fields__}
        try:
            ended = msgspec.convert({**fields, "key": key, "seconds_ago": self._seconds_ago(fact)}, Ended)
            datetime.fromisoformat(ended.at)
            # A value that cannot be encoded, such as half a character, would block all messages of the node.
            msgspec.json.encode(ended)
        except (ValueError, OverflowError) as problem:
            logger.error("%s of %s is invalid: %s", rank_dir.EXIT, key, problem, extra=rank_fields(key))
            return None
        return ended

    def _seconds_ago(self, fact: dict[str, Any]) -> float | None:
        """Return the age of a fact, independent of changes to the wall clock; None if it is from another boot."""
        at = fact.get("monotonic")
        has_age = fact.get("boot_id") == self.boot_id and isinstance(at, float)
        return time.monotonic() - at if has_age and at is not None else None

    def _make(self, key: str) -> Path:
        directory = self.ranks / key
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        return directory

    def _boot_of(self, directory: Path) -> str | None:
        """Return the boot in which a rank was taken. A rank that was prepared in an earlier boot has ended, taken or
        not: a power cut may have emptied its lock file."""
        spec = rank_dir.read(directory, rank_dir.SPEC)
        if spec is not None and spec.get("boot_id", self.boot_id) != self.boot_id:
            return str(spec["boot_id"])
        if (boot_id := rank_dir.try_lock(directory)) is None and os.path.lexists(directory / rank_dir.EXIT):
            return self.boot_id  # an invalid exit.json, not written by a supervisor or an agent
        return boot_id

    def _end_unstarted(self, directory: Path, reason: str) -> None:
        handle = rank_dir.lock(directory)
        if handle is None:
            return  # a supervisor is starting; it reads stop.json before it starts the job
        try:
            if not rank_dir.is_taken(handle) and not rank_dir.read(directory, rank_dir.EXIT):
                rank_dir.write(directory, rank_dir.EXIT, {"at": rank_dir.now(), "reason": reason})
        finally:
            os.close(handle)

    def _write_lost_end(self, key: str, boot_id: str) -> Ended | None:
        """Write the end of a rank whose supervisor is gone without having written one, and return it. Return None while
        a process of it cannot be killed."""
        directory = self.ranks / key
        started = _start_in(directory)
        log = directory / rank_dir.LOG
        fact: dict[str, Any] = {
            "at": rank_dir.now(),
            "reason": str(EndReason.SUPERVISOR_LOST),
            "started_at": started["at"] if started else None,
            "log_bytes": log.stat().st_size if log.exists() else 0,
            "monotonic": time.monotonic(),
            "boot_id": self.boot_id,
        }
        if started and (lasted := self._seconds_ago(started)) is not None:
            fact["at"] = (datetime.fromisoformat(started["at"]) + timedelta(seconds=lasted)).isoformat()
        if boot_id != self.boot_id:
            fact |= {"at": _booted_at(), "reason": str(EndReason.NODE_REBOOTED), "boot_id": None}
            client.remove(
                rank_dir.read(directory, rank_dir.SPEC) or {}, 0
            )  # a leftover container does not run after a boot
        elif not _end_strays(directory, _leader(started)):
            return None
        try:
            rank_dir.write_surely(directory, rank_dir.EXIT, fact)
        except OSError as error:
            if error.errno in rank_dir.FULL:
                raise  # it can be written when there is space again
        return self.end_of(key, fact)

    def _read_dropped(self) -> Iterator[tuple[str, float]]:
        if not self._dropped_file.exists():
            return
        lines = [line.split() for line in self._dropped_file.read_text().splitlines()]
        # A line cut short by a power cut belongs to a rank whose directory still exists.
        young = [(line[0], float(line[1])) for line in lines if len(line) == 2 and line[1].isdigit()]
        young = [(key, at) for key, at in young if at > time.time() - TOMBSTONE_SECONDS]
        if len(young) < len(lines) / 2:
            rewritten = self._dropped_file.with_suffix(".new")
            rewritten.write_text("".join(f"{key} {at:.0f}\n" for key, at in young))
            rewritten.rename(self._dropped_file)
            self._prune_ends({key for key, _ in young})
        yield from young

    def _prune_ends(self, names: set[str]) -> None:
        """Remove the ends of ranks that are no longer remembered."""
        if self._ends_file.exists():
            lines = self._ends_file.read_bytes().splitlines(keepends=True)
            rewritten = self._ends_file.with_suffix(".new")
            rewritten.write_bytes(b"".join(line for line in lines if line.partition(b" ")[0].decode() in names))
            rewritten.rename(self._ends_file)


def _append(path: Path, line: bytes) -> None:
    """Append a line. The last one may have been cut short, by a full disk or a power cut: end it first."""
    with path.open("a+b") as file:
        if size := file.seek(0, os.SEEK_END):
            file.seek(size - 1)
            line = line if file.read(1) == b"\n" else b"\n" + line
        file.write(line + b"\n")


def wake_supervisor(directory: Path, number: signal.Signals = signal.SIGUSR1) -> None:
    """Make the supervisor read stop.json, if there is a supervisor, or send it another signal. The pid comes from the
    lock, so it cannot be reused."""
    pid = rank_dir.holder(directory)
    if pid is None or pid == os.getpid() or rank_dir.try_lock(directory) is None:
        return
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if rank_dir.holder(directory) == pid:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def _start_in(directory: Path) -> dict[str, Any] | None:
    """Return the content of started.json; None if it is missing or invalid."""
    started = rank_dir.read(directory, rank_dir.STARTED)
    try:
        datetime.fromisoformat((started or {})["at"])
    except (KeyError, TypeError, ValueError):
        return None
    return started if started is not None and isinstance(started.get("pid"), int) else None


def _leader(started: dict[str, Any] | None) -> tuple[int, int] | None:
    """Return (pid, start) of a rank's first process; None if it was not recorded, as by older supervisors."""
    ids = (started or {}).get("pid"), (started or {}).get("start")
    return (ids[0], ids[1]) if isinstance(ids[0], int) and isinstance(ids[1], int) else None


def _end_strays(directory: Path, leader: tuple[int, int] | None) -> bool:
    """Kill the processes that a killed supervisor left behind; return True when none is left."""
    spec = rank_dir.read(directory, rank_dir.SPEC) or {}
    secret_files.remove(directory, spec)
    socket_dir.remove(directory)
    if not client.remove(spec, 0):
        return False
    group, pids = (spec.get("cgroup") or {}).get("path", ""), []
    for _ in range(100):
        if group:
            cgroup.kill(group)
        pids = processes.kill_strays((spec.get("environment") or {}).get(rank_dir.SCOPE_VARIABLE, ""), leader)
        if not pids and not (group and cgroup.is_populated(group)):
            return not group or cgroup.remove(group)
        time.sleep(0.01)
    sentence = "processes %s ignore SIGKILL; their devices stay allocated"
    logger.error(sentence, pids or f"in {group}", extra=rank_fields(directory.name))
    return False


def _booted_at() -> str:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return datetime.fromtimestamp(int(line.split()[1]), UTC).isoformat()
    return rank_dir.now()
