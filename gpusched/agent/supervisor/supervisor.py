"""The supervisor of one rank: start its process, enforce its limits, end all its processes, and record its end. It
outlives the agent. Standard library only: one machine may have 1,600 supervisors."""

import contextlib
import ctypes
import math
import os
import resource
import signal
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from gpusched.agent import processes
from gpusched.agent.containers import client, watch
from gpusched.agent.isolation import cgroup
from gpusched.agent.rank_files import rank_dir, removal
from gpusched.agent.supervisor import failure_class, signals, time_limit
from gpusched.agent.supervisor.notify_agent import notify
from gpusched.agent.supervisor.spawn import StartError, enclose, spawn
from gpusched.protocol.reasons import EndReason

SIGNALS = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM}
# Grace of jobs that stop with their agent: the agent's own stop waits for them.
HURRY_SECONDS = 2.0
MAX_WAIT_SECONDS = 3600.0
# A command may be a megabyte; the error about it must not be.
MAX_DETAIL = 500
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


class Rank:
    """The state of one supervisor."""

    def __init__(self, directory: str, spec: dict[str, Any], socket_path: str = "") -> None:
        self.directory = directory
        self.spec = spec
        self.socket_path = socket_path
        self.pid = 0
        self.started_at: datetime | None = None
        self.started = 0.0
        self.limit: float | None = None  # seconds from its start
        self.signalled = 0  # sequence number of the latest signal sent to it
        self.reason = ""
        self.kill_at: float | None = None
        self.status: int | None = None
        self.has_children = False
        self.oom_kills: int | None = None  # as the kernel counted them when it started
        self.oom_kills_after: int | None = None  # and when it was killed
        self.peak_memory_mb: int | None = None  # of all its processes together, if a cgroup counts it
        self.container = watch.Watch()

    @property
    def group(self) -> str:
        """The directory of its cgroup; empty without one."""
        return str((self.spec.get("cgroup") or {}).get("path", ""))


def run(directory: str, socket_path: str, parent: int | None) -> None:
    """Supervise the rank from start to end. Do nothing if another supervisor has, or had, it.

    `parent`: end with this process (jobs that belong to their agent). The signals SIGNALS must be blocked."""
    if parent is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            return
    if not _acquire(directory):
        return
    spec = rank_dir.read(directory, rank_dir.SPEC)
    if spec is None:
        raise FileNotFoundError(f"{directory}/{rank_dir.SPEC}")
    rank = Rank(directory, spec, socket_path)
    # After taking the rank: an agent that writes stop.json later sees the lock, and signals.
    if stop := rank_dir.read(directory, rank_dir.STOP):
        _finish(rank, stop["reason"])
        return
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if problem := _start(rank):
        _leave(rank)
        _finish(rank, problem[0], detail=problem[1])
        return
    with contextlib.suppress(OSError):  # the end includes the start, too
        leader = {"pid": rank.pid, "start": processes.start_of(rank.pid)}
        rank_dir.write(directory, rank_dir.STARTED, {"at": _iso(rank.started_at), **leader, **_clock(rank)})
    notify(rank.socket_path, rank.directory)
    _watch(rank)
    watch.clear(rank.spec, rank.container)
    _kill_all(rank)
    processes.end_all_children()
    _leave(rank)
    if not rank.reason and signal.SIGTERM in signal.sigpending():
        # A machine that shuts down ends all processes, the job's perhaps first: it has not ended by itself.
        rank.reason = EndReason.AGENT_STOPPED
    _finish(rank, rank.reason)


def _acquire(directory: str) -> bool:
    """Take the rank for ever and its lock for as long as this process lives; return False if it is or was another's.
    Retry briefly, because an agent may be writing a stop under the lock."""
    for _ in range(40):
        handle = rank_dir.lock(directory)
        if os.path.exists(f"{directory}/{rank_dir.EXIT}"):
            return False
        if handle is not None:
            if rank_dir.is_taken(handle):
                return False
            os.write(handle, rank_dir.boot_id().encode())
            with contextlib.suppress(OSError):
                rank_dir.reserve(directory)
            return True
        if rank_dir.try_lock(directory):
            return False
        time.sleep(0.05)
    return False


def _start(rank: Rank) -> tuple[EndReason, str] | None:
    """Start the process. Return the end reason and the problem if that fails."""
    spec, directory = rank.spec, rank.directory
    if refusal := spec.get("refusal"):
        return EndReason.NO_ACCOUNT, refusal
    if unfit := spec.get("unfit"):
        return EndReason.LAUNCH_FAILED, unfit
    if fault := spec.get("fault"):
        return EndReason.NODE_FAULT, fault
    try:
        enclose(spec)
    except OSError as error:
        return EndReason.NODE_FAULT, f"the cgroup {error.filename or rank.group} cannot be made: {error.strerror}"
    rank.oom_kills = _oom_kills(rank)
    started_at, rank.started = datetime.now(UTC), time.monotonic()
    environment = {
        **spec["environment"],
        "GPUSCHED_PREEMPT_FILE": f"{directory}/{rank_dir.NOTICE}",
        "GPUSCHED_CHECKPOINT_FILE": f"{directory}/{rank_dir.CHECKPOINT}",
        "GPUSCHED_DEADLINE_FILE": f"{directory}/{rank_dir.DEADLINE}",
    }
    if ends_at := _limited(rank, started_at):
        environment["GPUSCHED_DEADLINE"] = _iso(ends_at)
    try:
        rank.pid = spawn(directory, spec, environment)
    except StartError as problem:
        return EndReason.NODE_FAULT if problem.is_of_node else EndReason.LAUNCH_FAILED, str(problem)
    rank.started_at, rank.has_children = started_at, True
    return None


def _oom_kills(rank: Rank) -> int | None:
    """Return the counter of the rank's cgroup if it has one; else the nearest one."""
    kills = cgroup.oom_kills(rank.group) if rank.group else None
    return failure_class.oom_kills() if kills is None else kills


def _watch(rank: Rank) -> None:
    """Wait for the end of the process; send TERM at the limit or on a stop, KILL to everything after the grace."""
    _apply_orders(rank)  # orders from before signals were awaited
    while rank.status is None:
        due = min(_deadline(rank), rank.container.next_poll_at)
        timeout = min(MAX_WAIT_SECONDS, max(0.0, due - time.monotonic()))
        received = signal.sigtimedwait(SIGNALS, timeout)
        number = received.si_signo if received else None
        if number == signal.SIGUSR1:
            _apply_orders(rank)
        elif number == signal.SIGTERM:
            _terminate(rank, EndReason.AGENT_STOPPED, min(HURRY_SECONDS, rank.spec["grace_seconds"]))
        # By the clock, not by the lack of signals: a job may send them continuously.
        if time.monotonic() >= _deadline(rank):
            if rank.kill_at is not None:
                _kill_all(rank)
                rank.kill_at = time.monotonic() + 1.0  # until it is gone; it may have forked meanwhile
            else:
                _terminate(rank, EndReason.TIME_LIMIT, rank.spec["grace_seconds"])
        _reap(rank)
        if "container" in rank.spec:
            log = f"{rank.directory}/{rank_dir.LOG}"
            rank.pid, rank.status = watch.poll(rank.spec, rank.container, rank.pid, rank.status, log)


def _deadline(rank: Rank) -> float:
    """Return when to act next, by the monotonic clock: the limit, or the end of the grace."""
    if rank.kill_at is not None:
        return rank.kill_at
    return rank.started + rank.limit if rank.limit else math.inf


def _limited(rank: Rank, started_at: datetime) -> datetime | None:
    """Read the time limit, and write the deadline for the job."""
    rank.limit = time_limit.seconds(rank.directory, rank.spec)
    ends_at = started_at + timedelta(seconds=rank.limit) if rank.limit else None
    if ends_at:
        time_limit.write_deadline(rank.directory, rank.spec, ends_at)
    return ends_at


def _apply_orders(rank: Rank) -> None:
    """Apply what the agent wrote for the rank: a new time limit, signals for the job, a stop."""
    if rank.started_at is not None:
        _limited(rank, rank.started_at)
        rank.signalled = signals.send(rank.directory, rank.spec, rank.pid, rank.signalled)
    if stop := rank_dir.read(rank.directory, rank_dir.STOP):
        _terminate(rank, stop["reason"], stop["grace_seconds"])


def _terminate(rank: Rank, reason: str, grace_seconds: float) -> None:
    """Write the notice file with the deadline, then send SIGTERM to all processes. A second stop can only shorten the
    grace."""
    kill_at = time.monotonic() + grace_seconds
    if rank.kill_at is not None:
        rank.kill_at = min(rank.kill_at, kill_at)
        return
    rank.reason, rank.kill_at = reason, kill_at
    deadline = _iso(datetime.now(UTC) + timedelta(seconds=grace_seconds))
    with contextlib.suppress(OSError):  # a full disk must not keep a job from being stopped
        notice = {"reason": reason, "deadline_at": deadline}
        rank_dir.write(rank.directory, rank_dir.NOTICE, notice, mode=0o644)  # the job may be another user's
        if box := rank.spec.get("box"):
            rank_dir.write(box, rank_dir.NOTICE, notice, mode=0o644)
    if not client.send(rank.spec, signal.SIGTERM):
        processes.signal_all(processes.descendants(os.getpid()), signal.SIGTERM)


def _kill_all(rank: Rank) -> None:
    if client.send(rank.spec, signal.SIGKILL):
        return  # its client exits by itself, or is killed the next time
    if rank.group:
        cgroup.kill(rank.group)
    # Even if that worked: a process may have moved to another group. Most jobs leave no process behind.
    if rank.has_children:
        processes.kill_descendants()


def _leave(rank: Rank) -> None:
    """Store the cgroup's counters, and remove the cgroup."""
    if failure_class.was_killed(_code(rank)):
        rank.oom_kills_after = _oom_kills(rank)
    if rank.group:
        rank.peak_memory_mb = cgroup.peak_memory_mb(rank.group)
        cgroup.remove(rank.group)


def _reap(rank: Rank) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            rank.has_children = False
            return
        if pid == 0:
            return
        if pid == rank.pid:
            rank.status = status


def _finish(rank: Rank, reason: str, detail: str | None = None) -> None:
    """Write the end, and remove temporary files, which may take long; no process of the rank lives any more."""
    ended_at, clock = datetime.now(UTC), _clock(rank)
    removal.remove(f"{rank.directory}/{rank_dir.TMP}")
    for folder in (rank_dir.SECRETS_KEY, rank_dir.SOCKETS_KEY):  # the agent removes those that the specification lacks
        if folder in rank.spec:
            removal.remove(rank.spec[folder])
    code, log, exit_class = _code(rank), f"{rank.directory}/{rank_dir.LOG}", None
    if not reason:
        container_end = rank.container.end or watch.State(watch.UNKNOWN)
        container_facts = "box" in rank.spec and not container_end.is_of_the_job, container_end.is_out_of_memory
        reason, exit_class, detail = failure_class.classify_end(
            log, code, (rank.oom_kills, rank.oom_kills_after), *container_facts
        )
        if rank.container.fault:
            reason, exit_class, detail = EndReason.NODE_FAULT, None, rank.container.fault
    if rank.started_at is not None:  # a step of the wall clock neither adds nor hides time
        ended_at = rank.started_at + timedelta(seconds=clock["monotonic"] - rank.started)
    fact = {
        "at": _iso(ended_at),
        "reason": str(reason),
        "exit_code": code if code is not None and code >= 0 else None,
        "signal": -code if code is not None and code < 0 else None,
        "started_at": _iso(rank.started_at) if rank.started_at else None,
        "detail": None if detail is None else detail[:MAX_DETAIL],
        **_peak(rank),
        "log_bytes": os.stat(log).st_size if os.path.exists(log) else 0,
        "exit_class": exit_class,
        **clock,
    }
    rank_dir.write_in_the_end(
        rank.directory, rank_dir.EXIT, fact, lambda: notify(rank.socket_path, rank.directory, fact)
    )
    notify(rank.socket_path, rank.directory)


def _code(rank: Rank) -> int | None:
    """Return the exit code, or minus the signal; None if it did not start."""
    return None if rank.status is None else os.waitstatus_to_exitcode(rank.status)


def _clock(rank: Rank) -> dict[str, Any]:
    """Return the current time on a clock that only a boot resets."""
    return {"monotonic": time.monotonic(), "boot_id": rank.spec.get("boot_id")}


def _peak(rank: Rank) -> dict[str, Any]:
    """Return the peak memory of the whole rank if its cgroup counted it; else of its largest single process among those
    reaped, including the supervisor's own size before the program began."""
    if rank.started_at is None or "container" in rank.spec:  # its processes may not be our children
        return {"peak_memory_mb": None, "peak_memory_of": None}
    if rank.peak_memory_mb is not None:
        return {"peak_memory_mb": rank.peak_memory_mb, "peak_memory_of": "rank"}
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return {"peak_memory_mb": largest, "peak_memory_of": "process"}


def _iso(moment: datetime | None) -> str:
    assert moment is not None
    return moment.isoformat()
