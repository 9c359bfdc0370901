"""Cycles with reservations: what may start on reserved devices, and until when (A72)."""

from unittest.mock import patch

import pytest

from gpusched.lib.api.problems import Problem
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.rest.time_limits import Extension
from jobs.models import Job
from nodes.held_idle import HeldIdlePolicy
from nodes.models import Allocation, Node
from scheduling.cycle import snapshot
from scheduling.reservations import bookings
from scheduling.reservations.lifecycle import review
from scheduling.reservations.tables import ReservationUse
from scheduling.whatif.extend import extend
from tests.factories import identity_for, make_member, make_node, make_tenant, run_cycle, submit
from tests.scheduling.reservations.booking import device_ids, reserve

pytestmark = pytest.mark.django_db(transaction=True)


_IDLE = HeldIdlePolicy("monitor", minutes=60.0, grace_minutes=20.0)


@pytest.fixture
def other():
    """Return another tenant and its member."""
    tenant = make_tenant()
    return tenant, make_member(tenant)


def state(job_id: int) -> str:
    return Job.objects.get(pk=job_id).state


def test_snapshot_has_open_reservations_as_bookings(user, tenant):
    make_node(gpus=2)
    hard, soft = reserve(user, tenant, gpus=2, users=[user.username]), reserve(user, tenant, kind="soft")
    submit(user, tenant, reservation=hard.pk)
    loaded, basis = snapshot.load()
    assert [(booking.id, booking.is_hard) for booking in loaded.bookings] == [(hard.pk, True), (soft.pk, False)]
    [rank] = loaded.bookings[0].ranks
    assert {hold.device_id for hold in rank.holds} == device_ids(hard)
    assert (rank.cpu_milli, rank.memory_mb, set(loaded.bookings[0].user_ids)) == (64_000, 512_000, {user.pk})
    assert loaded.bookings[0].starts_at == pytest.approx(hard.starts_at.timestamp())
    [job] = loaded.jobs
    assert job.booking_id == hard.pk


def test_commit_refuses_a_placement_on_a_device_that_was_reserved_under_the_plan(user, tenant, other):
    """A72: the plan did not know of the reservation."""
    make_node(gpus=1)
    reserve(user, tenant, 60, 60)
    other_tenant, other_user = other
    job_id = submit(other_user, other_tenant)
    with patch.object(snapshot, "load_bookings", return_value=()):
        run_cycle()
    assert state(job_id) == "pending"
    assert not Allocation.objects.exists()


@pytest.mark.parametrize("start", [0, 60])
@pytest.mark.parametrize("request_fields", [{"cpu_cores": 20}, {"memory_mb": 150_000}])
def test_commit_starts_only_what_leaves_room_for_reserved_cpu_and_memory(user, tenant, other, start, request_fields):
    """A72: each of two jobs without GPUs fits beside the reservation of half a node that the plan did not know."""
    make_node(gpus=2)
    reserve(user, tenant, start, 60)
    other_tenant, other_user = other
    job_ids = [submit(other_user, other_tenant, gpu_count=0, **request_fields) for _ in range(2)]
    with patch.object(snapshot, "load_bookings", return_value=()):
        run_cycle()
    assert sorted(map(state, job_ids)) == ["pending", "scheduled"]
    run_cycle()
    assert sorted(map(state, job_ids)) == ["pending", "scheduled"]


def test_commit_starts_what_ends_before_a_reservation_that_the_plan_did_not_know(user, tenant, other):
    make_node(gpus=2)
    reserve(user, tenant, 60, 60)
    other_tenant, other_user = other
    job_id = submit(other_user, other_tenant, gpu_count=0, cpu_cores=60, max_runtime_minutes=10)
    with patch.object(snapshot, "load_bookings", return_value=()):
        run_cycle()
    assert state(job_id) == "scheduled"


@pytest.mark.parametrize("fields", [{"reservation": 10**9}, {"gpu_count": 2}])
def test_submit_refuses_a_reservation_that_the_job_cannot_use(user, tenant, fields):
    make_node(gpus=4)
    reservation = reserve(user, tenant, 60, 60)
    with pytest.raises(Problem) as refused:
        submit(user, tenant, **{"reservation": reservation.pk, **fields})
    assert refused.value.status == 400


def test_submit_refuses_a_reservation_of_others(user, tenant, other):
    make_node(gpus=4)
    other_tenant, other_user = other
    for_one = reserve(user, tenant, 60, 60, users=[user.username])
    for submitter, of in ((other_user, other_tenant), (make_member(tenant), tenant)):
        with pytest.raises(Problem) as refused:
            submit(submitter, of, reservation=for_one.pk)
        assert refused.value.errors[0].field == "reservation"


@pytest.mark.parametrize("start", [60, 100_000.37])
def test_longer_time_limit_may_not_cross_into_a_reservation(user, tenant, other, start):
    """A60, A72: also not if an admin forces it past a promise."""
    node = make_node(gpus=1)
    other_tenant, other_user = other
    job_id = submit(other_user, other_tenant, max_runtime_minutes=start - 30)
    run_cycle()
    node.start_all()
    reserve(user, tenant, start, 60)
    identity = identity_for(other_user)
    with pytest.raises(Problem) as refused:
        extend(job_id, Extension(max_runtime_minutes=start), identity, is_dry_run=False)
    assert (refused.value.status, refused.value.code) == (409, "reserved")
    assert "a reservation of another tenant has its GPUs from" in refused.value.detail
    longest = float(refused.value.detail.split("at most ")[1].split()[0])
    assert start - 1 < longest < start - 0.4
    assert extend(job_id, Extension(max_runtime_minutes=longest), identity, is_dry_run=False)["status"] == "changed"


def test_longer_limit_of_an_array_counts_elements_that_start_meanwhile(user, tenant, other):
    """A72: they start while the delays of other jobs are computed."""
    make_node(gpus=1)
    other_tenant, other_user = other
    array = submit(other_user, other_tenant, array=ArrayRequest(count=2), max_runtime_minutes=30)
    reserve(user, tenant, 60, 60)

    def start(*_):
        run_cycle()
        return None, []

    with patch("scheduling.whatif.extend._consequences", start), pytest.raises(Problem) as refused:
        extend(array, Extension(max_runtime_minutes=90), identity_for(other_user), is_dry_run=False)
    assert (refused.value.status, refused.value.code) == (409, "reserved")
    assert [job.max_runtime_seconds for job in Job.objects.filter(array_id=array)] == [1800]


def test_reservations_cost_no_query_per_job(user, tenant, django_assert_max_num_queries):
    make_node(gpus=8)
    for minutes in range(60, 600, 60):
        reserve(user, tenant, minutes, 60)
    with django_assert_max_num_queries(1):
        assert len(bookings.load_bookings()) == 9


def test_job_of_others_that_could_outlive_into_a_reservation_does_not_start(user, tenant, other):
    """A72"""
    make_node(gpus=1)
    reserve(user, tenant, 60, 60)
    other_tenant, other_user = other
    endless, long, short = (submit(other_user, other_tenant, max_runtime_minutes=minutes) for minutes in (None, 60, 59))
    run_cycle()
    assert [state(job_id) for job_id in (endless, long, short)] == ["pending", "pending", "scheduled"]


def test_job_of_the_owner_starts_in_the_active_reservation_first(user, tenant):
    node = make_node(gpus=2)
    reservation = reserve(user, tenant, 0, 60)
    job_id = submit(user, tenant)
    run_cycle()
    [use] = ReservationUse.objects.all()
    assert (use.reservation_id, use.job_id, use.attempt) == (reservation.pk, job_id, 1)
    reservation.refresh_from_db()
    assert reservation.claimed_at is not None
    assert set(Allocation.objects.values_list("device_id", flat=True)) == device_ids(reservation)
    node.start_all()
    submit(user, tenant)
    [running] = snapshot.load()[0].running
    assert running.booking_id == reservation.pk
    assert running.ends_by == pytest.approx(reservation.ends_at.timestamp())


def test_job_that_insists_waits_for_the_start_of_its_reservation(user, tenant):
    make_node(gpus=2)
    reservation = reserve(user, tenant, 60, 60)
    job_id = submit(user, tenant, reservation=reservation.pk, max_runtime_minutes=1)
    run_cycle()
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.reason) == ("pending", "reservation_pending")


def test_job_of_others_waits_for_reserved_devices_with_the_reason_reserved_soon(user, tenant, other):
    make_node(gpus=1)
    reserve(user, tenant, 60, 60)
    other_tenant, other_user = other
    job_id = submit(other_user, other_tenant)
    run_cycle()
    assert Job.objects.get(pk=job_id).reason == "reserved_soon"


@pytest.mark.parametrize(
    ("request_fields", "code"), [({"gpu_count": 0}, "reservation_pending"), ({"gpu_count": 1}, "constraint")]
)
def test_job_in_a_reservation_that_has_lost_its_gpus_is_not_told_that_it_ended(user, tenant, request_fields, code):
    """A60: it lasts, and gets others as soon as there are any."""
    node = make_node(gpus=1)
    reservation = reserve(user, tenant, 0, 60)
    Node.objects.filter(pk=node.id).update(state="lost")
    review(_IDLE)
    assert not reservation.devices.filter(is_live=True).exists()
    job_id = submit(user, tenant, reservation=reservation.pk, **request_fields)
    run_cycle()
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.reason) == ("pending", code)
    make_node(gpus=1)
    review(_IDLE)
    run_cycle()
    assert state(job_id) == "scheduled"
