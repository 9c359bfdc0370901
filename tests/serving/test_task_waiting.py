"""Reads that wait for the end of tasks."""

import asyncio
import json
import time

import psycopg
import pytest
from asgiref.sync import sync_to_async

from gpusched.lib.bus import events
from gpusched.lib.bus.listener import Listener
from gpusched.lib.db import outages
from serving.api import waiting
from serving.requests.waiting_clients import WaitingClients
from tests.api.calls import call
from tests.factories import make_member, make_tenant, make_token
from tests.serving.test_api import admin, complete, endpoint, tenant, user  # noqa: F401 fixtures

pytestmark = pytest.mark.django_db(transaction=True)


def submitted(token, count):
    answer = call("POST", "/api/v1/tasks", token, {"endpoint": "embed", "inputs": list(range(count))})
    return [task["id"] for task in answer.json()["items"]]


async def items_of(answer):
    return json.loads((await answer.resolve()).content)["items"]


def many(ids, **filters):
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    return f"/api/v1/tasks?ids={','.join(map(str, ids))}&{query}"


def test_read_of_many_tasks_returns_each_of_them(endpoint, token):  # noqa: F811
    ids = submitted(token, 3)
    complete(ids[1])
    items = call("GET", many(ids), token).json()["items"]
    assert [(item["id"], item["state"]) for item in items] == [
        (ids[0], "queued"), (ids[1], "completed"), (ids[2], "queued")
    ]  # fmt: skip


def test_wait_for_many_returns_those_that_have_ended(endpoint, token):  # noqa: F811
    ids = submitted(token, 3)
    complete(ids[2], b"7")
    began = time.monotonic()
    items = asyncio.run(items_of(call("GET", many(ids, wait=30), token)))
    assert [(item["id"], item["output"]) for item in items] == [(ids[2], 7)]
    assert time.monotonic() - began < 20


def test_wait_for_many_ends_soon_after_the_first_task(endpoint, token):  # noqa: F811
    ids = submitted(token, 3)

    def end_one():
        complete(ids[0])
        events.changed("tasks", [ids[0]])

    async def scenario():
        answer = asyncio.create_task(items_of(call_async))
        await asyncio.sleep(0.2)
        assert not answer.done()
        await sync_to_async(end_one)()
        return await asyncio.wait_for(answer, 20)

    call_async = call("GET", many(ids, wait=30), token)
    assert [item["id"] for item in asyncio.run(scenario())] == [ids[0]]


class Notifications(Listener):
    """A listener whose notifications the test sends."""

    def subscribe(self, callback):
        self.callback = callback


@pytest.mark.parametrize("is_early", [True, False])
def test_submit_that_waits_is_answered_with_what_was_recorded(endpoint, token, monkeypatch, is_early):  # noqa: F811
    """Without a read, also if the task ends before the wait begins."""
    notifications = Notifications()
    clients = WaitingClients(notifications)
    monkeypatch.setattr(waiting, "waiting_clients", clients)
    reads: list[object] = []

    def read(ids):
        reads.append(ids)
        return {}

    monkeypatch.setattr(waiting._reads, "_read", read)
    deferred = call("POST", "/api/v1/tasks?wait=30", token, {"endpoint": "embed", "input": 1})
    task_id = call("GET", "/api/v1/tasks", token).json()["items"][0]["id"]

    def end():
        complete(task_id, b"7")
        return {"tasks": [task_id]}

    async def scenario():
        with clients.watch([]):  # the first wait of a process reads
            pass
        if is_early:
            notifications.callback(await sync_to_async(end)())
        answer = asyncio.create_task(items_of(deferred))
        if not is_early:
            await asyncio.sleep(0.1)
            notifications.callback(await sync_to_async(end)())
        async with asyncio.timeout(1.5):
            return await answer

    assert asyncio.run(scenario()) == call("GET", f"/api/v1/tasks/{task_id}", token).json()["items"]
    assert reads == []


def test_wait_is_answered_at_once_when_too_many_clients_wait(endpoint, token, monkeypatch):  # noqa: F811
    monkeypatch.setattr(waiting._limiter, "maximum", 0)
    ids = submitted(token, 2)
    began = time.monotonic()
    answer = asyncio.run(call("GET", f"/api/v1/tasks/{ids[0]}?wait=30", token).resolve())
    assert json.loads(answer.content)["items"][0]["state"] == "queued"
    assert asyncio.run(items_of(call("GET", many(ids, wait=30), token))) == []
    assert time.monotonic() - began < 20


def test_wait_for_many_returns_nothing_after_its_time(endpoint, token):  # noqa: F811
    assert asyncio.run(items_of(call("GET", many(submitted(token, 2), wait=1), token))) == []


@pytest.mark.parametrize("text", ["", "a", "1,,2", "1 ", "-1", ",".join(["1"] * 501), "1" * 19])
def test_wrong_ids_are_refused(token, text):
    answer = call("GET", f"/api/v1/tasks?ids={text}&wait=1", token)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "ids" if text else "wait")


@pytest.mark.parametrize("more", ["state=queued", "endpoint=embed", "limit=5"])
def test_ids_do_not_go_with_other_filters(token, more):
    answer = call("GET", f"/api/v1/tasks?ids=1&{more}", token)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, more.split("=")[0])


def test_tasks_of_other_tenants_are_not_found(endpoint, token):  # noqa: F811
    ids = submitted(token, 2)
    stranger = make_token(make_member(make_tenant("other")))
    answer = call("GET", many(ids, wait=1), stranger)
    assert (answer.status_code, answer.json()["detail"]) == (404, f"there is no task {ids[0]}, or you may not see it")
    assert call("GET", many([ids[0], 10**17]), token).status_code == 404


@pytest.fixture
def outage(monkeypatch):
    def read(ids):
        error = psycopg.OperationalError("server closed the connection unexpectedly")
        outages.note_connection(error, None)
        raise error

    monkeypatch.setattr(waiting._reads, "_read", read)


def test_submit_that_waits_names_its_tasks_in_an_outage(endpoint, token, outage):  # noqa: F811
    body = {"endpoint": "embed", "inputs": [1, 2]}
    items = asyncio.run(items_of(call("POST", "/api/v1/tasks?wait=1", token, body)))
    assert items == call("GET", "/api/v1/tasks", token).json()["items"][::-1]


def test_wait_in_an_outage_is_refused_at_its_end(endpoint, token, outage):  # noqa: F811
    ids = submitted(token, 2)
    for path in (f"/api/v1/tasks/{ids[0]}?wait=1", many(ids, wait=1)):
        answer = asyncio.run(call("GET", path, token).resolve())
        assert (answer.status_code, answer["Retry-After"]) == (503, "1")
        assert json.loads(answer.content)["code"] == "database_unavailable"
