"""Finding and ending processes: descendants, strays, and the guarantee that nothing is left. Standard library only."""

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
    """Sends a signal to each; those that are gone already are none."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def end_all_children() -> None:
    """Kills whatever is left below this subreaper and waits until the kernel says that nothing is. A process that is
    killed hands its children to us, so direct children suffice, again and again."""
    while True:
        signal_all(children(os.getpid()), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def strays(scope: str) -> list[int]:
    """Processes that were started in a scope, wherever they are now. Zombies have no environment and are none."""
    mark = f"{SCOPE_VARIABLE}={scope}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                environment = Path(f"/proc/{entry}/environ").read_bytes()
            except OSError:
                continue  # gone, or of another user and so not ours
            if mark in environment.split(b"\x00"):
                found.append(int(entry))
    return found


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone. Tells a process from a later one that
    got the same number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[19])
