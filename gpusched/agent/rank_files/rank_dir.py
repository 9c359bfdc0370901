"""The directory of one rank: the names of its files, how to write them, and the process that holds it. Standard library
only.

Each fact is one file that appears complete. Four of the files may change; the others are written once:

    spec.json     what to run (agent)
    lock          a supervisor owns the rank, in the boot that the file names (supervisor)
    started.json  its process was started (supervisor)
    stop.json     it must end (agent)
    exit.json     it has ended and no process of it lives (supervisor; agent, if no supervisor can)
    output.log    its output
    log_limit.json  how much of the output is sent (agent)
    checkpoint    when it last saved its work: the file's time of change (the job; changes)
    limit.json    its time limit, if it was changed later (agent; changes)
    signals.json  the latest signals for it (agent; changes)
    deadline.json its deadline, for the job to read (supervisor; changes)
    tmp           temporary files (the job)
    .reserve      disk space for stop.json or exit.json (supervisor)

A supervisor holds a POSIX record lock on `lock` for as long as it lives. The job does not inherit such a lock, and the
kernel reports its holder's pid, so the agent finds the holder even after a restart."""

import errno
import fcntl
import json
import os
import struct
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from gpusched.agent.rank_files import raw_file

Directory = str | os.PathLike[str]
SPEC, STARTED, STOP, EXIT = "spec.json", "started.json", "stop.json", "exit.json"
LOCK, LOG, SCRIPT, NOTICE, CHECKPOINT = "lock", "output.log", "script", "preempt.json", "checkpoint"
TMP = "tmp"
# In spec.json: directories outside of the rank's own that are removed with it.
SECRETS_KEY, SOCKETS_KEY = "secrets_dir", "sockets_dir"
LOG_LIMIT, LIMIT, DEADLINE, SIGNALS = "log_limit.json", "limit.json", "deadline.json", "signals.json"
# In the environment of every process of a rank, so that strays of a killed supervisor can be found.
SCOPE_VARIABLE = "GPUSCHED_SCOPE"
# A closed file, a link to itself, a socket, a pipe, or a path below a file: a job of the agent's own user can leave all
# these.
_SPOILED = frozenset({errno.EACCES, errno.EAGAIN, errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.ENAMETOOLONG})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Space for a stop or an end, whose detail may consist of escaped characters.
_RESERVE, _RESERVED_BYTES = ".reserve", 8192
_FLOCK = "hhqqi4x"  # struct flock on 64-bit Linux: type, whence, start, len, pid


def write(directory: Directory, name: str, fact: dict[str, Any], *, durable: bool = False, mode: int = 0o600) -> None:
    """Write the file so that it appears complete. `durable`: it also survives a power cut."""
    # Plain calls: when 1,600 ranks start at once, path objects take a third of the agent's time.
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
    except IsADirectoryError:  # none of our programs creates one
        os.rename(f"{directory}/{name}", f"{temporary}.{time.monotonic_ns()}")
        os.rename(temporary, f"{directory}/{name}")


def reserve(directory: Directory) -> None:
    """Take space for a fact that must also be written once the disk is full, perhaps by the rank's own log. OSError if
    there is none."""
    handle = os.open(f"{directory}/{_RESERVE}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(handle, 0, _RESERVED_BYTES)
    finally:
        os.close(handle)


def write_surely(directory: Directory, name: str, fact: dict[str, Any]) -> None:
    """Write a stop or an end; on a full disk, into the space that is reserved for it."""
    try:
        write(directory, name, fact)
    except OSError as error:
        # Nobody reads the stop after the end.
        spares = (_RESERVE, STOP) if name == EXIT else (_RESERVE,)
        if error.errno not in FULL or not any(_write_over(directory, spare, name, fact) for spare in spares):
            raise


def _write_over(directory: Directory, spare: str, name: str, fact: dict[str, Any]) -> bool:
    """Write the fact into the space of another file, which becomes the fact's. Return False without that file."""
    temporary = f"{directory}/.{name}.{os.getpid()}"
    try:
        os.rename(f"{directory}/{spare}", temporary)  # agent and supervisor may try at once: one succeeds
    except FileNotFoundError:
        return False
    handle = os.open(temporary, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)  # a job may spoil it
    try:
        os.ftruncate(handle, os.write(handle, json.dumps(fact).encode()))
    finally:
        os.close(handle)
    os.rename(temporary, f"{directory}/{name}")
    return True


def write_in_the_end(
    directory: Directory, name: str, fact: dict[str, Any], on_broken_disk: Callable[[], None] = lambda: None
) -> None:
    """Write the file, and retry until it is written; the process holds the rank meanwhile. Otherwise, on a full disk, a
    job that ended well would count as lost and run again. Without the directory, give up. `on_broken_disk`: called
    after each error that more space does not end, as of a read-only disk."""
    while True:
        try:
            return write_surely(directory, name, fact)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not os.path.exists(directory):
                return None
            if error.errno not in FULL:
                on_broken_disk()
            time.sleep(1.0)


def read(directory: Directory, name: str) -> dict[str, Any] | None:
    """Return the fact, or None if it has not been written. A file that a power cut left empty counts as not written, as
    does an invalid or closed one from a job of the agent's own user."""
    try:
        return read_own(directory, name)
    except OSError as error:
        if error.errno in _SPOILED:
            return None
        raise


def read_own(directory: Directory, name: str) -> dict[str, Any] | None:
    """Return the fact in a file that jobs cannot reach. OSError if it exists and cannot be opened."""
    try:
        fact = json.loads(raw_file.read(f"{directory}/{name}"))
    except (FileNotFoundError, IsADirectoryError, ValueError, RecursionError):
        return None
    return fact if isinstance(fact, dict) else None


def saved_at(directory: str) -> str | None:
    """Return when the job last touched its checkpoint file, RFC 3339 UTC; None if it never did or has no such file."""
    try:
        changed = os.stat(f"{directory}/{CHECKPOINT}").st_mtime
        # The agent creates the file with the time 1970 if the job cannot: that is not a checkpoint.
        return datetime.fromtimestamp(changed, UTC).isoformat() if changed else None
    except (OSError, OverflowError, ValueError):
        return None


def holder(directory: Directory) -> int | None:
    """Return the pid of the process that holds the lock, or None."""
    try:
        handle = os.open(f"{directory}/{LOCK}", os.O_RDONLY | os.O_CLOEXEC)  # its disk may have become read-only
    except FileNotFoundError:
        return None
    try:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, question))
    finally:
        os.close(handle)
    return None if kind == fcntl.F_UNLCK else int(pid)


def try_lock(directory: Directory) -> str | None:
    """Return the boot in which a supervisor took the rank; None if none ever did."""
    try:
        return raw_file.read(f"{directory}/{LOCK}").decode(errors="replace") or None
    except (FileNotFoundError, IsADirectoryError):
        return None


def lock(directory: Directory) -> int | None:
    """Take the lock until this process ends or closes the returned handle; return None if another process holds it."""
    handle = os.open(f"{directory}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def is_taken(handle: int) -> bool:
    """Return True if a supervisor took the rank. For the holder of the lock: opening and closing the file again would
    release it."""
    return bool(os.pread(handle, 1, 0))


def boot_id() -> str:
    """Return the id of the machine's current boot."""
    return raw_file.read("/proc/sys/kernel/random/boot_id").decode().strip()


def now() -> str:
    return datetime.now(UTC).isoformat()
