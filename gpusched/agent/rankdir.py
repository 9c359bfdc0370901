"""The directory of one rank: what its files are called, how they are written, and who holds it. Standard library only.

Each fact is one file that appears once, whole, and never changes:

    spec.json        what to run (agent)
    supervisor.json  a supervisor took it, in this boot (supervisor)
    started.json     its process was started (supervisor)
    stop.json        it shall end (agent)
    exit.json        it is over and no process of it lives (supervisor; agent, if no supervisor can)
    output.log       what it printed

A supervisor holds a POSIX record lock on `lock` for as long as it lives. Such a lock is not inherited by the job and
can be asked about without being taken, so the holder is known by pid whatever happened to the agent meanwhile."""

import fcntl
import json
import os
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SPEC, SUPERVISOR, STARTED, STOP, EXIT = "spec.json", "supervisor.json", "started.json", "stop.json", "exit.json"
LOCK, LOG, SCRIPT, NOTICE = "lock", "output.log", "script", "preempt.json"
# Stands in the environment of every process of a rank, so that strays of a killed supervisor can be found.
SCOPE_VARIABLE = "GPUSCHED_SCOPE"
_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux: type, whence, start, len, pid


def write(directory: Path, name: str, fact: dict[str, Any], *, durable: bool = False) -> None:
    """Makes the file appear whole. `durable`: it survives a power cut, too."""
    temporary = directory / f".{name}.{os.getpid()}"
    with temporary.open("w") as file:
        json.dump(fact, file)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.rename(directory / name)


def read(directory: Path, name: str) -> dict[str, Any] | None:
    """The fact, or None if it has not been written."""
    try:
        fact: dict[str, Any] = json.loads((directory / name).read_bytes())
    except FileNotFoundError:
        return None
    return fact


def holder(directory: Path) -> int | None:
    """The pid of the process that holds the lock, or None."""
    try:
        handle = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, question))
    finally:
        os.close(handle)
    return None if kind == fcntl.F_UNLCK else int(pid)


def take(directory: Path) -> int | None:
    """Takes the lock for this process until it ends or closes the handle given; None if another holds it."""
    handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def boot_id() -> str:
    """Changes with every boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def now() -> str:
    return datetime.now(UTC).isoformat()
