"""A cluster of django-q2 ends when it can no longer run tasks."""

import multiprocessing
import time

import pytest

from gpusched.lib.process import task_cluster


class Cluster:
    """A cluster that is one process, which waits until it is stopped."""

    def __init__(self):
        fork = multiprocessing.get_context("fork")
        self.stopping = fork.Event()
        self.sentinel = fork.Process(target=self.stopping.wait)
        self.sentinel.start()

    def stop(self):
        self.stopping.set()
        self.sentinel.join()


@pytest.fixture
def cluster():
    started = Cluster()
    yield started
    started.sentinel.kill()
    started.sentinel.join()


def set_clock_while_waiting(cluster, seconds, monkeypatch, clock_set_back=None):
    """Set the clock at the third of the waits, and stop the cluster at the sixth."""
    wait, waits = cluster.sentinel.join, []
    monkeypatch.setattr(task_cluster, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(task_cluster, "children", lambda pid: [])

    def join(timeout=None):
        waits.append(timeout)
        if len(waits) == 3:
            real = time.time
            monkeypatch.setattr(time, "time", lambda: real() + seconds)
        if len(waits) == 6:
            cluster.stopping.set()
            return wait()
        return wait(timeout)

    monkeypatch.setattr(cluster.sentinel, "join", join)
    task_cluster.wait_for_cluster(cluster, clock_set_back)


@pytest.mark.parametrize(("seconds", "steps"), [(-3, [3.0]), (-0.5, []), (3600, [])])
def test_step_back_is_passed_on(cluster, seconds, steps, monkeypatch):
    noticed: list[float] = []
    set_clock_while_waiting(cluster, seconds, monkeypatch, noticed.append)
    assert noticed == pytest.approx(steps, abs=0.1)


def test_cluster_ends_when_the_clock_is_set_back(cluster, monkeypatch):
    with pytest.raises(task_cluster.ClusterEnded, match=r"^the clock was set back by 86400 s$"):
        set_clock_while_waiting(cluster, -86_400, monkeypatch)
    assert not cluster.sentinel.is_alive()


@pytest.mark.parametrize("seconds", [-1, 86_400])
def test_cluster_runs_on_after_a_small_step_or_one_forward(cluster, seconds, monkeypatch):
    set_clock_while_waiting(cluster, seconds, monkeypatch)
    assert not cluster.sentinel.is_alive()
