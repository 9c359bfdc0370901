"""Finding and ending processes: descendants, strays, and the guarantee that nothing is left. Standard library only."""

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from gpusched.agent.rankdir import SCOPE_VARIABLE


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


def end_all_children() -> None:
    """Kills whatever is left below this subreaper and waits until the kernel says that nothing is. A process that is
    killed hands its children to us, so direct children suffice, again and again."""
    while True:
        signal_all(children(os.getpid()), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def strays(scope: str, session: int | None = None) -> list[int]:
    """Processes that were started in a scope, wherever they are now, and those of a session, whoever runs them. Zombies
    are none."""
    mark = f"{SCOPE_VARIABLE}={scope}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or an environment that is not ours to read
            status = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            if status[0] == "Z":
                continue
            is_of_session = session is not None and int(status[3]) == session
            if is_of_session or mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\x00"):
                found.append(int(entry))
    return found
