"""Follow the container of a rank to its own end: attach another client when one is lost, and wait until the runtime
confirms the end. Standard library only, because it runs in supervisors."""

import math
import os
import sys
import time
from typing import Any, NamedTuple

from gpusched.agent import processes
from gpusched.agent.containers import client

RUNNING, ENDED, ABSENT, UNSTARTED, UNKNOWN = "running", "ended", "absent", "unstarted", "unknown"
# States of a container that has not ended, in the words of docker and podman.
_LASTING = frozenset({"running", "paused", "restarting", "removing", "stopping"})
_FORMAT = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.State.Error}}"
_OUTPUT = os.O_WRONLY | os.O_APPEND


class State(NamedTuple):
    """`status`: `running`, `ended`, `absent` (no container), `unstarted` (none was started), or `unknown`: the runtime
    does not answer. `code`: its exit code, if it exited by itself. `error`: why it could not be started."""

    status: str
    code: int | None = None
    is_out_of_memory: bool = False
    error: str = ""

    @property
    def is_of_the_job(self) -> bool:
        """Return True if its program ran, so that the exit code is the program's own."""
        return self.status == ENDED and not self.error


def state(spec: dict[str, Any]) -> State:
    """Return the container's state from the runtime. A client that wrote no id has started no container, whatever the
    runtime answers now."""
    if not was_made(spec):
        return State(UNSTARTED)
    name = client.name_of(spec)
    code, output = client.call(spec, "container", "inspect", "--format", _FORMAT, name)
    columns = output.strip().split(" ", 3)
    if code == 0 and len(columns) >= 3:
        if columns[0] in _LASTING:
            return State(RUNNING)
        if columns[0] in ("created", "configured", "initialized"):
            return State(UNSTARTED, error=columns[3] if len(columns) > 3 else "")
        number = int(columns[1]) if columns[1].isdigit() else None
        return State(ENDED, number, columns[2] == "true", columns[3] if len(columns) > 3 else "")
    return State(ABSENT if client.is_gone(spec) else UNKNOWN)


def has_lost_monitor(spec: dict[str, Any]) -> bool:
    """Return True if podman's monitor of the container is gone. Without it podman shows the container as running for
    ever. Docker has none, and refuses the question."""
    code, output = client.call(spec, "container", "inspect", "--format", "{{.State.ConmonPid}}", client.name_of(spec))
    pid = output.strip()
    return code == 0 and pid.isdigit() and processes.start_of(int(pid)) is None


def attach(spec: dict[str, Any], log: str) -> int:
    """Start a new client that copies the container's further output to the log; return its pid. OSError if it cannot
    start."""
    argv = [*spec["container"]["command"], "attach", "--no-stdin", "--sig-proxy=false", client.name_of(spec)]
    return os.posix_spawnp(
        argv[0],
        argv,
        spec["environment"],
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, _OUTPUT, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=client.DEFAULT_SIGNALS,
    )


def was_made(spec: dict[str, Any]) -> bool:
    """Return True if the runtime created the container: its client writes the id to a file first."""
    # Older agents wrote no such key, and let the runtime remove the container.
    path = spec["container"].get("id_file")
    return path is None or (os.path.exists(path) and os.path.getsize(path) > 0)


# Between two questions to a runtime while no client of ours is attached.
POLL_SECONDS = 1.0
REMOVE_SECONDS = 60.0


class Watch:
    """The container as its supervisor knows it. `next_poll_at`: when to ask the runtime again, by the monotonic clock.
    `lost`: the wait status of a client that ended before its container. `is_daemon_gone`: docker's daemon had stopped
    when the client ended. `fault`: why the container's end is unknown, or is not the job's own."""

    def __init__(self) -> None:
        self.next_poll_at = math.inf
        self.lost: int | None = None
        self.is_daemon_gone = False
        self.end: State | None = None
        self.fault = ""
        self.attached_at = -math.inf


def poll(spec: dict[str, Any], watch: Watch, pid: int, status: int | None, log: str) -> tuple[int, int | None]:
    """Return (pid, wait status) of the rank, from those of its client. The status is None while the container lasts."""
    if status is None and time.monotonic() < watch.next_poll_at:
        return pid, None
    if status is not None:
        watch.lost = status
    assert watch.lost is not None
    current = state(spec)
    if current.status == RUNNING and has_lost_monitor(spec):
        current = state(spec)  # a monitor stores the end before it exits
        if current.status == RUNNING:
            watch.end, watch.fault = current, "podman's monitor of the container (conmon) ended before the container"
            return pid, watch.lost
    if current.status == RUNNING or (status is not None and current.status == UNKNOWN):
        watch.is_daemon_gone = current.status == UNKNOWN and client.is_daemon_gone(spec)
    if current.status in (ENDED, ABSENT, UNSTARTED):
        watch.end = current
        return pid, _status(watch, current)
    now = time.monotonic()
    watch.next_poll_at = now + POLL_SECONDS
    if current.status == RUNNING and now - watch.attached_at > POLL_SECONDS and (new_pid := _attach(spec, watch, log)):
        # SIGCHLD announces its end; until then there is nothing to ask.
        watch.attached_at, watch.next_poll_at = now, math.inf
        return new_pid, None
    return pid, None


def clear(spec: dict[str, Any], watch: Watch) -> None:
    """Remove the container, and return when the runtime confirms it: until then its devices are not free. Return at
    once if it was never created."""
    if "container" not in spec:
        return
    if not was_made(spec):
        client.remove(spec, 0)
        return
    logged_at = -math.inf
    while not client.remove(spec, REMOVE_SECONDS):
        if time.monotonic() - logged_at > REMOVE_SECONDS:
            logged_at = time.monotonic()
            sys.stderr.write(f"{client.name_of(spec)} cannot be removed: its runtime does not confirm the removal\n")
            sys.stderr.flush()


def _attach(spec: dict[str, Any], watch: Watch, log: str) -> int | None:
    try:
        if watch.attached_at == -math.inf:
            with open(log, "a") as file:
                file.write(
                    "[gpusched: the client of the container was lost; some of what was printed may be missing]\n"
                )
        return attach(spec, log)
    except OSError:
        return None


def _status(watch: Watch, ended: State) -> int:
    """Return a wait status that represents the container's own end."""
    assert watch.lost is not None
    if ended.status == ENDED and ended.code is not None:
        if watch.is_daemon_gone and watch.lost == ended.code << 8:
            # Only a daemon that stops its containers, and then itself, still tells their clients the exit code.
            watch.fault = "docker's daemon was stopped, and stopped the container"
        return ended.code << 8
    if ended.status == UNSTARTED and watch.lost == 0:  # podman exits with 0 on a SIGTERM while it fetches an image
        watch.fault = "the container's client ended before it had started the container"
    if os.WIFSIGNALED(watch.lost):
        number = os.WTERMSIG(watch.lost)
        watch.fault = (
            f"the container's client ended by signal {number}, and no container is left to ask for its exit code"
        )
    return watch.lost
