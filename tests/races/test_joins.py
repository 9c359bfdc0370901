"""Concurrent joins of two machines with one name, or of one machine twice, with two real connections."""

import threading
from typing import Any

import msgspec
import pytest
from django.db import connections, transaction
from django.test import Client

from gpusched.lib.db.sql import query
from gpusched.protocol.agent_messages import Join, NodeFacts
from nodes.inventory import join
from nodes.models import Node
from tests.at_once import at_once
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)
FACTS = NodeFacts(hostname="gpu-1", boot_id="b", agent_version="0", cpu_cores=8, memory_mb=1024)


def message(key: str) -> Join:
    return Join(name="gpu-1", node_key=key, facts=FACTS)


@pytest.fixture
def token():
    return join.create_join_token(1, "admin")[1]


def post(token: str, key: str) -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    body = msgspec.json.encode(message(key))
    return Client().post("/agent/join", body, content_type="application/json", headers=headers)


def join_while_another_commits(token: str, first_key: str, key: str) -> Any:
    """Return the answer to a join during the open transaction of another one."""
    answers: list[Any] = []
    written = threading.Event()

    def second() -> None:
        try:
            assert written.wait(30)
            answers.append(post(token, key))
        finally:
            connections.close_all()

    thread = threading.Thread(target=second)
    thread.start()
    with transaction.atomic():
        join.join_node(message(first_key), 2.0)
        written.set()
        wait_for(lambda: query("SELECT 1 FROM pg_locks WHERE NOT granted"), 30, "it to wait for the other join")
    thread.join(30)
    return answers[0]


def test_second_machine_with_the_same_name_is_a_409(token):
    answer = join_while_another_commits(token, "first-machine", "second-machine")
    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")
    assert "--name" in answer.json()["next_step"]
    assert "constraint" not in answer.content.decode()
    assert [node.node_key for node in Node.objects.all()] == ["first-machine"]


def test_machine_that_joins_twice_at_once_is_one_node_with_the_latest_credential(token):
    answer = join_while_another_commits(token, "first-machine", "first-machine")
    assert answer.status_code == 200, answer.content
    assert join.authenticate(f"Bearer {answer.json()['credential']}") == Node.objects.get().pk


def test_only_one_of_many_machines_with_one_name_joins(token):
    answers = at_once(*[lambda key=f"machine-{number}": post(token, key) for number in range(6)])
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 5
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} == {"name_taken"}
