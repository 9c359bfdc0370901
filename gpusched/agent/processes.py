"""Find and end processes: descendants, strays, and the guarantee that none is left. Standard library only."""

import contextlib
import os
import pwd
import signal
import time
from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from gpusched.agent.rank_files import raw_file
from gpusched.agent.rank_files.rank_dir import SCOPE_VARIABLE

_MAX_ROUNDS = 100
# After the end of a process, for those of others: each round lists all that are left.
_ROUND_SECONDS = 0.001


class Process(NamedTuple):
    """A process as the kernel shows it. `start`: clock ticks since boot; (pid, start) stays unique when a pid is
    reused. `environment`: the one at its start; empty if we may not read it."""

    pid: int
    start: int
    session: int
    user: str
    name: str
    environment: dict[str, str]


def inspect(pid: int) -> Process | None:
    """Return a process; None if it does not exist or belongs to another process namespace."""
    try:
        stat = raw_file.read(f"/proc/{pid}/stat").decode(errors="replace")
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    name = stat.partition("(")[2].rpartition(")")[0]
    return Process(pid, int(fields[19]), int(fields[3]), _user(owner), name, _environment(pid))


def describe(pid: int) -> str:
    """Return `pid 4242 of alice (python)`, for people."""
    process = inspect(pid)
    return f"pid {pid}" if process is None else f"pid {pid} of {process.user} ({process.name})"


def ancestors(pid: int) -> list[int]:
    """Return the parent of a process, its parent, and so on, as far as they are readable."""
    pids: list[int] = []
    while pid > 1 and len(pids) < 1000:
        try:
            pid = int(raw_file.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])
        except OSError:
            break
        pids.append(pid)
    return pids


def _user(owner: int) -> str:
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return str(owner)


def _environment(pid: int) -> dict[str, str]:
    pairs = _environ(pid).decode(errors="replace").split("\0")
    return dict((name, value) for name, _, value in (pair.partition("=") for pair in pairs))


def _environ(pid: int) -> bytes:
    """Return the raw environment, from another thread if the first one has ended; empty if we may not read it."""
    if text := raw_file.read_if_possible(f"/proc/{pid}/environ"):
        return text
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            text = text or raw_file.read_if_possible(f"/proc/{pid}/task/{thread}/environ")
    return text


def children(pid: int) -> list[int]:
    """Return the direct children of all threads of a process; empty if it is gone."""
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            pids += map(int, raw_file.read(f"/proc/{pid}/task/{thread}/children").split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return pids


def descendants(pid: int) -> list[int]:
    """Return all current descendants of a process."""
    pids: list[int] = []
    waiting = children(pid)
    while waiting:
        child = waiting.pop()
        pids.append(child)
        waiting += children(child)
    return pids


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that exists and that we may signal. Another user's process (sudo) is waited for
    instead."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_descendants() -> None:
    """Kill all processes below this one. Stop them first, until no new one appears: a program that forks as fast as it
    is killed would outlast the kills."""
    stopped: set[int] = set()
    for _ in range(_MAX_ROUNDS):
        new = set(descendants(os.getpid())) - stopped
        if not new:
            break
        signal_all(new, signal.SIGSTOP)
        stopped |= new
    signal_all(descendants(os.getpid()), signal.SIGKILL)


def kill(pid: int, start: int) -> bool:
    """Kill exactly this process, never one that reused its pid. Return False if it is gone or not ours to kill."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        process = inspect(pid)
        if process is None or process.start != start:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)


def end_all_children() -> None:
    """Kill all processes below this subreaper, and wait until the kernel confirms that none is left. A killed process
    hands its children to us, so killing direct children repeatedly suffices, unless they fork as fast."""
    for kill_round in count(1):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:  # all that have ended: a job may leave thousands
                pass
            if kill_round % _MAX_ROUNDS:
                signal_all(children(os.getpid()), signal.SIGKILL)
            else:
                kill_descendants()
            os.waitpid(-1, 0)
            time.sleep(_ROUND_SECONDS)
        except ChildProcessError:
            return


def start_of(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot; None if there is none."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process is gone or a zombie. With more than
    one thread it is none: only its first thread has ended."""
    fields = raw_file.read_if_possible(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")[2].split()
    return [] if fields[:1] == ["Z"] and int(fields[17]) <= 1 else fields


def strays(scope: str, leader: tuple[int, int] | None = None) -> list[int]:
    """Return processes that were started in a scope, wherever they are now, and those of the session of `leader` (pid,
    start), of any user. The session counts only while that exact process leads it: its id may be reused. Zombies and
    this process are left out."""
    mark = f"{SCOPE_VARIABLE}={scope}".encode() if scope else None
    session = leader[0] if leader and start_of(leader[0]) == leader[1] else None
    return [
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdigit() and int(entry) != os.getpid() and _is_stray(int(entry), mark, session)
    ]


def kill_strays(scope: str, leader: tuple[int, int] | None = None) -> list[int]:
    """Kill the strays and return them. Each is checked again by a handle, so that no process that reused its pid is
    killed."""
    pids = strays(scope, leader)
    mark = f"{SCOPE_VARIABLE}={scope}".encode() if scope else None
    for pid in sorted(
        pids, key=lambda pid: leader is not None and pid == leader[0]
    ):  # it proves that the others are strays
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                session = leader[0] if leader and start_of(leader[0]) == leader[1] else None
                if _is_stray(pid, mark, session):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
    return pids


def _is_stray(pid: int, mark: bytes | None, session: int | None) -> bool:
    fields = _stat(pid)
    if not fields:
        return False
    if session is not None and int(fields[3]) == session:
        return True
    # Empty: gone meanwhile, or an unreadable environment.
    return mark is not None and mark in _environ(pid).split(b"\0")
