"""A node or GPU that is closed while a cycle plans gets no job, once its admin has the answer."""

from collections.abc import Callable

import pytest
from django.db import transaction

from gpusched.protocol.states import NodeIntent
from jobs.models import Job
from nodes.health import cordon, device_health
from nodes.models import Allocation, Device
from scheduling.cycle import run
from scheduling.engine import planner
from tests.factories import make_member, make_node, make_tenant, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def close(intent: NodeIntent) -> Callable[[], object]:
    return lambda: cordon.set_intent("closed", intent, "maintenance")


def quarantine() -> None:
    with transaction.atomic():
        device_health.quarantine(Device.objects.get(node__name="closed").pk, "", "admin")


@pytest.mark.parametrize("work", [close(NodeIntent.CORDONED), close(NodeIntent.DRAINING), quarantine])
def test_what_is_closed_while_a_cycle_plans_gets_no_job(work, monkeypatch):
    tenant = make_tenant()
    user = make_member(tenant)
    make_node(gpus=1, name="closed")
    make_node(gpus=1, name="open")
    jobs = [submit(user, tenant) for _ in range(2)]
    plan = planner.plan

    def plan_meanwhile(*args):
        decided = plan(*args)
        work()
        return decided

    monkeypatch.setattr(run, "plan", plan_meanwhile)
    committed = run.run("test")
    assert (committed.placed, committed.stale) == (1, 1)
    assert [row.device.node.name for row in Allocation.objects.all()] == ["open"]
    monkeypatch.undo()
    run_cycle()
    assert sorted(Job.objects.filter(pk__in=jobs).values_list("state", flat=True)) == ["pending", "scheduled"]
