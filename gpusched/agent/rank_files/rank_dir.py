"""The directory of one rank: what its files are called, how they are written, and who holds it. Standard library only.

Each fact is one file that appears whole, and, but for the four that say so, once:

    spec.json     what to run (agent)
    lock          a supervisor took it, in the boot that it names (supervisor)
    started.json  its process was started (supervisor)
    stop.json     it shall end (agent)
    exit.json     it is over and no process of it lives (supervisor; agent, if no supervisor can)
    output.log    what it printed
    log_limit.json  how much of that is sent (agent)
    checkpoint    when it last saved its work, by the time of its last change (the job; changes)
    limit.json    its time limit, if it was changed since (agent; changes)
    signals.json  the latest signals that it was to be sent (agent; changes)
    deadline.json when its time limit is, for the job to read (supervisor; changes)
    tmp           for what is temporary (the job)

A supervisor holds a POSIX record lock on `lock` for as long as it lives. Such a lock is not inherited by the job and
can be asked about without being taken, so the holder is known by pid whatever happened to the agent meanwhile."""

import errno
import fcntl
import json
import os
import struct
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SPEC, STARTED, STOP, EXIT = "spec.json", "started.json", "stop.json", "exit.json"
LOCK, LOG, SCRIPT, NOTICE, CHECKPOINT = "lock", "output.log", "script", "preempt.json", "checkpoint"
TMP = "tmp"
LOG_LIMIT, LIMIT, DEADLINE, SIGNALS = "log_limit.json", "limit.json", "deadline.json", "signals.json"
# Stands in the environment of every process of a rank, so that strays of a killed supervisor can be found.
SCOPE_VARIABLE = "GPUSCHED_SCOPE"
# A file that is closed, a link to itself, a socket or below a file: a job of the agent's own user can leave all these.
_SPOILED = frozenset({errno.EACCES, errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.ENAMETOOLONG})
_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux: type, whence, start, len, pid


def write(directory: Path, name: str, fact: dict[str, Any], *, durable: bool = False, mode: int = 0o600) -> None:
    """Makes the file appear whole. `durable`: it survives a power cut, too."""
    # Plain calls: with 1,600 ranks that start at once, paths as objects are a third of the agent's time.
    temporary = f"{directory}/.{name}.{os.getpid()}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        if mode != 0o600:
            os.fchmod(handle, mode)  # whatever the umask
        data = json.dumps(fact).encode()
        while data:
            data = data[os.write(handle, data) :]
        if durable:
            os.fsync(handle)
    finally:
        os.close(handle)
    try:
        os.rename(temporary, f"{directory}/{name}")
    except IsADirectoryError:  # which none of us has made
        os.rename(f"{directory}/{name}", f"{temporary}.{time.monotonic_ns()}")
        os.rename(temporary, f"{directory}/{name}")


def write_in_the_end(directory: Path, name: str, fact: dict[str, Any]) -> None:
    """The same, tried until it is written, for the process lives and holds the rank as long: on a full disk a job that
    ended well must not be taken for one whose supervisor was lost, and run again. Without the directory there is nobody
    to tell."""
    while True:
        try:
            return write(directory, name, fact)
        except OSError:
            if not directory.exists():
                return None
            time.sleep(1.0)


def read(directory: Path, name: str) -> dict[str, Any] | None:
    """The fact, or None if it has not been written. A file that a power cut left empty has not been, either, nor one
    that a job of the agent's own user has put there and that is none of these facts, or that it has closed."""
    try:
        return read_own(directory, name)
    except OSError as error:
        if error.errno in _SPOILED:
            return None
        raise


def read_own(directory: Path, name: str) -> dict[str, Any] | None:
    """The same of a file that no job is given: OSError if it is there and cannot be opened."""
    try:
        with open(f"{directory}/{name}", "rb", opener=_at_once) as file:
            fact = json.loads(file.read())
    except (FileNotFoundError, IsADirectoryError, ValueError, RecursionError):
        return None
    return fact if isinstance(fact, dict) else None


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # no waiting for who writes to a pipe


def saved_at(directory: str) -> str | None:
    """When the job last touched its checkpoint file, RFC 3339 UTC; None if it never did or has no such file."""
    try:
        changed = os.stat(f"{directory}/{CHECKPOINT}").st_mtime
        # At 1970 the agent puts the file where the job could not make it: that is no time of the job's.
        return datetime.fromtimestamp(changed, UTC).isoformat() if changed else None
    except (OSError, OverflowError, ValueError):
        return None


def holder(directory: Path) -> int | None:
    """The pid of the process that holds the lock, or None."""
    try:
        handle = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, question))
    finally:
        os.close(handle)
    return None if kind == fcntl.F_UNLCK else int(pid)


def try_lock(directory: Path) -> str | None:
    """The boot in which a supervisor took the rank; None if none ever did."""
    try:
        with open(f"{directory}/{LOCK}", errors="replace", opener=_at_once) as file:
            return file.read() or None
    except (FileNotFoundError, IsADirectoryError):
        return None


def lock(directory: Path) -> int | None:
    """Takes the lock for this process until it ends or closes the handle given; None if another holds it."""
    handle = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def is_taken(handle: int) -> bool:
    """The same, asked by who has the lock: opening and closing the file anew would let go of it."""
    return bool(os.pread(handle, 1, 0))


def boot_id() -> str:
    """Changes with every boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def now() -> str:
    return datetime.now(UTC).isoformat()
