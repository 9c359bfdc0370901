"""A job's way through the cluster as the server sees it: placed, started, ended, with everything given back."""

from datetime import timedelta

import pytest
from django.utils import timezone

from gpusched.protocol.agent_messages import Ended, Run, Started, Stop, Sync
from jobs.actions import job_actions
from jobs.models import Attempt, Job, JobEvent
from nodes.agents.sync import process
from nodes.models import Allocation, Assignment, Device, Node
from tenants.models import UsageEntry
from tests.factories import identity_for, make_node, now, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def state(job_id):
    return Job.objects.get(pk=job_id).state


def kinds(job_id):
    return [event.kind for event in JobEvent.objects.filter(job_id=job_id)]


def test_job_runs_and_completes(user, tenant):
    node = make_node(gpus=2)
    job_id = submit(user, tenant, gpu_count=2)
    run_cycle()
    assert state(job_id) == "scheduled"

    [key] = node.start_all()
    assert state(job_id) == "running"
    assert Device.objects.filter(held_whole=1).count() == 2

    answer = node.end(key)
    assert answer.acknowledged == [key]
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.exit_code, job.reason) == ("completed", 0, "exited")
    assert not Allocation.objects.exists()
    assert not Device.objects.exclude(held_whole=0, held_mb=0).exists()
    assert UsageEntry.objects.count() == 2
    assert kinds(job_id) == ["submitted", "scheduled", "started", "ended"]


def test_agent_gets_everything_to_run_a_rank(user, tenant):
    node = make_node(gpus=2)
    job_id = submit(user, tenant, gpu_count=1, command=["python", "t.py"], args=["--x"], environment={"LR": "1"})
    run_cycle()

    [order] = node.sync().assignments
    assert isinstance(order, Run)
    assert (order.spec.job_id, order.spec.attempt, order.spec.rank) == (job_id, 1, 0)
    assert order.spec.argv == ["python", "t.py", "--x"]
    assert order.spec.environment == {"LR": "1"}
    assert order.spec.device_uuids == [node.devices[0].uuid]


def test_assignment_is_resent_until_started_and_started_once(user, tenant):
    """A30: delivered ten times, started once; and a start told ten times counts once."""
    node = make_node()
    job_id = submit(user, tenant)
    run_cycle()
    orders = {order.key for _ in range(10) for order in node.sync().assignments}
    assert len(orders) == 1
    [key] = orders
    for _ in range(10):
        node.sync(Started(key=key, at=now(), pid=1), held=[key])
    assert Attempt.objects.filter(job_id=job_id).count() == 1
    assert kinds(job_id).count("started") == 1
    assert node.sync(held=[key]).assignments == []


def test_report_of_an_older_attempt_changes_nothing(user, tenant):
    """A30: fencing by attempt."""
    node = make_node()
    job_id = submit(user, tenant)
    run_cycle()
    [key] = node.start_all()
    job_actions.requeue(job_id, identity_for(user))
    node.end(key, exit_code=None, signal=15, reason="requeued")
    run_cycle()
    [second] = node.start_all()
    assert second.endswith(".2.0")

    node.sync(Ended(key=key, at=now(), reason="exited", exit_code=0), held=[second], running=[second])
    node.sync(Started(key=key, at=now(), pid=9), held=[second], running=[second])

    assert state(job_id) == "running"
    assert Allocation.objects.count() == 1


def started_beside_another(user, tenant):
    """Start a job on one of two nodes; return its node, the other one, the job and the key of its rank."""
    node, stranger = make_node(), make_node()
    job_id = submit(user, tenant)
    run_cycle()
    owner, other = (node, stranger) if node.sync().assignments else (stranger, node)
    [key] = owner.start_all()
    return owner, other, job_id, key


def test_node_cannot_report_for_another_node(user, tenant):
    owner, other, job_id, key = started_beside_another(user, tenant)
    other.sync(Ended(key=key, at=now(), reason="exited", exit_code=0))
    assert state(job_id) == "running"


def test_report_of_another_node_hides_none_of_the_same_batch(user, tenant):
    """Agents delete what is acknowledged."""
    owner, other, job_id, key = started_beside_another(user, tenant)
    end = Ended(key=key, at=now(), reason="exited", exit_code=0)
    message = Sync(seq=9, at=now(), boot_id="boot-1", held=[key], reports=[end])
    answers = process([(owner.id, message), (other.id, message)])
    assert [answer.acknowledged for answer in answers] == [[key], [key]]
    assert state(job_id) == "completed"


class TestCancel:
    """A06"""

    def test_pending_job_is_cancelled_at_once(self, user, tenant):
        job_id = submit(user, tenant)
        job_actions.cancel(job_id, identity_for(user))
        assert state(job_id) == "cancelled"
        run_cycle()
        assert state(job_id) == "cancelled"

    def test_running_job_is_cancelled_when_its_processes_are_gone(self, user, tenant):
        node = make_node(gpus=1)
        job_id = submit(user, tenant, gpu_count=1)
        run_cycle()
        [key] = node.start_all()
        waiting = submit(user, tenant, gpu_count=1)
        job_actions.cancel(job_id, identity_for(user))
        assert state(job_id) == "stopping"
        assert [(o.key, type(o)) for o in node.sync().assignments] == [(key, Stop)]

        run_cycle()
        assert state(waiting) == "pending", "the GPU is not offered while the process may live"

        node.end(key, exit_code=None, signal=15, reason="cancelled")
        job = Job.objects.get(pk=job_id)
        assert (job.state, job.reason) == ("cancelled", "cancelled")
        assert job.evidence["by"] == user.username
        run_cycle()
        assert state(waiting) == "scheduled"

    def test_cancelling_twice_changes_nothing(self, user, tenant):
        node = make_node()
        job_id = submit(user, tenant)
        run_cycle()
        [key] = node.start_all()
        for _ in range(2):
            job_actions.cancel(job_id, identity_for(user))
        node.end(key, exit_code=None, signal=9, reason="cancelled")
        assert "had already ended" in job_actions.cancel(job_id, identity_for(user))
        assert [kinds(job_id).count(kind) for kind in ("stopping", "ended")] == [1, 1]

    def test_unstarted_job_ends_without_a_start_time(self, user, tenant):
        node = make_node()
        job_id = submit(user, tenant)
        run_cycle()
        job_actions.cancel(job_id, identity_for(user))
        [order] = node.sync().assignments
        assert isinstance(order, Stop)
        node.end(order.key, exit_code=None, reason="cancelled")
        assert state(job_id) == "cancelled"
        assert UsageEntry.objects.get().started_at == UsageEntry.objects.get().ended_at

    def test_job_that_ends_well_before_the_stop_has_completed(self, user, tenant):
        node = make_node()
        job_id = submit(user, tenant)
        run_cycle()
        [key] = node.start_all()
        job_actions.cancel(job_id, identity_for(user))
        node.end(key, exit_code=0)
        assert state(job_id) == "completed"


class TestEnds:
    def test_failure_without_retries_fails_with_its_exit_code(self, user, tenant):
        node = make_node()
        job_id = submit(user, tenant)
        run_cycle()
        node.end(*node.start_all(), exit_code=3)
        job = Job.objects.get(pk=job_id)
        assert (job.state, job.exit_code) == ("failed", 3)

    def test_failure_with_retries_waits_and_runs_again(self, user, tenant):
        node = make_node()
        job_id = submit(user, tenant, max_retries=1)
        run_cycle()
        node.end(*node.start_all(), exit_code=3)
        job = Job.objects.get(pk=job_id)
        assert (job.state, job.reason, job.retries_used) == ("pending", "retry_backoff", 1)
        run_cycle()
        assert state(job_id) == "pending", "not before its back-off is over"
        Job.objects.filter(pk=job_id).update(eligible_at=now())
        run_cycle()
        node.end(*node.start_all(), exit_code=3)
        assert state(job_id) == "failed"

    def test_pause_before_a_retry_ignores_the_clock_of_the_web_host(self, user, tenant, monkeypatch):
        """With the clock an hour ahead, each retry waited an hour."""
        node = make_node()
        job_id = submit(user, tenant, max_retries=1)
        run_cycle()
        [key] = node.start_all()
        ahead = timezone.now() + timedelta(hours=1)
        with monkeypatch.context() as host:
            host.setattr(timezone, "now", lambda: ahead)
            node.end(key, exit_code=3)
        latest = ahead - timedelta(minutes=50)
        assert Job.objects.filter(pk=job_id, eligible_at__lt=latest).exists()
        assert JobEvent.objects.filter(job_id=job_id, kind="requeued", at__lt=latest).exists()

    def test_node_fault_requeues_without_using_a_retry(self, user, tenant):
        node = make_node()
        job_id = submit(user, tenant)
        queued_at = Job.objects.get(pk=job_id).submitted_at
        run_cycle()
        node.end(*node.start_all(), exit_code=None, reason="node_fault")
        job = Job.objects.get(pk=job_id)
        assert (job.state, job.retries_used, job.submitted_at) == ("pending", 0, queued_at)

    def test_job_without_requeue_fails_with_its_node(self, user, tenant):
        node = make_node()
        job_id = submit(user, tenant, requeue=False)
        run_cycle()
        node.end(*node.start_all(), exit_code=None, reason="node_rebooted")
        assert state(job_id) == "failed"

    def test_failing_rank_stops_the_gang_and_is_named(self, user, tenant):
        nodes = [make_node(gpus=4), make_node(gpus=4)]
        job_id = submit(user, tenant, gpu_count=8, gang_scheduling=True)
        run_cycle()
        keys = {node.start_all()[0]: node for node in nodes}
        (bad, bad_node), (good, good_node) = sorted(keys.items())
        bad_node.end(bad, exit_code=7)
        assert state(job_id) == "stopping"
        assert [type(order) for order in good_node.sync().assignments] == [Stop]
        assert Allocation.objects.count() == 4, "the failed rank's devices are free, the other's are not"

        good_node.end(good, exit_code=None, signal=15, reason="rank_failed")
        job = Job.objects.get(pk=job_id)
        assert (job.state, job.exit_code, job.evidence["rank"]) == ("failed", 7, 0)

    def test_end_without_a_start_report_counts_as_run(self, user, tenant):
        node = make_node()
        job_id = submit(user, tenant)
        run_cycle()
        [order] = node.sync().assignments
        began = now()
        node.sync(Ended(key=order.key, at=now(), reason="exited", exit_code=0, started_at=began))
        assert state(job_id) == "completed"
        assert kinds(job_id) == ["submitted", "scheduled", "started", "ended"]


def test_ledger_gpu_seconds_equal_those_of_the_attempts(user, tenant):
    node = make_node(gpus=4)
    job_id = submit(user, tenant, gpu_count=4)
    run_cycle()
    node.end(*node.start_all())
    attempt = Attempt.objects.get(job_id=job_id)
    assert attempt.started_at is not None and attempt.ended_at is not None
    charged = sum(e.gpus * (e.ended_at - e.started_at).total_seconds() for e in UsageEntry.objects.all())
    assert charged == pytest.approx(4 * (attempt.ended_at - attempt.started_at).total_seconds(), abs=1e-3)


def test_held_job_waits_until_it_is_released(user, tenant):
    make_node()
    job_id = submit(user, tenant)
    job_actions.hold(job_id, identity_for(user))
    run_cycle()
    assert state(job_id) == "held"
    job_actions.release(job_id, identity_for(user))
    run_cycle()
    assert state(job_id) == "scheduled"
    assert Assignment.objects.filter(job_id=job_id).exists()


def test_only_the_first_end_of_a_rank_counts(user, tenant):
    """A30: the same rank reported again with another end changes nothing."""
    node = make_node(gpus=4)
    job_id = submit(user, tenant, gpu_count=1)
    run_cycle()
    [key] = node.start_all()
    node.end(key, exit_code=0)
    node.end(key, exit_code=9, reason="exited")
    attempt = Attempt.objects.get(job_id=job_id)
    assert (state(job_id), attempt.exit_code, attempt.outcomes["0"]["exit_code"]) == ("completed", 0, 0)
    assert UsageEntry.objects.filter(job_id=job_id).count() == 1


def test_rank_that_its_agent_has_without_a_process_has_ended(user, tenant):
    """After a power cut its directory may exist without a process and without an end."""
    node = make_node(gpus=4)
    job_id = submit(user, tenant, gpu_count=1)
    run_cycle()
    node.start_all()
    node.sync(running=[])
    assert state(job_id) == "running"
    Assignment.objects.update(missing_since=timezone.now() - timedelta(seconds=16))
    node.sync(running=[])
    assert state(job_id) == "pending"


def test_no_rank_of_a_gang_starts_while_one_of_its_nodes_is_silent(user, tenant):
    """A11: together, or not at all."""
    nodes = [make_node(gpus=4), make_node(gpus=4)]
    submit(user, tenant, gpu_count=8, gang_scheduling=True)
    run_cycle()
    Node.objects.filter(pk=nodes[1].id).update(last_seen_at=timezone.now() - timedelta(seconds=12))
    assert nodes[0].sync().assignments == []
    assert len(nodes[1].sync().assignments) == 1
    assert len(nodes[0].sync().assignments) == 1


class TestLargeSpecs:
    """A script may have 6 MiB as JSON, and a message to an agent 16: what does not fit comes with the next answers."""

    LARGE = {"script": "#!/bin/sh\n# " + "\x01" * 1_000_000, "command": []}

    def test_large_spec_is_sent_beside_the_stop_of_a_job_in_its_grace_period(self, user, tenant):
        node = make_node(gpus=2)
        stopping = submit(user, tenant, grace_seconds=3600)
        run_cycle()
        node.start_all()
        job_actions.cancel(stopping, identity_for(user))
        large = submit(user, tenant, **self.LARGE)
        run_cycle()
        orders = node.sync().assignments
        assert [(type(order), order.key) for order in orders] == [(Stop, f"{stopping}.1.0"), (Run, f"{large}.1.0")]

    def test_several_large_specs_are_sent_one_at_a_time(self, user, tenant):
        node = make_node(gpus=3)
        jobs = [submit(user, tenant, **self.LARGE) for _ in range(3)]
        run_cycle()
        assert [node.start_all() for _ in jobs] == [[f"{job}.1.0"] for job in jobs]
