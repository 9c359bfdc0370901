"""Looking at processes that a test started, from outside."""

import os
from contextlib import suppress
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Return True if the process runs: it exists and is no zombie. It may end meanwhile."""
    try:
        return b"State:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes_naming(*marks: bytes) -> list[int]:
    """Return the processes, except this one, that have one of these texts in their command line, in their environment
    or in the names of their open files. The title of a forked process replaces its first two."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    texts = {pid: _texts(pid) for pid in pids}
    return [pid for pid, text in texts.items() if pid != os.getpid() and any(mark in text for mark in marks)]


def _texts(pid: int) -> bytes:
    names = map(os.fsencode, open_files(pid).values())
    return b"\0".join([read(f"/proc/{pid}/cmdline"), read(f"/proc/{pid}/environ"), *names])


def read(path: str) -> bytes:
    """Return the content of a file of a process; nothing once the process has ended."""
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def open_files(pid: int) -> dict[int, str]:
    """Return the open files of a process, by their numbers; none once it has ended."""
    names = {}
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                names[int(entry.name)] = os.readlink(entry)
    return names
