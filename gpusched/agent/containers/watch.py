"""Follows the container of a rank to its own end: takes another client when one is lost, and waits for the runtime's
word, without which nothing is over. Standard library only, for it runs in supervisors."""

import math
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from gpusched.agent.containers import client

RUNNING, ENDED, GONE, UNKNOWN = "running", "ended", "gone", "unknown"


# What a container is called in that is not over: docker's words and podman's.
_LASTING = frozenset({"running", "paused", "restarting", "removing", "stopping"})


_FORMAT = "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.State.Error}}"


_OUTPUT = os.O_WRONLY | os.O_APPEND


@dataclass(frozen=True)
class State:
    """`status`: `running`, `ended`, `gone` (there is none, or none was made), or `unknown`: the runtime does not say.
    `code`: of one that ended by itself. `error`: why it could not be started."""

    status: str
    code: int | None = None
    is_out_of_memory: bool = False
    error: str = ""


def state(spec: dict[str, Any]) -> State:
    """Asks the runtime. A client that wrote no id has started no container, whatever the runtime answers now."""
    if not was_made(spec):
        return State(GONE)
    name = client.name_of(spec)
    code, told = client.call(spec, "container", "inspect", "--format", _FORMAT, name)
    words = told.strip().split(" ", 3)
    if code == 0 and len(words) >= 3:
        if words[0] in _LASTING:
            return State(RUNNING)
        if words[0] in ("created", "configured", "initialized"):
            return State(GONE, error=words[3] if len(words) > 3 else "")
        number = int(words[1]) if words[1].isdigit() else None
        return State(ENDED, number, words[2] == "true", words[3] if len(words) > 3 else "")
    return State(GONE if client.is_gone(spec) else UNKNOWN)


def attach(spec: dict[str, Any], log: str) -> int:
    """A new client for what its container prints from now on; gives its pid. OSError if it cannot be started."""
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
    """Whether the runtime has ever made the container, as the file says in which its client wrote the id first."""
    # Without the key, the rank was prepared by an agent of before, which had the runtime remove the container.
    path = spec["container"].get("id_file")
    return path is None or (os.path.exists(path) and os.path.getsize(path) > 0)


# Between two questions to a runtime that has no client of ours attached.
ASK_SECONDS = 1.0
TELL_SECONDS = 60.0


@dataclass
class Watch:
    """What a supervisor knows of its container. `again_at`: when it is to be asked about again, by the monotonic clock.
    `lost`: the wait status of the client that ended before it. `fault`: why nobody knows how it ended."""

    again_at: float = math.inf
    lost: int | None = None
    end: State | None = None
    fault: str = ""
    attached_at: float = -math.inf


def poll(spec: dict[str, Any], watch: Watch, pid: int, status: int | None, log: str) -> tuple[int, int | None]:
    """(pid, wait status) of the rank, given those of its client: no status as long as the container lasts."""
    if status is None and time.monotonic() < watch.again_at:
        return pid, None
    if status is not None:
        watch.lost = status
    assert watch.lost is not None
    told = state(spec)
    if told.status == ENDED or told.status == GONE:
        watch.end = told
        return pid, _status(watch, told)
    now = time.monotonic()
    watch.again_at = now + ASK_SECONDS
    if told.status == RUNNING and now - watch.attached_at > ASK_SECONDS and (fresh := _attach(spec, watch, log)):
        # Its end is a signal, and until then there is nothing to ask.
        watch.attached_at, watch.again_at = now, math.inf
        return fresh, None
    return pid, None


def clear(spec: dict[str, Any], watch: Watch) -> None:
    """Removes the container, and returns when the runtime says that there is none: until then its devices are not
    free. Of one that was never made nothing is waited for."""
    if "container" not in spec:
        return
    if not was_made(spec):
        client.remove(spec, 0)
        return
    told_at = -math.inf
    while not client.remove(spec, TELL_SECONDS):
        if time.monotonic() - told_at > TELL_SECONDS:
            told_at = time.monotonic()
            sys.stderr.write(f"{client.name_of(spec)} cannot be removed: its runtime does not say that it is gone\n")
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


def _status(watch: Watch, told: State) -> int:
    """A wait status that says what the container's own end was."""
    assert watch.lost is not None
    if told.status == ENDED and told.code is not None:
        return told.code << 8
    if os.WIFSIGNALED(watch.lost):
        number = os.WTERMSIG(watch.lost)
        watch.fault = f"the container's client ended by signal {number}, and no container is left to say how it ended"
    return watch.lost
