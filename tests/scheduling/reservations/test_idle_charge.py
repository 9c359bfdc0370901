"""The ledger of reservations: use of jobs and idle time are each moment of the reserved devices, once (A53, A73)."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodes.held_idle import HeldIdlePolicy
from nodes.models import Node
from scheduling.reservations import changes
from scheduling.reservations.idle_charge import idle_pieces
from scheduling.reservations.lifecycle import review
from tenants.billing import usage_report
from tenants.models import UsageEntry
from tests.factories import identity_for, make_node, run_cycle, submit
from tests.scheduling.reservations.booking import reserve

START = datetime(2026, 5, 1, tzinfo=UTC)


def seconds(entry: UsageEntry) -> float:
    return entry.gpus * (entry.ended_at - entry.started_at).total_seconds()


def ledger(reservation) -> tuple[float, float]:
    """Return the GPU-seconds of jobs and of idle reserved time, within the reservation."""
    entries = list(UsageEntry.objects.filter(tenant=reservation.tenant))
    idle = sum(seconds(entry) for entry in entries if entry.cause == "reserved")
    used = 0.0
    for entry in entries:
        if entry.cause != "reserved":
            start, end = max(entry.started_at, reservation.starts_at), min(entry.ended_at, reservation.ends_at)
            used += entry.gpus * max((end - start).total_seconds(), 0.0)
    return used, idle


def review_at(now: datetime) -> None:
    review(HeldIdlePolicy("off"), now)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    uses=st.lists(st.tuples(st.integers(-50, 150), st.integers(0, 60), st.sampled_from([1.0, 0.25, 0.5])), max_size=6)
)
def test_idle_pieces_and_uses_cover_each_moment_once(uses):
    """A53: with devices that are held whole, shared, or held for longer than the reservation."""
    first = START.timestamp()
    spans = [(first + begin, first + begin + length, part) for begin, length, part in uses]
    pieces = idle_pieces(START, START + timedelta(seconds=100), spans)
    for second in range(100):
        at = START + timedelta(seconds=second + 0.5)
        used = sum(part for began, ended, part in spans if began < at.timestamp() < ended)
        idle = [piece.gpus for piece in pieces if piece.started_at <= at < piece.ended_at]
        assert sum(idle) == pytest.approx(max(0.0, 1.0 - used))
        assert len(idle) <= 1


@pytest.mark.django_db(transaction=True)
class TestLedger:
    def test_unused_reservation_is_charged_until_its_release(self, user, tenant):
        """A73"""
        make_node(gpus=2)
        reservation = reserve(user, tenant, 0, 60, gpus=2)
        review_at(reservation.starts_at + timedelta(minutes=16))
        reservation.refresh_from_db()
        used, idle = ledger(reservation)
        assert used == 0.0
        assert idle == pytest.approx(2 * 16 * 60, abs=1e-4)
        assert {entry.user_id for entry in UsageEntry.objects.all()} == {user.pk}

    def test_idle_time_and_use_by_jobs_are_the_whole_reservation(self, user, tenant):
        """A53, A73: two jobs, one after the other, and idle time before, between and after them."""
        node = make_node(gpus=2)
        reservation = reserve(user, tenant, 0, 60, gpus=2)
        for _ in range(2):
            submit(user, tenant)
            run_cycle()
            [key] = node.start_all()
            review_at(timezone.now())
            node.end(key)
            review_at(timezone.now())
        review_at(reservation.starts_at + timedelta(minutes=30))
        review_at(reservation.ends_at + timedelta(seconds=5))
        used, idle = ledger(reservation)
        assert used > 0
        assert used + idle == pytest.approx(2 * 3600, abs=1e-4)
        assert not reservation.devices.filter(is_settled=False).exists()

    def test_job_that_runs_over_the_end_is_charged_once(self, user, tenant):
        """A job's use is known when it ends, so the rest is charged then."""
        node = make_node(gpus=1)
        reservation = reserve(user, tenant, 0, 60)
        submit(user, tenant)
        run_cycle()
        [key] = node.start_all()
        changes.shorten(reservation.pk, identity_for(user))
        review_at(timezone.now())
        assert reservation.devices.filter(is_settled=False).exists()
        node.end(key)
        review_at(timezone.now())
        reservation.refresh_from_db()
        used, idle = ledger(reservation)
        assert used + idle == pytest.approx((reservation.ends_at - reservation.starts_at).total_seconds(), abs=1e-4)
        assert not reservation.devices.filter(is_settled=False).exists()

    def test_review_charges_nothing_twice(self, user, tenant):
        make_node(gpus=1)
        reservation = reserve(user, tenant, 0, 60)
        for minutes in (5, 11, 11, 12, 20):
            review_at(reservation.starts_at + timedelta(minutes=minutes))
        assert ledger(reservation)[1] == pytest.approx(20 * 60, abs=1e-4)

    @pytest.mark.parametrize("settled_between", [True, False])
    def test_device_that_is_lost_and_returns_is_charged_on(self, user, tenant, settled_between):
        """The idle time before the loss and after the return has entries with different numbers."""
        node = make_node(gpus=1)
        reservation = reserve(user, tenant, 0, 120, lease=True)
        start = reservation.starts_at
        if settled_between:
            review_at(start + timedelta(minutes=11))
        Node.objects.filter(pk=node.id).update(state="lost")
        review_at(start + timedelta(minutes=12))
        Node.objects.filter(pk=node.id).update(state="online")
        review_at(start + timedelta(minutes=13))
        review_at(reservation.ends_at)
        reservation.refresh_from_db()
        assert reservation.state == "expired"
        assert ledger(reservation)[1] == pytest.approx(119 * 60, abs=1e-4)

    def test_soft_and_cancelled_reservations_cost_nothing(self, user, tenant):
        make_node(gpus=1)
        soft, planned = reserve(user, tenant, 0, 60, kind="soft"), reserve(user, tenant, 60, 60)
        changes.cancel(planned.pk, identity_for(user))
        review_at(soft.ends_at + timedelta(hours=2))
        assert not UsageEntry.objects.exists()

    def test_usage_report_has_idle_reserved_time_but_no_job_for_it(self, user, tenant):
        make_node(gpus=1)
        reservation = reserve(user, tenant, 0, 60)
        review_at(reservation.starts_at + timedelta(minutes=20))
        report = usage_report.report([tenant.pk], reservation.starts_at, reservation.ends_at, "user")
        assert (report.total["gpu_hours"], report.total["jobs"]) == (pytest.approx(1 / 3, abs=1e-3), 0)
        assert [row["key"] for row in report.rows] == [user.username]
