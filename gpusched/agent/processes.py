"""Finding and ending processes: descendants, strays, and the guarantee that nothing is left. Standard library only."""

import contextlib
import os
import pwd
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpusched.agent.rank_files.rank_dir import SCOPE_VARIABLE


@dataclass(frozen=True)
class Seen:
    """A process as the kernel shows it. `start`: clock ticks since boot, so that (pid, start) is never another's.
    `environment`: that of its start; empty where it is not ours to read."""

    pid: int
    start: int
    session: int
    user: str
    name: str
    environment: dict[str, str]


def look(pid: int) -> Seen | None:
    """None if there is no such process (any more), or it is of another process namespace."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    name = stat.partition("(")[2].rpartition(")")[0]
    return Seen(pid, int(fields[19]), int(fields[3]), _user(owner), name, _environment(pid))


def describe(pid: int) -> str:
    """`pid 4242 of alice (python)`, for people."""
    seen = look(pid)
    return f"pid {pid}" if seen is None else f"pid {pid} of {seen.user} ({seen.name})"


def ancestors(pid: int) -> list[int]:
    """The parent of a process, its parent, and so on, as far as they can be told."""
    found: list[int] = []
    while pid > 1 and len(found) < 1000:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            break
        found.append(pid)
    return found


def _user(owner: int) -> str:
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return str(owner)


def _environment(pid: int) -> dict[str, str]:
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict((name, value) for name, _, value in (pair.partition("=") for pair in pairs))


def children(pid: int) -> list[int]:
    """Direct children of all threads of a process; empty if it is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def descendants(pid: int) -> list[int]:
    """All processes below one, at this moment."""
    found: list[int] = []
    waiting = children(pid)
    while waiting:
        child = waiting.pop()
        found.append(child)
        waiting += children(child)
    return found


def signal_all(pids: Iterable[int], number: int) -> None:
    """Sends a signal to each that is there and ours to signal: what another user runs (sudo) is waited for instead."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill(pid: int, start: int) -> bool:
    """Kills this very process, never another that got its number; False if it is gone or not ours to kill."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        seen = look(pid)
        if seen is None or seen.start != start:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)


def end_all_children() -> None:
    """Kills whatever is left below this subreaper and waits until the kernel says that nothing is. A process that is
    killed hands its children to us, so direct children suffice, again and again."""
    while True:
        signal_all(children(os.getpid()), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def start_of(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none if the process is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[0] == "Z" else fields


def strays(scope: str, leader: tuple[int, int] | None = None) -> list[int]:
    """Processes that were started in a scope, wherever they are now, and those of the session of `leader` (pid, start),
    whoever runs them: as long as that very process leads it, for the number may be another's by now. Zombies are none,
    and this process is none of them."""
    mark = f"{SCOPE_VARIABLE}={scope}".encode() if scope else None
    session = leader[0] if leader and start_of(leader[0]) == leader[1] else None
    return [
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdigit() and int(entry) != os.getpid() and _is_stray(int(entry), mark, session)
    ]


def kill_strays(scope: str, leader: tuple[int, int] | None = None) -> list[int]:
    """The same, killed. Each is looked at once more by a handle, so that no other that got its number is."""
    found = strays(scope, leader)
    mark = f"{SCOPE_VARIABLE}={scope}".encode() if scope else None
    for pid in sorted(found, key=lambda pid: leader is not None and pid == leader[0]):  # it vouches for the others
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                session = leader[0] if leader and start_of(leader[0]) == leader[1] else None
                if _is_stray(pid, mark, session):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
    return found


def _is_stray(pid: int, mark: bytes | None, session: int | None) -> bool:
    fields = _stat(pid)
    if not fields:
        return False
    if session is not None and int(fields[3]) == session:
        return True
    with contextlib.suppress(OSError):  # gone meanwhile, or an environment that is not ours to read
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark is not None and mark in file.read().split(b"\0")
    return False
