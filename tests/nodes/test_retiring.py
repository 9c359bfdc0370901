"""A GPU that is gone for good: an admin retires it, and nothing counts or lists it any more, until it is named
again."""

import json

import pytest
from django.test import Client
from msgspec.structs import replace

from gpusched.lib.db.sql import execute, query
from gpusched.lib.models import AuditEntry
from gpusched.protocol.agent_messages import Reading
from nodes.models import Device, Incident
from tests.factories import make_node, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def root():
    return make_token(make_user("root", admin=True))


def retire(token: str, device: int) -> tuple[int, dict[str, object]]:
    answer = Client().post(
        f"/api/v1/gpus/{device}/retire", "", content_type="application/json",
        headers={"authorization": f"Bearer {token}"},
    )  # fmt: skip
    return answer.status_code, json.loads(answer.content)


def without_first(agent):
    """The agent's facts as they are when its first GPU was taken out."""
    return replace(agent.facts(), devices=agent.facts().devices[1:])


def test_removed_gpu_is_retired_and_disappears_from_lists(root):
    agent = make_node(gpus=2)
    agent.sync(readings=[Reading(uuid=device.uuid, utilisation_percent=0) for device in agent.devices])
    agent.sync(facts=without_first(agent))
    lost = Device.objects.get(health="lost")
    status, answer = retire(root, lost.pk)
    assert (status, answer["id"], answer["health"]) == (200, lost.pk, "retired")
    assert answer["message"] == f"GPU 0 of {agent.name} is retired; it comes back by itself if its agent names it again"
    assert [device.uuid for device in Device.objects.all()] == [agent.devices[1].uuid]
    entry = AuditEntry.objects.get(action="gpu.retire")
    assert entry.before is not None
    assert (entry.actor, entry.before["uuid"]) == ("root", lost.uuid)
    incident = Incident.objects.get(kind="lost")
    assert incident.until is not None and incident.device_id is None
    assert incident.cause.startswith(f"GPU 0 ({lost.uuid}), retired since: ")
    assert retire(root, lost.pk)[0] == 404


def test_retired_gpu_comes_back_when_the_agent_reports_it_again(root, user, tenant):
    agent = make_node(gpus=1)
    agent.sync(facts=without_first(agent))
    retire(root, Device.objects.get().pk)
    agent.sync(facts=agent.facts())
    assert Device.objects.get().health == "ok"
    submit(user, tenant)
    run_cycle()
    assert len(agent.start_all()) == 1


def test_gpu_that_is_read_or_held_cannot_be_retired(root, user, tenant):
    agent = make_node(gpus=1)
    agent.sync(readings=[Reading(uuid=agent.devices[0].uuid, utilisation_percent=0)])
    device = Device.objects.get()
    status, answer = retire(root, device.pk)
    assert (status, answer["code"]) == (409, "wrong_state") and "quarantine it" in str(answer["next_step"])
    execute("UPDATE nodes_device SET health = 'quarantined'")
    assert retire(root, device.pk)[0] == 409, "nor while an admin keeps jobs off: it is there"
    execute("UPDATE nodes_device SET health = 'ok'")
    submit(user, tenant)
    run_cycle()
    agent.sync(facts=without_first(agent))
    status, answer = retire(root, device.pk)
    assert (status, answer["code"]) == (409, "in_use")
    assert query("SELECT count(*) AS n FROM nodes_device")[0]["n"] == 1


def test_any_gpu_of_a_silent_node_can_be_retired(root):
    make_node(gpus=1)
    execute("UPDATE nodes_node SET state = 'lost'")
    assert retire(root, Device.objects.get().pk)[0] == 200
