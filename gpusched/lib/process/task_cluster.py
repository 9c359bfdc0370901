"""Run a cluster of django-q2, and end it once one of its processes has died or the clock was set back.

A process that waits for a task, as a worker does nearly always, holds the lock of their queue (multiprocessing.Queue).
If it is killed then, the lock is never released: django-q2 starts another process in its place, which waits for ever.
So the whole cluster ends, and its supervisor (`up`, systemd, Kubernetes) starts it again.

The process that starts due tasks and replaces others waits by the clock of the host (multiprocessing.Event). If that is
set back by an hour it waits for an hour, so the cluster ends then as well."""

import time
from collections.abc import Callable
from typing import Any

from gpusched.agent.processes import children, start_of

WATCH_SECONDS = 0.2
# Smaller steps, as those of NTP, delay the waits by no more than this.
CLOCK_STEP_SECONDS = 5.0
# Charges are exact to the second.
NOTICED_SECONDS = 1.0
# The clock is read again if this process was interrupted meanwhile.
_READ_SECONDS = 0.01


class ClusterEnded(Exception):
    """The cluster has ended and must start again."""


def wait_for_cluster(cluster: Any, clock_set_back: Callable[[float], None] | None = None) -> None:
    """Wait until the cluster, which has started, is stopped by a signal. Raises ClusterEnded, and what `clock_set_back`
    raises, which is called with the seconds of each step back."""
    ahead = _clock_ahead()
    members: set[int] = set()
    while cluster.sentinel.is_alive():
        present = {pid for pid in children(cluster.sentinel.pid) if start_of(pid)}  # without zombies
        # The handler of SIGTERM stops the cluster in this thread, at any of these lines.
        if (died := members - present) and cluster.sentinel.is_alive():
            cluster.sentinel.kill()  # and the kernel all of its processes (forks_die_with_parent)
            cluster.sentinel.join()
            raise ClusterEnded(f"process {', '.join(map(str, sorted(died)))} of this cluster died")
        members = present
        before, ahead = ahead, _clock_ahead()
        step = before - ahead
        if step > NOTICED_SECONDS and clock_set_back is not None:
            clock_set_back(step)
        if step > CLOCK_STEP_SECONDS:
            cluster.stop()
            raise ClusterEnded(f"the clock was set back by {step:.0f} s")
        cluster.sentinel.join(WATCH_SECONDS)


def _clock_ahead() -> float:
    """Return by how many seconds the clock is ahead of one that is never set."""
    while True:
        began, now = time.monotonic(), time.time()
        if time.monotonic() - began < _READ_SECONDS:
            return now - began
