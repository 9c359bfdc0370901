"""Clients that leave while they wait, and endpoints that are removed with a queue (A68)."""

import asyncio
import json

import pytest
from asgiref.sync import sync_to_async

from serving import upkeep
from serving.api.waiting import _limiter
from serving.models import InferenceRequest
from tenants.models import BucketLevel
from tests.api.calls import call
from tests.serving.replicas import until
from tests.serving.test_api import admin, complete, endpoint, tenant, user  # noqa: F401 fixtures

pytestmark = pytest.mark.django_db(transaction=True)


def submit_and_wait(token):
    return call("POST", "/api/v1/tasks?wait=30", token, {"endpoint": "embed", "input": 1})


def test_client_that_leaves_frees_its_place_and_its_task_goes_on(endpoint, token):  # noqa: F811
    answer = submit_and_wait(token)

    async def leave():
        waiting = asyncio.ensure_future(answer.resolve())
        await until(lambda: _limiter.now["ada"] == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(leave())
    assert _limiter.now["ada"] == 0
    task = InferenceRequest.objects.get()
    assert task.state == "queued"
    complete(task.pk)
    [item] = call("GET", f"/api/v1/tasks/{task.pk}", token).json()["items"]
    assert (item["state"], item["output"]) == ("completed", {"x": 1})


def test_endpoint_removed_with_its_queue_answers_those_that_wait(endpoint, token, admin):  # noqa: F811
    bucket = {"tenant": "nlp", "scope": "user", "rate_per_second": 0, "burst": 30}
    assert call("POST", "/api/v1/buckets", admin, bucket).status_code == 201
    answer = submit_and_wait(token)
    assert BucketLevel.objects.get().level == 20
    refused = call("DELETE", "/api/v1/endpoints/embed", token)
    assert (refused.status_code, refused.json()["code"]) == (409, "not_empty")
    assert call("DELETE", "/api/v1/endpoints/embed?with_queue=true", token).status_code == 204

    async def read():
        await sync_to_async(upkeep.keep_queue)()
        return (await answer.resolve()).content

    [item] = json.loads(asyncio.run(read()))["items"]
    assert (item["state"], item["error_code"]) == ("refused", "endpoint_removed")
    assert BucketLevel.objects.get().level == 30, "its tokens return"
    again = call("POST", "/api/v1/tasks", token, {"endpoint": "embed", "input": 1})
    assert again.status_code == 404


def test_archived_tenant_answers_those_that_wait_and_its_endpoint_says_so(endpoint, token, admin):  # noqa: F811
    task = call("POST", "/api/v1/tasks", token, {"endpoint": "embed", "input": 1}).json()["items"][0]["id"]
    assert call("POST", "/api/v1/tenants/nlp/archive", admin).status_code == 200
    upkeep.keep_queue()
    [item] = call("GET", f"/api/v1/tasks/{task}", token).json()["items"]
    assert (item["state"], item["error_code"], item["error"]) == (
        "refused",
        "tenant_archived",
        "its tenant was archived",
    )

    def shown():
        answer = call("GET", "/api/v1/endpoints/embed", token).json()
        return answer["queued"], answer["replicas"], answer["problem"]

    assert shown() == (0, 0, "tenant nlp is archived and accepts no jobs")
    assert call("POST", "/api/v1/tenants/nlp/unarchive", admin).status_code == 200
    upkeep.keep_queue()
    assert shown() == (0, 0, "")
