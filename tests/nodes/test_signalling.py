"""Signals for jobs: permission, repetition until the agents have them, and their bond to one attempt."""

import json
from typing import Any

import pytest
from django.test import Client

from gpusched.protocol.agent_messages import Signal
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.states import Role
from jobs.actions import job_actions
from jobs.models import JobEvent
from nodes.agents.sync import push
from tests.factories import identity_for, make_member, make_node, make_tenant, make_token, run_cycle, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def team():
    tenant = make_tenant("nlp")
    return tenant, make_member(tenant)


def send(user, job: int, name: str = "USR1") -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {make_token(user)}"}
    body = json.dumps({"signal": name})
    answer = Client().post(f"/api/v1/jobs/{job}/signal", body, content_type="application/json", headers=headers)
    return answer.status_code, answer.json()


def test_signal_is_resent_until_the_agent_acknowledges_it(team):
    agent = make_node()
    job = submit(team[1], team[0], gpu_count=1)
    run_cycle()
    [key] = agent.start_all()
    status, answer = send(team[1], job)
    assert (status, answer["status"], answer["message"]) == (200, "running", f"job {job} is sent USR1")
    first = Signal(key=key, sequence=1, signal="USR1")
    assert push([], [job])[agent.id].signals == [first]
    assert send(team[1], job, "HUP")[0] == 200
    second = Signal(key=key, sequence=2, signal="HUP")
    assert agent.sync().signals == [first, second]
    assert agent.sync(signalled={key: 1}).signals == [second]
    assert agent.sync(signalled={key: 2}).signals == []
    signals = JobEvent.objects.filter(job_id=job, kind="signal_sent").order_by("id")
    assert [(signal.data, signal.actor, signal.attempt) for signal in signals] == [
        ({"signal": "USR1", "sequence": 1}, team[1].username, 1),
        ({"signal": "HUP", "sequence": 2}, team[1].username, 1),
    ]
    assert all(signal.via.startswith("token") for signal in signals)


def test_signals_of_an_attempt_are_not_sent_to_the_next(team):
    agent = make_node()
    job = submit(team[1], team[0], gpu_count=1)
    run_cycle()
    [key] = agent.start_all()
    send(team[1], job)
    job_actions.requeue(job, identity_for(team[1]))
    assert agent.sync().signals == []  # it is being stopped
    agent.end(key, exit_code=None, reason="requeued")
    run_cycle()
    [repeated] = agent.start_all()
    assert repeated != key
    assert agent.sync().signals == []
    send(team[1], job, "USR2")
    assert agent.sync().signals == [Signal(key=repeated, sequence=1, signal="USR2")]


def test_job_that_is_not_running_cannot_be_signalled(team):
    agent = make_node()
    job = submit(team[1], team[0], gpu_count=1)
    status, answer = send(team[1], job)
    assert (status, answer["code"], answer["detail"][-7:]) == (409, "wrong_state", "pending")
    run_cycle()
    assert send(team[1], job)[0] == 409  # its processes are not there yet
    [key] = agent.start_all()
    agent.end(key)
    assert send(team[1], job)[0] == 409
    array = submit(team[1], team[0], array=ArrayRequest(count=3))
    assert "an array" in send(team[1], array)[1]["detail"]
    assert not JobEvent.objects.filter(kind="signal_sent").exists()


def test_only_users_who_can_cancel_a_job_can_signal_it(team):
    agent = make_node()
    job = submit(team[1], team[0], gpu_count=1)
    run_cycle()
    agent.start_all()
    other = make_tenant("other")
    codes = {
        "stranger": send(make_member(other, Role.OWNER), job)[0],
        "viewer": send(make_member(team[0], Role.VIEWER), job)[0],
        "colleague": send(make_member(team[0]), job)[0],
        "owner": send(make_member(team[0], Role.OWNER), job)[0],
    }
    assert codes == {"stranger": 404, "viewer": 403, "colleague": 403, "owner": 200}
    status, answer = send(team[1], job, "KILL")
    assert (status, answer["errors"][0]["field"]) == (400, "signal")
