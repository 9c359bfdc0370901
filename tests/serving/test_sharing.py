"""Endpoints that share the replicas of another one: they take turns, and count together for the number of replicas."""

import asyncio
import json
import os
import subprocess
import sys

import pytest
from asgiref.sync import sync_to_async

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query
from serving import upkeep
from serving.batching.dispatcher import Dispatcher, ServedEndpoint
from serving.endpoints import activity, endpoints
from serving.endpoints.representation import represent_endpoints
from serving.models import Endpoint, InferenceRequest, Replica
from serving.replicas.reconcile import reconcile
from serving.replicas.spare import SPARE_JOBS
from tests.api.calls import call
from tests.factories import identity_for, make_member, make_node, make_tenant, make_token
from tests.serving.replicas import ROOT, Replicas, ended, outcome, send, until
from tests.serving.requests import ask
from tests.serving.test_replicas import live, make, make_warm

pytestmark = pytest.mark.django_db
FUNCTIONS = """
from gpusched.serve import serve
serve({"embed": lambda inputs: [["embed", value] for value in inputs],
       "rerank": lambda inputs: [["rerank", value] for value in inputs]})
"""


@pytest.fixture
def tenant():
    make_node(gpus=4)
    return make_tenant("nlp")


def share(tenant, user, name="rerank", of="embed", **fields):
    return endpoints.create(
        tenant.pk, {"name": name, "template": {}, "shares_replicas_with": of, **fields}, identity_for(user)
    )


def refusal(tenant, user, **fields):
    with pytest.raises(Problem) as caught:
        share(tenant, user, **fields)
    return caught.value


def test_sharing_endpoint_has_the_template_of_the_other(tenant, user):
    owner = make(tenant, user)
    assert share(tenant, user).template == owner.template
    endpoints.change(owner.pk, {"template": {"command": ["serve", "v2"], "gpu_count": 1}}, identity_for(user))
    assert Endpoint.objects.get(name="rerank").template["command"] == ["serve", "v2"]


def test_template_leaves_room_for_the_requests_of_sharing_endpoints(tenant, user):
    """They would wait for a replica until they expire."""
    owner = make(tenant, user, template={"gpu_memory_mb": 4000})
    share(tenant, user, memory_per_request_mb=3000)
    with pytest.raises(Problem) as caught:
        endpoints.change(owner.pk, {"template": {"command": ["serve"], "gpu_count": 1, "gpu_memory_mb": 2000}}, identity_for(user))  # fmt: skip
    [error] = caught.value.errors
    assert (error.field, "'rerank'" in error.message) == ("template", True)


def test_shared_replica_is_not_spare_while_requests_of_any_endpoint_wait(tenant, user):
    owner = make(tenant, user, min_replicas=1)
    sharer = share(tenant, user)
    reconcile()
    [job_id] = live()
    make_warm(job_id, 30)
    Endpoint.objects.filter(pk=owner.pk).update(min_replicas=0)
    assert [row["job_id"] for row in query(SPARE_JOBS)] == [job_id]
    ask(sharer, user)
    assert query(SPARE_JOBS) == []


def test_sharing_endpoint_is_shown_with_the_replicas_that_serve_it(tenant, user):
    owner = make(tenant, user, min_replicas=1, max_replicas=3)
    sharer = share(tenant, user)
    reconcile()
    [job_id] = live()
    make_warm(job_id, 30)
    Endpoint.objects.filter(pk=owner.pk).update(problem="refused by a quota", cold_start_seconds=7.0)
    [shown], load = represent_endpoints(None, [sharer.pk]), activity.loads([sharer.pk])[sharer.pk]
    for row in (shown, load):
        assert (row["replicas"], row["warm"], row["cold_start_seconds"]) == (1, 1, 7.0)
        assert row["problem"] == "refused by a quota"
    assert (load["max_replicas"], shown["shares_replicas_with"]) == (3, "embed")
    assert [row["job_id"] for row in activity.replicas([owner.pk, sharer.pk])[sharer.pk]] == [job_id]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"of": "nothing"}, "shares_replicas_with"),
        ({"of": "rerank", "name": "third"}, "shares_replicas_with"),
        ({"of": "chat"}, "shares_replicas_with"),
        ({"of": "foreign"}, "shares_replicas_with"),
        ({"name": "third", "protocol": "openai", "port": 8000}, "protocol"),
        ({"name": "third", "template": {"command": ["other"]}}, "template"),
        ({"name": "third", "min_replicas": 1}, "min_replicas"),
        ({"name": "third", "max_replicas": 4}, "max_replicas"),
        ({"name": "third", "idle_seconds": 20}, "idle_seconds"),
        ({"name": "third", "prewarming": False}, "prewarming"),
        ({"name": "third", "warm_up": ["cat"]}, "warm_up"),
        ({"name": "third", "memory_per_request_mb": 3000}, "memory_per_request_mb"),
    ],
)
def test_wrong_sharing_is_refused_by_field(tenant, user, fields, named):
    """Unknown, a chain, openai, another tenant, and fields of the other endpoint."""
    make(tenant, user, template={"gpu_memory_mb": 2000})
    make(tenant, user, name="chat", protocol="openai", port=8000)
    other = make_tenant("other")
    make(other, make_member(other), name="foreign")
    share(tenant, user)
    problem = refusal(tenant, user, **fields)
    assert (problem.status, named in [error.field for error in problem.errors]) == (400, True), problem.errors


def test_only_who_may_change_an_endpoint_shares_its_replicas(tenant, user):
    make(tenant, user)
    assert refusal(tenant, make_member(tenant)).status == 403


def test_shared_endpoint_is_removed_after_those_that_share_it(tenant, user):
    owner = make(tenant, user)
    sharer = share(tenant, user)
    with pytest.raises(Problem) as caught:
        endpoints.remove(owner.pk, identity_for(user))
    assert (caught.value.status, caught.value.code, "rerank" in caught.value.detail) == (409, "replicas_shared", True)
    endpoints.remove(sharer.pk, identity_for(user))
    endpoints.remove(owner.pk, identity_for(user))


def test_requests_of_a_sharing_endpoint_start_replicas_of_the_other_only(tenant, user):
    owner = make(tenant, user, max_replicas=3)
    sharer = share(tenant, user)
    Endpoint.objects.update(seconds_per_cost=1.0)
    ask(owner, user, 1)
    ask(sharer, user, 1)
    reconcile()
    assert len(live()) == 3  # 2 s of work at 70 %
    assert set(Replica.objects.values_list("endpoint_id", flat=True)) == {owner.pk}


def test_each_endpoint_that_shares_replicas_counts_with_its_own_speed(tenant, user):
    """The owner of the replicas was never measured, or is much faster."""
    owner = make(tenant, user, max_replicas=4)
    sharer = share(tenant, user)
    Endpoint.objects.filter(pk=sharer.pk).update(seconds_per_cost=1.0)
    ask(sharer, user, 2)
    reconcile()
    assert len(live()) == 3  # 2 s of work at 70 %
    Endpoint.objects.filter(pk=owner.pk).update(seconds_per_cost=0.1)
    ask(owner, user, 5)
    reconcile()
    assert len(live()) == 4  # 2.5 s


def test_dispatcher_learns_which_endpoints_share_a_replica(tenant, user):
    owner = make(tenant, user)
    sharer = share(tenant, user)
    removed = share(tenant, user, name="old")
    endpoints.remove(removed.pk, identity_for(user))
    rows = query(upkeep._ENDPOINTS, {"owners": [owner.pk]})
    assert [(row["id"], row["replicas_of"]) for row in rows] == [(owner.pk, owner.pk), (sharer.pk, owner.pk)]


@pytest.mark.django_db(transaction=True)
def test_endpoints_take_turns_on_a_replica_and_no_batch_mixes_them(tmp_path):
    """A65"""
    make_node(gpus=4)
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    owner, replicas = make(tenant, user), Replicas(tmp_path)
    sharer = share(tenant, user)
    (tmp_path / "1").mkdir()
    environment = {**os.environ, "GPUSCHED_SOCKET_DIR": str(tmp_path / "1"), "PYTHONPATH": str(ROOT)}
    replicas.processes[1] = subprocess.Popen([sys.executable, "-c", FUNCTIONS], env=environment)

    async def serve_all():
        dispatcher = Dispatcher(1, replicas.open, replicas.hung.append)
        for each in (owner, sharer):
            dispatcher.endpoints[each.pk] = ServedEndpoint(each.pk, each.name, 4, 0.01, 10.0, False)
        ids = [
            *await sync_to_async(send)(owner, user, *"abcdefgh"),
            *await sync_to_async(send)(sharer, user, *"ijklmnop"),
        ]
        dispatcher.add_replica(1, [owner.pk], None)
        dispatcher.add_replica(1, [owner.pk, sharer.pk], None)  # which shares it from now on
        task = asyncio.create_task(dispatcher.run())
        await until(ended(ids))
        task.cancel()
        await dispatcher.close()
        return ids

    try:
        ids = asyncio.run(serve_all())
    finally:
        replicas.stop()
    assert [json.loads(outcome(number)) for number in ids] == [
        *(["embed", text] for text in "abcdefgh"), *(["rerank", text] for text in "ijklmnop"),
    ]  # fmt: skip
    order = InferenceRequest.objects.order_by("started_at", "id").values_list("endpoint_id", flat=True)
    assert list(order[::4]) == [owner.pk, sharer.pk, owner.pk, sharer.pk]


def test_sharing_over_rest(tenant, user):
    token = make_token(user)
    make(tenant, user)
    body = {"name": "rerank", "tenant": "nlp", "shares_replicas_with": "embed"}
    created = call("POST", "/api/v1/endpoints", token, body)
    assert (created.status_code, created.json()["shares_replicas_with"]) == (201, "embed"), created.content
    assert call("GET", "/api/v1/endpoints/embed", token).json()["shares_replicas_with"] is None
    assert call("DELETE", "/api/v1/endpoints/embed", token).json()["code"] == "replicas_shared"
    assert call("PATCH", "/api/v1/endpoints/rerank", token, {"template": {"command": ["x"]}}).status_code == 400
    assert call("PATCH", "/api/v1/endpoints/rerank", token, {"max_batch": 3}).json()["max_batch"] == 3
