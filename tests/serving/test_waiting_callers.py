"""Callers that wait for tasks, and meanwhile lose the right to see them."""

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from gpusched.lib.bus import events
from gpusched.lib.db.sql import execute
from serving.api import waiting
from serving.api.waiting import POLL_SECONDS
from tests.api.calls import call
from tests.serving.test_api import admin, complete, endpoint, tenant, user  # noqa: F401 fixtures
from tests.serving.test_task_waiting import submitted

pytestmark = pytest.mark.django_db(transaction=True)
REVOKED = "UPDATE tenants_apitoken SET revoked_at = now()"
LEFT = "DELETE FROM tenants_membership"


def answer_after(deferred: Any, change: str, task_id: int) -> tuple[int, dict[str, Any]]:
    """Wait; make the change, and end the task when the wait is longer than a caller goes unchecked."""

    async def scenario() -> tuple[int, dict[str, Any]]:
        answer = asyncio.create_task(deferred.resolve())
        await asyncio.sleep(waiting.UNCHECKED_SECONDS + 0.1)
        await sync_to_async(execute)(change)
        await sync_to_async(complete)(task_id, b"7")
        await sync_to_async(events.changed)("tasks", [task_id])
        response = await asyncio.wait_for(answer, 5 * POLL_SECONDS)
        return response.status_code, json.loads(response.content)

    return asyncio.run(scenario())


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "UNCHECKED_SECONDS", 0.2)


@pytest.mark.parametrize(("change", "refusal"), [(REVOKED, (401, "not_authenticated")), (LEFT, (404, "not_found"))])
def test_read_that_waits_is_refused_when_the_right_ends(endpoint, token, change: str, refusal: object):  # noqa: F811
    [task_id] = submitted(token, 1)
    answer = answer_after(call("GET", f"/api/v1/tasks/{task_id}?wait=30", token), change, task_id)
    assert (answer[0], answer[1]["code"]) == refusal


@pytest.mark.parametrize("change", [REVOKED, LEFT])
def test_submit_that_waits_returns_its_tasks_without_results_then(endpoint, token, change: str):  # noqa: F811
    """The tasks are submitted: an error would have them submitted again."""
    deferred = call("POST", "/api/v1/tasks?wait=30", token, {"endpoint": "embed", "input": 1})
    [task] = call("GET", "/api/v1/tasks", token).json()["items"]
    status, answer = answer_after(deferred, change, task["id"])
    assert (status, [(item["id"], item["state"], item["output"]) for item in answer["items"]]) == (
        201, [(task["id"], "queued", None)],
    )  # fmt: skip


def test_caller_who_keeps_the_right_gets_the_result(endpoint, token):  # noqa: F811
    [task_id] = submitted(token, 1)
    status, answer = answer_after(call("GET", f"/api/v1/tasks/{task_id}?wait=30", token), "SELECT 1", task_id)
    assert (status, answer["items"][0]["output"]) == (200, 7)
