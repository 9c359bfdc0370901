"""A57: a server and an agent of the version before, whose own messages were recorded, and of the one after."""

import json

import pytest

from jobs.models import Job
from nodes.inventory.join import create_join_token
from nodes.models import Device, Node
from tests.factories import run_cycle, submit
from tests.recorded import KEY, messages, with_later_ideas

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("change", [lambda told: told, with_later_ideas], ids=["as recorded", "with later ideas"])
def test_job_runs_under_an_agent_of_another_version(client, user, tenant, change):
    join, first, *rest = messages()
    credential = create_join_token(1, "test")[1]

    def post(message):
        is_log = message["path"].startswith("/agent/logs")
        text = message["request"] if is_log else json.dumps(change(message["request"])).replace(KEY, f"{job}.1.0")
        path = message["path"].replace(KEY, f"{job}.1.0")
        kind = "application/octet-stream" if is_log else "application/json"
        answer = client.post(path, text, content_type=kind, headers={"Authorization": f"Bearer {credential}"})
        assert answer.status_code == 200, answer.content
        return answer.json()

    job = submit(user, tenant, gpu_count=1)
    credential = post(join)["credential"]
    post(first)
    run_cycle()
    [order] = post(first)["assignments"]
    [recorded] = first["answer"]["assignments"]
    assert set(recorded["spec"]) <= set(order["spec"]), "what the version before reads is still said"
    told = [post(message) for message in rest]

    assert next(answer["started"] for answer in told if "started" in answer) == [f"{job}.1.0"]
    found = Job.objects.get(pk=job)
    assert (found.state, found.exit_code, found.attempt) == ("failed", 3, 1)
    node = Node.objects.get()
    assert (node.state, node.runtimes) == ("online", {})
    assert Device.objects.get().health == "ok"


def test_server_checks_a_credential_without_changing_anything(client):
    """Send the request of gpusched-agent doctor."""
    from tests.factories import make_node

    node = make_node()
    for credential, status in ((node.credential, 400), ("n1.wrong", 401)):
        answer = client.post("/agent/logs", headers={"Authorization": f"Bearer {credential}"})
        assert answer.status_code == status
