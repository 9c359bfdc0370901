"""What became of the container of a rank, as its runtime says: the end of the client that was attached to it is not the
container's. Standard library only, for supervisors use it."""

import os
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
