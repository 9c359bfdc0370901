"""Run a cluster of django-q2, and end it once one of its processes has died.

A process that waits for a task, as a worker does nearly always, holds the lock of their queue (multiprocessing.Queue).
If it is killed then, the lock is never released: django-q2 starts another process in its place, which waits for ever.
So the whole cluster ends, and its supervisor (`up`, systemd, Kubernetes) starts it again."""

from typing import Any

from gpusched.agent.processes import children, start_of

WATCH_SECONDS = 0.2


class ProcessDied(Exception):
    """A process of the cluster died, and the others have been killed."""


def wait_for_cluster(cluster: Any) -> None:
    """Wait until the cluster, which has started, is stopped by a signal. Raises ProcessDied."""
    members: set[int] = set()
    while cluster.sentinel.is_alive():
        present = {pid for pid in children(cluster.sentinel.pid) if start_of(pid)}  # without zombies
        # The handler of SIGTERM stops the cluster in this thread, at any of these lines.
        if (died := members - present) and cluster.sentinel.is_alive():
            cluster.sentinel.kill()  # and the kernel all of its processes (forks_die_with_parent)
            cluster.sentinel.join()
            raise ProcessDied(f"process {', '.join(map(str, sorted(died)))} of this cluster died")
        members = present
        cluster.sentinel.join(WATCH_SECONDS)
