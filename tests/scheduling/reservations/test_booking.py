"""Booking reservations: the choice of devices, refusals with what is in the way, and quotas (A72)."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from gpusched.lib.api.problems import Problem
from gpusched.protocol.states import Role
from nodes.held_idle import HeldIdlePolicy
from nodes.models import Device, Node
from scheduling.reservations import changes
from scheduling.reservations.booking import find_slot
from scheduling.reservations.choice import Shape
from scheduling.reservations.create import wish_of
from scheduling.reservations.lifecycle import review
from scheduling.reservations.tables import ReservedDevice
from tests.factories import identity_for, make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.scheduling.reservations.booking import at, device_ids, reserve

pytestmark = pytest.mark.django_db(transaction=True)


def test_reservation_has_devices_of_one_node_with_their_part_of_cpu_and_memory(user, tenant):
    make_node(gpus=2)
    node = make_node(gpus=4)
    reservation = reserve(user, tenant, gpus=3)
    devices = ReservedDevice.objects.filter(reservation=reservation)
    assert {device.node_id for device in devices} == {node.id}
    assert {(device.cpu_milli, device.memory_mb) for device in devices} == {(16_000, 128_000)}
    assert reservation.state == "planned"


def test_reservation_takes_the_smallest_node_that_is_large_enough(user, tenant):
    make_node(gpus=8)
    small = make_node(gpus=2)
    reservation = reserve(user, tenant, gpus=2)
    assert {device.node_id for device in reservation.devices.all()} == {small.id}


def test_hard_reservations_never_exceed_the_capacity_together(user, tenant):
    """A72"""
    make_node(gpus=2)
    first = reserve(user, tenant, 60, 60)
    second = reserve(user, tenant, 90, 60)
    assert not device_ids(first) & device_ids(second)
    with pytest.raises(Problem) as refused:
        reserve(user, tenant, 100, 10)
    assert (refused.value.status, refused.value.code) == (409, "no_room")
    assert refused.value.detail.startswith("1 GPU is not free from ")
    reserve(user, tenant, 120, 30)


def test_reservations_of_one_gpu_one_after_the_other_leave_the_other_gpu_free(user, tenant):
    """A72: they take their part of the CPU one after the other, too."""
    make_node(gpus=2)
    first, second = reserve(user, tenant, 60, 60), reserve(user, tenant, 120, 60)
    assert device_ids(first) == device_ids(second)
    assert device_ids(reserve(user, tenant, 60, 120)) != device_ids(first)


def test_database_refuses_two_live_reservations_of_a_device_at_one_time(user, tenant):
    """A72: whatever the code does."""
    make_node(gpus=1)
    reservation = reserve(user, tenant, 60, 60)
    [device] = reservation.devices.all()
    device.pk = None
    device.starts_at += timedelta(minutes=30)
    device.ends_at += timedelta(minutes=30)
    with pytest.raises(IntegrityError, match="reserved_device_once"), transaction.atomic():
        device.save(force_insert=True)


def test_refusal_names_the_reservation_in_the_way_and_the_next_free_slot(user, tenant):
    make_node(gpus=1)
    first = reserve(user, tenant, 60, 60)
    with pytest.raises(Problem) as refused:
        reserve(user, tenant, 90, 60)
    assert f"reservation {first.pk} holds some until" in refused.value.detail
    slot = find_slot(wish_of(Shape(1), at(90), 3600))
    assert slot is not None
    assert datetime.fromtimestamp(slot.starts_at, UTC) == first.ends_at
    start = refused.value.next_step.split()[2].rstrip(",")
    minutes = (datetime.fromisoformat(start) - timezone.now()).total_seconds() / 60
    assert reserve(user, tenant, minutes, 60).starts_at >= first.ends_at


def test_refusal_does_not_name_the_reservation_of_another_tenant(user, tenant):
    make_node(gpus=1)
    other = make_tenant()
    first = reserve(make_member(other), other, 60, 60)
    with pytest.raises(Problem) as refused:
        reserve(user, tenant, 90, 60)
    assert "a reservation of another tenant" in refused.value.detail
    assert f"reservation {first.pk}" not in refused.value.detail


def test_job_without_time_limit_is_in_the_way(user, tenant):
    node = make_node(gpus=1)
    job_id = submit(user, tenant)
    run_cycle()
    node.start_all()
    with pytest.raises(Problem) as refused:
        reserve(user, tenant)
    assert f"job {job_id} has no time limit" in refused.value.detail


def test_device_of_a_job_that_ends_before_the_start_can_be_reserved(user, tenant):
    node = make_node(gpus=1)
    submit(user, tenant, max_runtime_minutes=30, grace_seconds=60)
    run_cycle()
    node.start_all()
    with pytest.raises(Problem):
        reserve(user, tenant, 30.5)
    assert device_ids(reserve(user, tenant, 32))


def test_job_with_much_cpu_leaves_fewer_devices_to_reserve(user, tenant):
    """The parts of CPU and memory of the reserved devices must be free as well."""
    make_node(gpus=8)
    submit(user, tenant, gpu_count=0, cpu_cores=32)
    run_cycle()
    with pytest.raises(Problem):
        reserve(user, tenant, gpus=5)
    assert reserve(user, tenant, gpus=4)


@pytest.mark.parametrize(
    "fields", [{"gpus": 3}, {"gpu_model": "H100"}, {"gpu_memory_mb": 100_000}, {"node_selector": {"rack": "r9"}}]
)
def test_shape_that_no_node_has_can_never_be_reserved(user, tenant, fields):
    make_node(gpus=2)
    with pytest.raises(Problem) as refused:
        reserve(user, tenant, **fields)
    assert (refused.value.status, refused.value.code) == (422, "never_fits")


@pytest.mark.parametrize(
    ("sizes", "step"),
    [
        ((2, 2), "reserve fewer GPUs, or let them be on several nodes (--several-nodes, in REST one_node: false)"),
        ((2, 1), "reserve fewer GPUs, or other ones"),
        ((0,), "reserve other ones, or add a node with GPUs"),
    ],
)
def test_refusal_of_too_many_devices_advises_what_helps(user, tenant, sizes, step):
    for gpus in sizes:
        make_node(gpus=gpus)
    with pytest.raises(Problem) as refused:
        reserve(user, tenant, gpus=4)
    assert refused.value.next_step == step
    assert refused.value.detail.startswith("no node in service has 4 GPUs of this kind; the largest possible is ")


def test_reservation_of_several_nodes_takes_as_few_as_possible(user, tenant):
    make_node(gpus=2)
    large = make_node(gpus=4)
    reservation = reserve(user, tenant, gpus=5, one_node=False)
    nodes = [device.node_id for device in reservation.devices.all()]
    assert nodes.count(large.id) == 4 and len(nodes) == 5


def test_node_out_of_service_is_not_reserved(user, tenant):
    from nodes.models import Node

    node = make_node(gpus=1)
    Node.objects.filter(pk=node.id).update(intent="cordoned")
    with pytest.raises(Problem) as refused:
        reserve(user, tenant)
    assert refused.value.code == "never_fits"
    assert refused.value.detail == "no node in service has 1 GPU of this kind; the largest possible is 0"


@pytest.mark.parametrize("limit", ["max_gpus", "max_gpus_per_user"])
def test_more_gpus_than_the_quota_has_are_not_advised_for_another_time(limit):
    make_node(gpus=2)
    other = make_tenant()
    reserve(make_member(other), other, gpus=2)
    tenant = make_tenant(quota={limit: 1})
    with pytest.raises(Problem) as refused:
        reserve(make_member(tenant), tenant, gpus=2)
    assert (refused.value.status, refused.value.code) == (403, "quota_exceeded")


def test_reservations_of_a_tenant_stay_within_its_quota():
    make_node(gpus=8)
    tenant = make_tenant(quota={"max_gpus": 4, "max_gpus_by_model": {"A100": 3}})
    user = make_member(tenant)
    reserve(user, tenant, 60, 60, gpus=2)
    reserve(user, tenant, 120, 60, gpus=3)
    with pytest.raises(Problem) as refused:
        reserve(user, tenant, 90, 10, gpus=2)
    assert (refused.value.status, refused.value.code) == (403, "quota_exceeded")
    assert "requested=2, limit=3, reserved at that time=2" in refused.value.detail


def test_viewer_may_not_reserve(tenant):
    from gpusched.protocol.states import Role

    make_node(gpus=1)
    with pytest.raises(Problem) as refused:
        reserve(make_member(tenant, Role.VIEWER), tenant)
    assert refused.value.status == 403


def test_admin_may_reserve_for_any_tenant(tenant):
    make_node(gpus=1)
    assert reserve(make_user(admin=True), tenant).source == "admin"


def test_soft_reservation_is_in_the_way_of_nothing(user, tenant):
    make_node(gpus=1)
    soft = reserve(user, tenant, kind="soft")
    assert device_ids(soft)
    assert device_ids(reserve(user, tenant)) == device_ids(soft)
    assert reserve(user, tenant, kind="soft")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"start": -10}, "from"),
        ({"start": 60 * 24 * 400}, "from"),
        ({"minutes": 0.5}, "for_seconds"),
        ({"gpus": 0}, "gpus"),
        ({"until": "2030-01-01"}, "until"),
        ({"confidence": 2}, "confidence"),
        ({"users": ["unknown"]}, "users"),
        ({"lease": True}, "lease"),
        ({"node_selector": {"a b": "c"}}, "node_selector"),
        ({"note": "x" * 300}, "note"),
        ({"minutes": 1441, "recurrence": "daily"}, "recurrence"),
        ({"minutes": 8 * 1440, "recurrence": "weekly"}, "recurrence"),
    ],
)
def test_wrong_fields_are_refused_by_name(user, tenant, fields, field):
    make_node(gpus=1)
    with pytest.raises(Problem) as refused:
        reserve(user, tenant, **fields)
    assert refused.value.status == 400
    assert field in {error.field for error in refused.value.errors}


def test_cancelled_reservation_frees_its_devices(user, tenant):
    make_node(gpus=1)
    first = reserve(user, tenant)
    assert changes.cancel(first.pk, identity_for(user)).state == "cancelled"
    assert reserve(user, tenant)
    with pytest.raises(Problem) as refused:
        changes.cancel(first.pk, identity_for(user))
    assert refused.value.code == "wrong_state"


def test_shortened_reservation_says_who_has_shortened_it(user, tenant):
    make_node(gpus=3)
    others = {
        "its owner": user,
        "an owner of the tenant": make_member(tenant, Role.OWNER),
        "an admin": make_user(admin=True),
    }
    for words, person in others.items():
        reservation = reserve(user, tenant, 0, 60)
        assert changes.shorten(reservation.pk, identity_for(person)).problem == f"shortened by {words}"


def test_shortened_reservation_ends_now(user, tenant):
    make_node(gpus=1)
    reservation = reserve(user, tenant, 0, 60)
    now = timezone.now() + timedelta(minutes=5)
    shortened = changes.shorten(reservation.pk, identity_for(user), now=now)
    assert (shortened.state, shortened.ends_at) == ("released", now)
    assert {device.ends_at for device in shortened.devices.all()} == {now}


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_job_that_outlives_its_reservation_keeps_its_device(user, tenant, kind):
    """It continues after a soft reservation, and after a hard one that its owner has shortened."""
    node = make_node(gpus=1)
    reservation = reserve(user, tenant, 0, 60, kind=kind)
    submit(user, tenant, reservation=reservation.pk)
    run_cycle()
    node.start_all()
    if kind == "hard":
        changes.shorten(reservation.pk, identity_for(user))
    other = make_tenant()
    with pytest.raises(Problem) as refused:
        reserve(make_member(other), other, 90, 60)
    assert "a job of another tenant has no time limit" in refused.value.detail


def test_lease_can_be_renewed_until_the_next_reservation_of_its_devices(user, tenant):
    make_node(gpus=1)
    lease = reserve(user, tenant, 0, 60, lease=True)
    later = reserve(user, tenant, 120, 60)
    renewed = changes.renew(lease.pk, 5400, identity_for(user))
    assert 89 < (renewed.ends_at - timezone.now()).total_seconds() / 60 <= 90
    with pytest.raises(Problem) as refused:
        changes.renew(lease.pk, 10_000, identity_for(user))
    assert f"reservation {later.pk} has its GPUs from" in refused.value.detail


@pytest.mark.parametrize("out_of_service", ["cordoned node", "dirty device"])
def test_lease_on_a_node_out_of_service_is_renewed_until_the_next_reservation(user, tenant, out_of_service):
    node = make_node(gpus=1)
    lease = reserve(user, tenant, 0, 60, lease=True)
    later = reserve(user, tenant, 120, 60)
    if out_of_service == "cordoned node":
        Node.objects.filter(pk=node.id).update(intent="cordoned")
    else:
        Device.objects.update(health="dirty")
    changes.renew(lease.pk, 5400, identity_for(user))
    with pytest.raises(Problem) as refused:
        changes.renew(lease.pk, 10_000, identity_for(user))
    assert f"reservation {later.pk} has its GPUs from" in refused.value.detail


def test_lease_whose_end_has_passed_is_not_renewed(user, tenant):
    """Jobs of others may have started there before the review marks it expired."""
    make_node(gpus=1)
    lease = reserve(user, tenant, 0, 60, lease=True)
    with pytest.raises(Problem) as refused:
        changes.renew(lease.pk, 3600, identity_for(user), now=lease.ends_at)
    assert (refused.value.code, refused.value.detail[-7:]) == ("wrong_state", "expired")


def test_device_that_a_reservation_has_lost_is_not_in_the_way_of_its_renewal(user, tenant):
    make_node(gpus=2)
    lease = reserve(user, tenant, 0, 60, lease=True)
    lost = Device.objects.filter(pk__in=device_ids(lease))
    lost.update(health="quarantined")
    review(HeldIdlePolicy("off"))
    lost.update(health="ok")
    assert device_ids(reserve(user, tenant, 90, 60)) < device_ids(lease)
    changes.renew(lease.pk, 10_000, identity_for(user))


def test_member_may_not_change_the_reservation_of_another(user, tenant):
    make_node(gpus=1)
    reservation = reserve(user, tenant)
    with pytest.raises(Problem) as refused:
        changes.cancel(reservation.pk, identity_for(make_member(tenant)))
    assert refused.value.status == 403
    with pytest.raises(Problem) as missing:
        changes.cancel(reservation.pk, identity_for(make_member(make_tenant())))
    assert missing.value.status == 404
