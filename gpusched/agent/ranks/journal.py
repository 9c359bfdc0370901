"""The ranks that one node has on its disk: prepared, looked at after a restart, forgotten. Everything the agent knows
of jobs is here; its memory is only a copy."""

import contextlib
import hashlib
import logging
import os
import signal
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from gpusched.agent import processes
from gpusched.agent.containers import client
from gpusched.agent.isolation import cgroup, confinement
from gpusched.agent.rank_files import rank_dir, removal, secret_files
from gpusched.agent.ranks.environment import job_spec
from gpusched.json_log import rank_fields
from gpusched.protocol.agent_messages import Ended, RankSpec, Started
from gpusched.protocol.reasons import EndReason

logger = logging.getLogger(__name__)
# A message that was overtaken by the acknowledgement of its end is seconds late, not days.
TOMBSTONE_SECONDS = 7 * 86400
LATE_SECONDS = 60.0


class Journal:
    """One node's `ranks/` directory and the list of keys that are over and forgotten."""

    def __init__(self, directory: Path, boot_id: str, credential: str = "") -> None:
        self.ranks = directory / "ranks"
        self.ranks.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._how = confinement.current()
        above = directory.parents[:2] if directory.parent.name == "nodes" else ()
        for passed in (self.ranks, directory, *above):
            confinement.open_way(passed)
        self.boot_id = boot_id
        self._graves = directory / "forgotten"
        self.joined(credential)
        self._forgotten = dict(self._read_graves())
        self._trash = directory / "trash"
        self._trash.mkdir(exist_ok=True, mode=0o700)
        self._to_remove = {entry.name for entry in self._trash.iterdir()}
        secret_files.sweep(self.ranks)
        if base := self._how.groups.base:
            cgroup.sweep(base.path)

    def on_disk(self) -> list[str]:
        """The keys that are not over. What was forgotten and could not be moved away then is tried again."""
        found = sorted(entry.name for entry in self.ranks.iterdir() if rank_fields(entry.name))
        for key in filter(self.is_over, found):
            self._discard(key)
        return [key for key in found if not self.is_over(key)]

    def joined(self, credential: str) -> None:
        """Who gives the orders: another control plane begins its job ids anew, so its keys are others."""
        self._plane = f"@{hashlib.sha256(credential.encode()).hexdigest()[:12]}" if credential else ""

    def is_over(self, key: str) -> bool:
        """Whether a key was here and has been forgotten: it must never start again."""
        return self._over_at(key) is not None

    def is_long_over(self, key: str) -> bool:
        """Also that no order can be on its way that was given before its end was known."""
        return time.time() - (self._over_at(key) or time.time()) > LATE_SECONDS

    def _over_at(self, key: str) -> float | None:
        # Without a control plane: written down by an agent of before.
        return self._forgotten.get(f"{key}{self._plane}", self._forgotten.get(key))

    def prune(self) -> None:
        """Forgets the oldest graves. Once a day will do."""
        self._forgotten = dict(self._read_graves())

    def prepare(self, key: str, spec: RankSpec, node: str) -> Path:
        """Writes down what to run. Before it is launched, `settle` must make that last."""
        directory = self._make(key)
        if not os.path.exists(f"{directory}/{rank_dir.SPEC}"):
            fact = {"boot_id": self.boot_id, **job_spec(directory, spec, node, self._how)}
            rank_dir.write(directory, rank_dir.SPEC, fact, durable=True)
        return directory

    def settle(self) -> None:
        """Makes the prepared ranks durable: after a power cut their keys are known to have been here."""
        handle = os.open(self.ranks, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)

    def stop(self, key: str, reason: str, grace_seconds: int) -> None:
        """Asks for the end of a rank. One that never started never will."""
        directory = self._make(key)
        rank_dir.write(directory, rank_dir.STOP, {"reason": reason, "grace_seconds": grace_seconds})
        if rank_dir.try_lock(directory) is None:
            self._end_unstarted(directory, reason)
        wake_supervisor(directory)

    def look(self, key: str) -> tuple[Started | None, Ended | None, bool]:
        """(started, ended, is alive) of a rank as its files say; ends it where its supervisor cannot any more."""
        directory = self.ranks / key
        self._restore(key)
        ended = self._end(key)
        is_alive = False
        if ended is None and (boot_id := self._taken_in(directory)) is not None:
            is_alive = rank_dir.holder(directory) is not None
            if not is_alive:
                # The exit may have been written just before the lock was let go.
                ended = self._end(key) or (self._end(key) if self._bury(directory, boot_id) else None)
                is_alive = ended is None
        started = _start_in(directory)
        return None if started is None else self._started(key, started), ended, is_alive

    def _restore(self, key: str) -> None:
        """Undo what a job of the agent's own user made of its directory. Open a closed one. Put in place of what is no
        directory one that says that the rank is over: nothing else is known of it, and it must not start again."""
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

    def forget(self, key: str) -> None:
        """Puts away a rank whose end and log the server has. First the grave, then the body: never neither."""
        if not self.is_over(key):
            with self._graves.open("a") as file:
                file.write(f"{key}{self._plane} {time.time():.0f}\n")
            self._forgotten[f"{key}{self._plane}"] = time.time()
        secret_files.remove(
            self.ranks / key, rank_dir.read(self.ranks / key, rank_dir.SPEC)
        )  # of one that never started
        self._discard(key)

    def _discard(self, key: str) -> None:
        """Moves a rank out of the way, whatever its job put into its directory; `empty_trash` removes it."""
        name = f"{key}.{time.time_ns()}"
        try:
            removal.open_up(str(self.ranks / key))  # a closed one can neither be moved nor removed
            os.rename(self.ranks / key, self._trash / name)
            self._to_remove.add(name)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.error("%s cannot be put away before the next start: %s", key, error, extra=rank_fields(key))

    @property
    def has_trash(self) -> bool:
        return bool(self._to_remove)

    def empty_trash(self) -> None:
        """Removes what was put away, as far as that can be done; the rest is tried again by the next agent. May take
        long, and needs nothing of the rest of the journal."""
        for name in list(self._to_remove):
            self._to_remove.discard(name)
            if not removal.remove(str(self._trash / name)):
                concerned = rank_fields(name.rpartition(".")[0])
                said = "%s cannot be removed whole: is something mounted in it?"
                logger.warning(said, self._trash / name, extra=concerned)

    def _started(self, key: str, fact: dict[str, Any]) -> Started:
        return Started(key=key, at=fact["at"], pid=fact["pid"], seconds_ago=self._seconds_ago(fact))

    def _end(self, key: str) -> Ended | None:
        """The end as its file says; None without one, or if what is there is none.

        The supervisor that wrote it may be newer than an agent that was put back a version."""
        if (fact := rank_dir.read(self.ranks / key, rank_dir.EXIT)) is None:
            return None
        known = {name: value for name, value in fact.items() if name in Ended.__struct_fields__}
        try:
            ended = msgspec.convert({**known, "key": key, "seconds_ago": self._seconds_ago(fact)}, Ended)
            datetime.fromisoformat(ended.at)
            # What cannot be said, such as half a character, would keep all else of the node from being said.
            msgspec.json.encode(ended)
        except (ValueError, OverflowError) as problem:
            logger.error("%s of %s is no end: %s", rank_dir.EXIT, key, problem, extra=rank_fields(key))
            return None
        return ended

    def _seconds_ago(self, fact: dict[str, Any]) -> float | None:
        """How long ago a fact was written down, whatever was done to the wall clock since; None: in another boot."""
        at = fact.get("monotonic")
        is_told = fact.get("boot_id") == self.boot_id and isinstance(at, float)
        return time.monotonic() - at if is_told and at is not None else None

    def _make(self, key: str) -> Path:
        directory = self.ranks / key
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        return directory

    def _taken_in(self, directory: Path) -> str | None:
        """The boot in which a rank was taken. One that was prepared in another boot is over, taken or not: a power cut
        may have emptied the file that says so."""
        spec = rank_dir.read(directory, rank_dir.SPEC)
        if spec is not None and spec.get("boot_id", self.boot_id) != self.boot_id:
            return str(spec["boot_id"])
        if (boot_id := rank_dir.try_lock(directory)) is None and os.path.lexists(directory / rank_dir.EXIT):
            return self.boot_id  # nobody of us wrote that, or it would have been read
        return boot_id

    def _end_unstarted(self, directory: Path, reason: str) -> None:
        handle = rank_dir.lock(directory)
        if handle is None:
            return  # a supervisor is starting; it reads stop.json before it starts anything
        try:
            if not rank_dir.is_taken(handle) and not rank_dir.read(directory, rank_dir.EXIT):
                rank_dir.write(directory, rank_dir.EXIT, {"at": rank_dir.now(), "reason": reason})
        finally:
            os.close(handle)

    def _bury(self, directory: Path, boot_id: str) -> bool:
        """Writes the end of a rank whose supervisor is gone without having written one; False while a process of it
        cannot be killed."""
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
            client.remove(rank_dir.read(directory, rank_dir.SPEC) or {}, 0)  # what is left of it does not run
        elif not _end_strays(directory, _leader(started)):
            return False
        rank_dir.write(directory, rank_dir.EXIT, fact)
        return True

    def _read_graves(self) -> Iterator[tuple[str, float]]:
        if not self._graves.exists():
            return
        lines = [line.split() for line in self._graves.read_text().splitlines()]
        # A line cut short by a power cut names a rank whose directory is still there.
        young = [(line[0], float(line[1])) for line in lines if len(line) == 2 and line[1].isdigit()]
        young = [(key, at) for key, at in young if at > time.time() - TOMBSTONE_SECONDS]
        if len(young) < len(lines) / 2:
            fresh = self._graves.with_suffix(".new")
            fresh.write_text("".join(f"{key} {at:.0f}\n" for key, at in young))
            fresh.rename(self._graves)
        yield from young


def wake_supervisor(directory: Path) -> None:
    """Has the supervisor read stop.json, if there is one. The pid is asked of the lock, so it is nobody else's."""
    pid = rank_dir.holder(directory)
    if pid is None or pid == os.getpid() or rank_dir.try_lock(directory) is None:
        return
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if rank_dir.holder(directory) == pid:
            signal.pidfd_send_signal(handle, signal.SIGUSR1)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def _start_in(directory: Path) -> dict[str, Any] | None:
    """What started.json says; None without it, or if what is there is no start."""
    started = rank_dir.read(directory, rank_dir.STARTED)
    try:
        datetime.fromisoformat((started or {})["at"])
    except (KeyError, TypeError, ValueError):
        return None
    return started if started is not None and isinstance(started.get("pid"), int) else None


def _leader(started: dict[str, Any] | None) -> tuple[int, int] | None:
    """(pid, start) of a rank's first process; None if it was not written down, as by the supervisors of before."""
    told = (started or {}).get("pid"), (started or {}).get("start")
    return (told[0], told[1]) if isinstance(told[0], int) and isinstance(told[1], int) else None


def _end_strays(directory: Path, leader: tuple[int, int] | None) -> bool:
    """Kills what a killed supervisor left behind; True when nothing of it is left."""
    spec = rank_dir.read(directory, rank_dir.SPEC) or {}
    secret_files.remove(directory, spec)
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
    said = "processes %s ignore SIGKILL; their devices stay taken"
    logger.error(said, pids or f"in {group}", extra=rank_fields(directory.name))
    return False


def _booted_at() -> str:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return datetime.fromtimestamp(int(line.split()[1]), UTC).isoformat()
    return rank_dir.now()
