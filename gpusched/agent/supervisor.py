"""The supervisor of one rank: starts its process, enforces its limits, ends every process of it, and writes down how it
ended. Outlives the agent. Standard library only: 1,600 of these may live on one machine."""

import contextlib
import ctypes
import json
import math
import os
import resource
import signal
import socket
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpusched.agent import processes, rankdir, triage
from gpusched.protocol.reasons import EndReason

SIGNALS = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM}
# An agent that is stopped together with its jobs is itself waited for.
HURRY_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 3600.0
# A command may be a megabyte; what is said of it need not be.
MOST_DETAIL = 500
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Rank:
    """What one supervisor knows while it lives."""

    directory: Path
    spec: dict[str, Any]
    pid: int = 0
    started_at: datetime | None = None
    started: float = 0.0
    reason: str = ""
    kill_at: float | None = None
    status: int | None = None
    oom_kills: int | None = None  # as the kernel counted them when it started
    doorbell: str = field(default="")


def run(directory: Path, doorbell: str, parent: int | None) -> None:
    """Supervises the rank from start to end. Does nothing if another supervisor has, or had, it.

    `parent`: end with this process (jobs that belong to their agent). Signals SIGNALS must be blocked."""
    if parent is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            return
    if not _take(directory):
        return
    spec = rankdir.read(directory, rankdir.SPEC)
    if spec is None:
        raise FileNotFoundError(directory / rankdir.SPEC)
    rank = Rank(directory, spec, doorbell=doorbell)
    # After the rank was taken: an agent that writes stop.json later sees that, and signals.
    if stop := rankdir.read(directory, rankdir.STOP):
        _finish(rank, stop["reason"])
        return
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if problem := _start(rank):
        _finish(rank, EndReason.LAUNCH_FAILED, detail=problem)
        return
    with contextlib.suppress(OSError):  # the end says when it started, too
        rankdir.write(directory, rankdir.STARTED, {"at": _iso(rank.started_at), "pid": rank.pid})
    _ring(rank)
    _watch(rank)
    processes.end_all_children()
    _finish(rank, rank.reason)


def _take(directory: Path) -> bool:
    """Takes the rank for ever and its lock for as long as this process lives; False if it is or was another's. Tried
    for a moment, since an agent may be writing a stop under the lock."""
    for _ in range(40):
        handle = rankdir.lock(directory)
        if os.path.exists(f"{directory}/{rankdir.EXIT}"):
            return False
        if handle is not None:
            if rankdir.is_taken(handle):
                return False
            os.write(handle, rankdir.boot_id().encode())
            return True
        if rankdir.taken(directory):
            return False
        time.sleep(0.05)
    return False


def _start(rank: Rank) -> str | None:
    """Starts the process; gives what was wrong if that cannot be."""
    spec, directory = rank.spec, rank.directory
    rank.oom_kills = triage.oom_kills()
    rank.started_at, rank.started = datetime.now(UTC), time.monotonic()
    environment = {
        **spec["environment"],
        "GPUSCHED_PREEMPT_FILE": f"{directory}/{rankdir.NOTICE}",
        "GPUSCHED_CHECKPOINT_FILE": f"{directory}/{rankdir.CHECKPOINT}",
    }
    if limit := spec["max_runtime_seconds"]:
        environment["GPUSCHED_DEADLINE"] = _iso(rank.started_at + timedelta(seconds=limit))
    output = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        os.chdir(spec["workdir"])
        os.environ["PATH"] = environment.get("PATH", os.defpath)  # where it is looked for
        # Not fork and exec: a second copy of this process would cost more than all else that a supervisor does.
        rank.pid = os.posix_spawnp(
            spec["argv"][0],
            spec["argv"],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, f"{directory}/{rankdir.LOG}", output, 0o640),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD],
        )
    except OSError as error:
        rank.started_at = None
        what = f"workdir {spec['workdir']}" if error.filename == spec["workdir"] else spec["argv"][0]
        return f"{what}: {error.strerror}"
    except ValueError as error:  # a null byte
        rank.started_at = None
        return f"{spec['argv'][0]}: {error}"
    return None


def _watch(rank: Rank) -> None:
    """Waits for the end of the process; TERM at the limit or when asked to stop, KILL of everything after the grace."""
    if rankdir.read(rank.directory, rankdir.STOP):
        _obey(rank)
    while rank.status is None:
        patience = min(LONGEST_WAIT_SECONDS, max(0.0, _deadline(rank) - time.monotonic()))
        happened = signal.sigtimedwait(SIGNALS, patience)
        number = happened.si_signo if happened else None
        if number == signal.SIGUSR1:
            _obey(rank)
        elif number == signal.SIGTERM:
            _terminate(rank, EndReason.AGENT_STOPPED, min(HURRY_SECONDS, rank.spec["grace_seconds"]))
        # By the clock, not by the lack of signals: a job may keep them coming.
        if time.monotonic() >= _deadline(rank):
            if rank.kill_at is not None:
                processes.signal_all(_all(rank), signal.SIGKILL)
                rank.kill_at = time.monotonic() + 1.0  # until it is gone; new children may have come meanwhile
            else:
                _terminate(rank, EndReason.TIME_LIMIT, rank.spec["grace_seconds"])
        _reap(rank)


def _deadline(rank: Rank) -> float:
    """When something is to be done next, by the monotonic clock: the limit, or the end of the grace."""
    if rank.kill_at is not None:
        return rank.kill_at
    limit = rank.spec["max_runtime_seconds"]
    return rank.started + limit if limit else math.inf


def _obey(rank: Rank) -> None:
    if stop := rankdir.read(rank.directory, rankdir.STOP):
        _terminate(rank, stop["reason"], stop["grace_seconds"])


def _terminate(rank: Rank, reason: str, grace_seconds: float) -> None:
    """Notice file with the deadline first, then SIGTERM to all. A second stop only ever shortens the grace."""
    kill_at = time.monotonic() + grace_seconds
    if rank.kill_at is not None:
        rank.kill_at = min(rank.kill_at, kill_at)
        return
    rank.reason, rank.kill_at = reason, kill_at
    deadline = _iso(datetime.now(UTC) + timedelta(seconds=grace_seconds))
    with contextlib.suppress(OSError):  # a full disk must not keep a job from being stopped
        rankdir.write(rank.directory, rankdir.NOTICE, {"reason": reason, "deadline_at": deadline})
    processes.signal_all(_all(rank), signal.SIGTERM)


def _all(rank: Rank) -> list[int]:
    return processes.descendants(os.getpid())


def _reap(rank: Rank) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == rank.pid:
            rank.status = status


def _finish(rank: Rank, reason: str, detail: str | None = None) -> None:
    """Writes how it ended; by now no process of it lives."""
    code = None if rank.status is None else os.waitstatus_to_exitcode(rank.status)
    log, exit_class = rank.directory / rankdir.LOG, None
    if not reason:
        reason = EndReason.SIGNALLED if code is not None and code < 0 else EndReason.EXITED
        if code:
            exit_class = triage.failure_class(str(log), code, rank.oom_kills, triage.oom_kills())
    # By the monotonic clock, so that a step of the wall clock neither adds nor hides time.
    ended_at = datetime.now(UTC)
    if rank.started_at is not None:
        ended_at = rank.started_at + timedelta(seconds=time.monotonic() - rank.started)
    fact = {
        "at": _iso(ended_at),
        "reason": str(reason),
        "exit_code": code if code is not None and code >= 0 else None,
        "signal": -code if code is not None and code < 0 else None,
        "started_at": _iso(rank.started_at) if rank.started_at else None,
        "detail": None if detail is None else detail[:MOST_DETAIL],
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024 if rank.started_at else None,
        "log_bytes": log.stat().st_size if log.exists() else 0,
        "exit_class": exit_class,
    }
    _write_end(rank.directory, fact)
    _ring(rank)


def _write_end(directory: Path, fact: dict[str, Any]) -> None:
    """Until it is written, this process lives and holds the rank: on a full disk a job that ended well must not be
    taken for one whose supervisor was lost, and run again."""
    while True:
        try:
            return rankdir.write(directory, rankdir.EXIT, fact)
        except OSError:
            time.sleep(1.0)


def _ring(rank: Rank) -> None:
    """Tells the agent to look; without one it will look by itself when it is back."""
    home, _, name = rank.doorbell.rpartition("/")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as bell, contextlib.suppress(OSError):
        # The kernel refuses socket paths of 108 bytes and more; by way of a handle of its directory each one fits.
        handle = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            bell.sendto(json.dumps(str(rank.directory)).encode(), f"/proc/self/fd/{handle}/{name}")
        finally:
            os.close(handle)


def _iso(moment: datetime | None) -> str:
    assert moment is not None
    return moment.isoformat()
