"""Follows the container of a rank to its own end: takes another client when one is lost, and waits for the runtime's
word, without which nothing is over. Standard library only, for it runs in supervisors."""

import math
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from gpusched.agent.containers import client, state
from gpusched.agent.containers.state import (
    ENDED,
    GONE,
    RUNNING,
    State,
)

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
    told = state.state(spec)
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
    if not state.was_made(spec):
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
        return state.attach(spec, log)
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
