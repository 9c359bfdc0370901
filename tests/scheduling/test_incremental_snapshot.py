"""A snapshot that reads only what has changed equals one that reads everything."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from random import Random

import pytest
from django.db import connection, transaction
from django.utils import timezone

from gpusched.lib import cache
from gpusched.protocol.arrays import ArrayRequest
from jobs.actions import job_actions
from jobs.models import Attempt, Job
from nodes.models import Device, ListenerLease, Node
from nodes.ranks.recovery import mark_silent_nodes_lost
from scheduling.cycle import eras, running_jobs, snapshot
from tests.factories import identity_for, make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def loaded():
    read, basis = snapshot.load(is_whole=True)
    return basis.waiting, {job.job_id: job for job in read.running}, read.nodes, read.claims


def assert_is_whole():
    """Compare a load that reuses earlier rows with one that reads all of them, at the same moment."""
    with transaction.atomic():
        incremental = loaded()
        cache.clear_all()
        assert incremental == loaded()


class Writer:
    """Changes the database at random, through the services and behind their back."""

    def __init__(self, user, tenant, seed):
        self.user, self.tenant, self.identity, self.rng = user, tenant, identity_for(user), Random(seed)
        self.agents = [make_node(gpus=4) for _ in range(2)]

    def step(self):
        self.rng.choice([self.submit, self.submit, self.array, run_cycle, run_cycle, self.start, self.end, self.act,
                         self.checkpoint, self.reprioritize, self.close, self.lose_node, self.heat])()  # fmt: skip

    def submit(self):
        shape = self.rng.choice([{"gpu_count": 1}, {"gpu_count": 8, "gang_scheduling": True}, {"gpu_count": 2}])
        submit(self.user, self.tenant, **shape, max_runtime_minutes=self.rng.choice([None, 60]))

    def array(self):
        submit(self.user, self.tenant, array=ArrayRequest(count=6, max_parallel=2))

    def start(self):
        self.rng.choice(self.agents).start_all()

    def end(self):
        agent = self.rng.choice(self.agents)
        if agent.held:
            agent.end(self.rng.choice(agent.held), exit_code=self.rng.choice([0, 1]))

    def act(self):
        action, state = self.rng.choice(
            [(job_actions.cancel, ("pending", "running")), (job_actions.hold, ("pending",)),
             (job_actions.release, ("held",)), (job_actions.requeue, ("running",))]
        )  # fmt: skip
        ids = list(Job.objects.filter(state__in=state, array_count=None).order_by("id").values_list("id", flat=True))
        if ids:
            action(self.rng.choice(ids), self.identity)

    def checkpoint(self):
        Attempt.objects.filter(ended_at=None).update(saved_at=timezone.now())

    def reprioritize(self):
        Job.objects.filter(state__in=("pending", "running"), array_count=None).update(priority=self.rng.randint(1, 999))

    def lose_node(self):
        """Lose a node with its ranks. A message of its agent brings it back."""
        now = timezone.now()
        ListenerLease.objects.update_or_create(id=1, defaults={"since": now - timedelta(hours=1), "seen_at": now})
        Node.objects.filter(pk=self.agents[1].id).update(last_seen_at=now - timedelta(minutes=5))
        mark_silent_nodes_lost()
        assert Node.objects.get(pk=self.agents[1].id).state == "lost"
        assert_is_whole()
        self.agents[1].sync()

    def heat(self):
        device = self.rng.choice(Device.objects.order_by("id"))
        device.health, device.nvlink_island = self.rng.choice(["ok", "hot", "quarantined"]), self.rng.choice([None, 1])
        device.save(update_fields=["health", "nvlink_island"])

    def close(self):
        Node.objects.filter(pk=self.agents[0].id).update(intent=self.rng.choice(["open", "cordoned"]))


@pytest.mark.parametrize("seed", range(3))
def test_incremental_snapshot_equals_a_whole_one_after_random_writes(user, tenant, seed):
    writer = Writer(user, tenant, seed)
    for _ in range(20):
        loaded()
        writer.step()
        assert_is_whole()


def test_write_that_commits_after_a_later_one_is_seen(user, tenant):
    """Versions are compared for equality, so the order of commits plays no part."""
    node = make_node()
    early, late = submit(user, tenant), submit(user, tenant)
    run_cycle()
    node.start_all()
    submit(user, tenant, gpu_count=8)
    has_written, may_commit = threading.Event(), threading.Event()

    def write_early():
        with transaction.atomic():
            Job.objects.filter(pk=early).update(priority=111)
            has_written.set()
            may_commit.wait(30)
        connection.close()

    thread = threading.Thread(target=write_early)
    thread.start()
    assert has_written.wait(30)
    Job.objects.filter(pk=late).update(priority=222)
    _, running, *_ = loaded()
    assert (running[early].priority, running[late].priority) == (500, 222)
    may_commit.set()
    thread.join()
    _, running, *_ = loaded()
    assert (running[early].priority, running[late].priority) == (111, 222)
    assert_is_whole()


@pytest.mark.parametrize("number", [1, 5, 200])
def test_long_queue_reads_what_has_changed(user, tenant, number):
    """Whether the changed jobs are in few or in most of the blocks of ids."""
    jobs = [
        Job(tenant=tenant, user=user, name="job", priority=500, gpu_count=1, payload={}, submitted_at=timezone.now())
        for _ in range(1000)
    ]
    ids = sorted(job.id for job in Job.objects.bulk_create(jobs))
    rng = Random(number)
    for _ in range(3):
        waiting, *_ = loaded()
        changed = rng.sample(sorted(waiting), number)
        Job.objects.filter(id__in=changed[::2]).update(priority=rng.randint(1, 999))
        Job.objects.filter(id__in=changed[1::2]).update(state="held")
        after, *_ = loaded()
        assert after.keys() == waiting.keys() - set(changed[1::2]) <= set(ids)
        assert {id for id in after if after[id] is not waiting[id]} == set(changed[::2])
        assert_is_whole()


def test_everything_is_read_anew_on_another_server(user, tenant, monkeypatch):
    """A server that takes over may give a known version to a row with other contents."""
    make_node()
    submit(user, tenant)
    run_cycle()
    submit(user, tenant, gpu_count=8)
    waiting, running, *_ = loaded()
    same_waiting, same_running, *_ = loaded()
    assert all(same_waiting[id] is waiting[id] for id in waiting) and waiting
    assert all(same_running[id] is running[id] for id in running) and running
    monkeypatch.setattr(snapshot, "era_of", lambda server: ("another server", 0))
    new_waiting, new_running, *_ = loaded()
    assert (new_waiting, new_running) == (waiting, running)
    assert not any(new_waiting[id] is waiting[id] for id in waiting)
    assert not any(new_running[id] is running[id] for id in running)


def test_era_ends_after_minutes(monkeypatch):
    monkeypatch.setattr("scheduling.cycle.eras.time.monotonic", lambda: 10.0)
    first = eras.current_era()
    assert eras.current_era() == first
    monkeypatch.setattr("scheduling.cycle.eras.time.monotonic", lambda: 310.0)
    assert eras.current_era() != first


def test_job_that_starts_while_a_transaction_reads_counts_once(user, tenant, monkeypatch):
    """Such as of a request with an Idempotency-Key, whose queries see different moments."""
    make_node(gpus=1)
    job_id = submit(user, tenant, gpu_count=1)
    read_running = running_jobs.running

    def read_after_a_cycle(era):
        monkeypatch.undo()
        with ThreadPoolExecutor(1) as other:
            other.submit(run_cycle).result()
            other.submit(lambda: connection.close()).result()
        return read_running(era)

    monkeypatch.setattr("scheduling.cycle.snapshot.running", read_after_a_cycle)
    with transaction.atomic():
        read, _ = snapshot.load(is_whole=True)
    assert (read.jobs, [job.job_id for job in read.running]) == ((), [job_id])
