"""cgroup v2: one group of a rank: create it with its limits, enter it, end its processes, read its counters, and remove
it. Standard library only, because supervisors use it."""

import contextlib
import os
import time

from gpusched.agent.rank_files import raw_file

# After a kill: the kernel takes milliseconds, unless a driver blocks it.
_GONE_SECONDS = 2.0


def make(path: str, limits: dict[str, str]) -> None:
    """Create the group with its limits. OSError if one cannot be set; a machine without swap has no file for that
    one."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o755)
    for name, value in limits.items():
        try:
            _write(f"{path}/{name}", value)
        except OSError:
            if name != "memory.swap.max":
                raise


def enter(path: str) -> None:
    """Move this process into the group."""
    _write(f"{path}/cgroup.procs", "0")


def kill(path: str) -> bool:
    """Send SIGKILL to all processes of the group at once, of any user, including new forks. Return False if the kernel
    cannot (before Linux 5.14) or the group is gone."""
    try:
        _write(f"{path}/cgroup.kill", "1")
    except OSError:
        return False
    return True


def is_populated(path: str) -> bool:
    """Return True if a process of the group lives; False also if there is no such group."""
    return b"populated 1" in raw_file.read_if_possible(f"{path}/cgroup.events").splitlines()


def remove(path: str) -> bool:
    """Remove the group and the job's groups below it, once its processes are gone; return False if they are not."""
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        for directory, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        if not os.path.exists(path):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)


def oom_kills(path: str) -> int | None:
    """Return the number of the group's processes that the kernel has killed for lack of memory; None if it does not
    count them."""
    return counter(f"{path}/memory.events", "oom_kill")


def peak_memory_mb(path: str) -> int | None:
    """Return the peak memory of the whole group; None if the kernel does not report it (before Linux 5.19)."""
    text = raw_file.read_if_possible(f"{path}/memory.peak").strip()
    return -(-int(text) // (1 << 20)) if text.isdigit() else None


def _write(path: str, value: str) -> None:
    # Unlike Path.write_text, this imports and encodes nothing: it is on the critical path of each launch.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(handle, value.encode())
    finally:
        os.close(handle)


def counter(path: str, name: str) -> int | None:
    """Return a counter of the kernel from a file with a name and a number in each line; None if it is not there."""
    line = (b"\n" + raw_file.read_if_possible(path)).partition(f"\n{name} ".encode())[2].partition(b"\n")[0]
    return int(line) if line.isdigit() else None
