"""The life of reservations with a clock that tests pass in: begin, no-show, notice, end, replacement (A72, A73)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from gpusched.lib.api.problems import Problem
from gpusched.protocol import reasons
from jobs.actions import job_actions
from jobs.models import Job, JobEvent
from nodes.held_idle import HeldIdlePolicy
from nodes.models import Allocation, Device, ListenerLease, Node
from notifications.models import Notice
from scheduling.reservations import changes
from scheduling.reservations.lifecycle import review
from scheduling.reservations.tables import Reservation, ReservationUse
from scheduling.worker import tasks
from tests.factories import identity_for, make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.scheduling.reservations.booking import device_ids, reserve

pytestmark = pytest.mark.django_db(transaction=True)


class Clock:
    """Minutes from the start of the test."""

    def __init__(self) -> None:
        self.start = timezone.now()

    def review(self, minutes: float, policy: str = "monitor") -> None:
        review(HeldIdlePolicy(policy, minutes=60.0, grace_minutes=20.0), self.start + timedelta(minutes=minutes))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def state(reservation: Reservation) -> str:
    reservation.refresh_from_db()
    return reservation.state


def notices() -> list[str]:
    return [notice.data["text"] for notice in Notice.objects.order_by("id")]


def start_inside(user, tenant, node, reservation, **fields) -> int:
    """Start a job in the reservation."""
    job_id = submit(user, tenant, **fields)
    run_cycle()
    if not ReservationUse.objects.filter(job_id=job_id).exists():
        ReservationUse.objects.create(reservation=reservation, job_id=job_id, attempt=1)
        Reservation.objects.filter(pk=reservation.pk).update(claimed_at=timezone.now())
    node.start_all()
    return job_id


def test_reservation_begins_at_its_start_and_its_owner_is_notified(user, tenant, clock):
    make_node(gpus=1)
    reservation = reserve(user, tenant, 60, 60)
    clock.review(59)
    assert (state(reservation), notices()) == ("planned", [])
    clock.review(60.1)
    assert state(reservation) == "active"
    [notice] = Notice.objects.all()
    assert (notice.kind, notice.user_id, notice.subject_id) == ("reservation_starting", user.pk, reservation.pk)


@pytest.mark.parametrize("hours", [-1, 1])
def test_reservation_begins_and_ends_by_the_clock_of_the_database(user, tenant, clock, monkeypatch, hours):
    """A web host whose clock was an hour behind booked, and charged, a time that was over."""
    make_node(gpus=1)
    monkeypatch.setattr(timezone, "now", lambda: datetime.now(UTC) + timedelta(hours=hours))
    reservation = reserve(user, tenant, 0, 20)
    assert 0 <= (reservation.starts_at - clock.start).total_seconds() < 60
    clock.review(1)
    assert state(reservation) == "active"
    assert changes.shorten(reservation.pk, identity_for(user)).ends_at < clock.start + timedelta(minutes=1)


def test_unclaimed_reservation_is_released_after_15_minutes_and_counted(user, tenant, clock):
    """A73"""
    make_node(gpus=1)
    reservation = reserve(user, tenant, 60, 60)
    clock.review(60.1)
    clock.review(74.9)
    assert state(reservation) == "active"
    clock.review(75.1)
    assert (state(reservation), reservation.is_no_show) == ("released", True)
    assert reservation.ends_at == clock.start + timedelta(minutes=75.1)
    assert "was released: no job started in it within 15 minutes" in notices()[-1]
    assert reserve(user, tenant, 80, 30)


def test_reservation_is_not_lost_because_the_server_did_not_run(user, tenant, clock):
    make_node(gpus=1)
    reservation = reserve(user, tenant, 60, 240)
    back = clock.start + timedelta(minutes=150)
    ListenerLease.objects.create(since=back, seen_at=back)
    clock.review(150)
    clock.review(164)
    assert (state(reservation), reservation.is_no_show) == ("active", False)
    clock.review(166)
    assert (state(reservation), reservation.is_no_show) == ("released", True)


def test_user_with_frequent_no_shows_may_book_soft_reservations_only(user, tenant, clock):
    """A73"""
    make_node(gpus=1)
    for n in range(3):
        assert reserve(user, tenant, 60 + 60 * n, 60)
    for n in range(3):
        clock.review(61 + 60 * n)
        clock.review(76 + 60 * n)
    assert Reservation.objects.filter(is_no_show=True).count() == 3
    with pytest.raises(Problem) as refused:
        reserve(user, tenant, 600)
    assert (refused.value.status, refused.value.code) == (403, "too_many_no_shows")
    assert reserve(user, tenant, 600, kind="soft")
    assert reserve(make_member(tenant), tenant, 600)
    assert reserve(make_user(admin=True), tenant, 700)
    Reservation.objects.filter(is_no_show=True).update(ended_at=timezone.now() - timedelta(days=31))
    assert reserve(user, tenant, 800)


def test_claimed_reservation_lasts_until_its_end(user, tenant, clock):
    node = make_node(gpus=1)
    reservation = reserve(user, tenant, 0, 60)
    start_inside(user, tenant, node, reservation)
    clock.review(59)
    assert state(reservation) == "active"
    clock.review(60.1)
    assert state(reservation) == "expired"


def test_jobs_are_warned_and_requeued_at_the_end_of_their_reservation(user, tenant, clock):
    """Stopped so early that the grace period is over at the end."""
    node = make_node(gpus=1)
    reservation = reserve(user, tenant, 0, 60)
    job_id = start_inside(user, tenant, node, reservation, grace_seconds=60)
    clock.review(49)
    assert Job.objects.get(pk=job_id).reason == ""
    clock.review(50.1)
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.reason, job.evidence["reservation"]) == ("running", "reservation_ends", reservation.pk)
    assert reasons.sentence(job.reason, job.evidence).endswith("; then it is stopped and returns to the queue")
    clock.review(58.9)
    assert Job.objects.get(pk=job_id).state == "running"
    clock.review(59.1)
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.stop_evidence["by"]) == ("stopping", f"the end of reservation {reservation.pk}")
    node.end(*node.held, reason="requeued", exit_code=None)
    assert Job.objects.get(pk=job_id).state == "pending"
    assert JobEvent.objects.filter(job_id=job_id, kind="reservation_ends").exists()


def test_job_that_starts_after_the_warning_is_warned_once_too(user, tenant, clock):
    node = make_node(gpus=2)
    reservation = reserve(user, tenant, 0, 60, gpus=2)
    first = start_inside(user, tenant, node, reservation)
    clock.review(51)
    second = start_inside(user, tenant, node, reservation)
    Job.objects.filter(pk=second).update(started_at=clock.start + timedelta(minutes=52))
    for minutes in (53, 54):
        clock.review(minutes)
    warned = JobEvent.objects.filter(kind="reservation_ends").values_list("job_id", flat=True)
    assert sorted(warned) == [first, second]
    assert Job.objects.get(pk=second).reason == "reservation_ends"


def test_job_that_may_not_be_requeued_ends_with_its_reservation(user, tenant, clock):
    node = make_node(gpus=1)
    reservation = reserve(user, tenant, 0, 60)
    job_id = start_inside(user, tenant, node, reservation, requeue=False)
    clock.review(51)
    notice = Job.objects.get(pk=job_id)
    assert reasons.sentence(notice.reason, notice.evidence).endswith("; then it is stopped and ends as preempted")
    clock.review(59.9)
    node.end(*node.held, reason="preempted", exit_code=None)
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.reason) == ("preempted", "preempted")


def test_renewed_reservation_withdraws_its_warning(user, tenant, clock):
    node = make_node(gpus=1)
    reservation = reserve(user, tenant, 0, 60)
    job_id = start_inside(user, tenant, node, reservation)
    clock.review(51)
    changes.renew(reservation.pk, 7200, identity_for(user))
    assert Job.objects.get(pk=job_id).reason == ""
    clock.review(61)
    assert state(reservation) == "active"


def test_job_that_insists_on_an_ended_reservation_waits_if_it_has_never_started(user, tenant, clock):
    """It waits whether the reservation was cancelled or is over, and with others in the cluster or alone."""
    make_node(gpus=2)
    cancelled, over = reserve(user, tenant, 60, 60), reserve(user, tenant, 60, 60)
    job_ids = [submit(user, tenant, reservation=reservation.pk) for reservation in (cancelled, over)]
    changes.cancel(cancelled.pk, identity_for(user))
    clock.review(130)
    run_cycle()
    for job_id, reservation in zip(job_ids, (cancelled, over), strict=True):
        job = Job.objects.get(pk=job_id)
        assert (job.state, job.reason) == ("pending", "reservation_ended")
        assert job.evidence == {"reservation": reservation.pk}


def test_job_may_start_anywhere_after_it_ran_in_its_reservation(user, tenant, clock):
    node = make_node(gpus=1)
    reservation = reserve(user, tenant, 0, 60)
    job_id = submit(user, tenant, reservation=reservation.pk)
    run_cycle()
    node.start_all()
    changes.shorten(reservation.pk, identity_for(user))
    assert Job.objects.get(pk=job_id).reservation is None


def test_job_that_insists_on_a_soft_reservation_may_start_anywhere_when_that_ends(user, tenant):
    make_node(gpus=1)
    reservation = reserve(user, tenant, 60, 60, kind="soft")
    job_id = submit(user, tenant, reservation=reservation.pk)
    changes.cancel(reservation.pk, identity_for(user))
    run_cycle()
    assert Job.objects.get(pk=job_id).state == "scheduled"


def test_job_of_others_that_runs_over_the_start_is_requeued(user, tenant, clock):
    """A72: it started late, for example."""
    node = make_node(gpus=1)
    other = make_tenant()
    job_id = submit(make_member(other), other, max_runtime_minutes=30)
    run_cycle()
    node.start_all()
    reservation = reserve(user, tenant, 40, 60)
    clock.review(39)
    assert Job.objects.get(pk=job_id).state == "running"
    clock.review(39.6)
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.stop_evidence["by"]) == ("stopping", f"the start of reservation {reservation.pk}")


def test_lost_node_is_replaced(user, tenant, clock):
    """A73"""
    first, second = make_node(gpus=1), make_node(gpus=1)
    reservation = reserve(user, tenant, 60, 60)
    [lost] = device_ids(reservation)
    node_id = Device.objects.get(pk=lost).node_id
    Node.objects.filter(pk=node_id).update(state="lost")
    clock.review(1)
    [device] = reservation.devices.filter(is_live=True)
    assert {node_id, device.node_id} == {first.id, second.id}
    assert (state(reservation), reservation.problem, notices()) == ("planned", "", [])


def test_owner_is_notified_at_once_if_a_lost_node_cannot_be_replaced(user, tenant, clock):
    """A73"""
    node = make_node(gpus=2)
    reservation = reserve(user, tenant, 0, 60, gpus=2)
    Node.objects.filter(pk=node.id).update(state="lost")
    clock.review(1)
    clock.review(2)
    reservation.refresh_from_db()
    assert reservation.problem.startswith(f"lacks 2 of its 2 GPUs: {node.name} went out of service")
    [notice] = [notice for notice in Notice.objects.all() if "lacks 2 of its 2 GPUs" in notice.data["text"]]
    assert notice.kind == "reservation_lost_gpus"
    clock.review(20)
    assert (state(reservation), reservation.is_no_show) == ("released", False)


def test_node_that_returns_serves_the_reservation_again(user, tenant, clock):
    node = make_node(gpus=1)
    reservation = reserve(user, tenant, 60, 60)
    Node.objects.filter(pk=node.id).update(state="lost")
    clock.review(1)
    Node.objects.filter(pk=node.id).update(state="online")
    clock.review(2)
    reservation.refresh_from_db()
    assert (reservation.problem, reservation.devices.filter(is_live=True).count()) == ("", 1)


@pytest.mark.parametrize("health", ["lost", "quarantined", "foreign", "degraded"])
def test_reservation_of_one_node_moves_to_another_that_has_room_for_all(user, tenant, clock, health):
    """A73"""
    make_node(gpus=2)
    large = make_node(gpus=4)
    reservation = reserve(user, tenant, 60, 60, gpus=2)
    Device.objects.filter(pk=min(device_ids(reservation))).update(health=health)
    clock.review(1)
    assert {device.node_id for device in reservation.devices.filter(is_live=True)} == {large.id}


def test_idle_lease_is_released_after_its_owner_was_notified(user, tenant, clock):
    make_node(gpus=1)
    lease = reserve(user, tenant, 0, 600, lease=True)
    clock.review(59, "enforce")
    assert not [text for text in notices() if "idle" in text]
    clock.review(61, "enforce")
    assert "has been idle since" in notices()[-1]
    clock.review(80, "enforce")
    assert state(lease) == "active"
    clock.review(82, "enforce")
    assert (state(lease), lease.is_no_show) == ("released", False)


def test_idle_lease_is_released_after_retention_has_deleted_attempts(user, tenant, clock, settings):
    settings.ENV = replace(settings.ENV, job_detail_retention_days="1")
    node = make_node(gpus=1)
    lease = reserve(user, tenant, 0, 44_000, lease=True)
    job_id = start_inside(user, tenant, node, lease, gpu_count=1)
    job_actions.requeue(job_id, identity_for(user))
    node.end(f"{job_id}.1.0", reason="requeued")
    run_cycle()
    node.end(*node.start_all())
    assert ReservationUse.objects.filter(job_id=job_id).count() == 2
    Job.objects.filter(pk=job_id).update(ended_at=timezone.now() - timedelta(days=2))
    assert tasks.drop_old_jobs() == 1
    for minutes in (61, 82):
        clock.review(minutes, "enforce")
    assert state(lease) == "released"


def test_idle_lease_stays_under_the_policy_monitor(user, tenant, clock):
    make_node(gpus=1)
    lease = reserve(user, tenant, 0, 600, lease=True)
    clock.review(61)
    clock.review(599)
    assert state(lease) == "active"
    assert "has been idle since" in notices()[-1]


@pytest.mark.parametrize(
    ("reviews", "announced"),
    [
        pytest.param([(61, "monitor"), (100, "monitor"), (200, "enforce")], [False, True], id="becomes_enforce"),
        pytest.param([(61, "enforce"), (70, "off"), (200, "enforce")], [True, True], id="off_after_a_warning"),
    ],
)
def test_idle_lease_is_not_released_without_a_warning_under_the_present_policy(user, tenant, clock, reviews, announced):
    make_node(gpus=1)
    lease = reserve(user, tenant, 0, 600, lease=True)
    for minutes, policy in [*reviews, (219, "enforce")]:
        clock.review(minutes, policy)
        assert state(lease) == "active"
    assert ["released at" in text for text in notices() if "idle" in text] == announced
    clock.review(221, "enforce")
    assert state(lease) == "released"


def test_reservations_of_an_archived_tenant_are_cancelled(user, tenant, clock):
    make_node(gpus=1)
    reservation = reserve(user, tenant, 60, 60)
    type(tenant).objects.filter(pk=tenant.pk).update(archived_at=timezone.now())
    clock.review(1)
    assert state(reservation) == "cancelled"


def test_jobs_of_a_shortened_reservation_keep_running(user, tenant, clock):
    node = make_node(gpus=1)
    reservation = reserve(user, tenant, 0, 60)
    job_id = start_inside(user, tenant, node, reservation)
    changes.shorten(reservation.pk, identity_for(user))
    clock.review(61)
    assert Job.objects.get(pk=job_id).state == "running"
    assert Allocation.objects.exists()
