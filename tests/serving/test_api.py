"""REST of endpoints, tasks and buckets."""

import asyncio
import json

import pytest

from serving.endpoints import endpoints
from serving.models import InferenceRequest
from serving.requests import results
from serving.requests.results import Outcome
from tenants.models import Membership, Tenant
from tests.api.calls import call
from tests.factories import make_member, make_node, make_tenant, make_token, make_user
from tests.serving.requests import claim

pytestmark = pytest.mark.django_db
TEMPLATE = {"command": ["serve"], "gpu_count": 1}


@pytest.fixture
def tenant():
    make_node(gpus=2)
    return make_tenant("nlp")


@pytest.fixture
def user(tenant):
    return make_member(tenant, name="ada")


@pytest.fixture
def admin():
    return make_token(make_user("root", admin=True))


@pytest.fixture
def endpoint(token):
    body = {"name": "embed", "tenant": "nlp", "template": TEMPLATE, "type": "diffusion"}
    answer = call("POST", "/api/v1/endpoints", token, body)
    assert answer.status_code == 201, answer.content
    return answer.json()


def test_endpoint_without_a_tenant_is_of_the_only_one(token):
    body = {"name": "embed", "tenant": None, "template": TEMPLATE}
    assert call("POST", "/api/v1/endpoints", token, body).json()["tenant"] == "nlp"


def test_endpoint_without_a_tenant_is_refused_to_a_member_of_several(user, token):
    Membership.objects.create(tenant=make_tenant("vision"), user=user, role="member")
    answer = call("POST", "/api/v1/endpoints", token, {"name": "embed", "template": TEMPLATE})
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["message"] == "tenant is required; your tenants: nlp, vision"


def test_owner_learns_nothing_of_users_of_other_tenants(endpoint, token, admin):
    make_member(make_tenant("vision"), name="zoe")

    def change(caller, name):
        return call("PATCH", "/api/v1/endpoints/embed", caller, {"allowed_users": [name]})

    refused = [change(token, name).json()["errors"][0]["message"].replace(name, "…") for name in ("zoe", "absent")]
    assert refused == ["there is no user '…', or not in this tenant"] * 2
    assert change(token, "ada").json()["allowed_users"] == ["ada"]
    assert change(admin, "zoe").json()["allowed_users"] == ["zoe"]


def complete(task_id, result=b'{"x": 1}', kind="application/json"):
    [claimed] = claim([task_id])
    results.record([Outcome(task_id, claimed.attempt, result, kind)])


def test_endpoint_is_created_listed_changed_drained_and_removed(endpoint, token):
    assert (endpoint["cost"], endpoint["owner"], endpoint["queued"], endpoint["state"]) == (10.0, "ada", 0, "active")
    assert [item["name"] for item in call("GET", "/api/v1/endpoints", token).json()["items"]] == ["embed"]
    changed = call("PATCH", "/api/v1/endpoints/embed", token, {"max_batch": 4, "version": 1})
    assert (changed.json()["max_batch"], changed.json()["version"], changed["ETag"]) == (4, 2, '"2"')
    assert call("PATCH", "/api/v1/endpoints/embed", token, {"max_batch": 5, "version": 1}).status_code == 412
    assert call("POST", "/api/v1/endpoints/embed/drain", token).json()["state"] == "draining"
    assert call("DELETE", "/api/v1/endpoints/embed", token).status_code == 204
    assert call("GET", "/api/v1/endpoints/embed", token).status_code == 404


def test_stranger_cannot_tell_that_an_endpoint_exists(endpoint):
    stranger = make_token(make_member(make_tenant("other")))
    for method, path, body in (
        ("GET", "endpoints/embed", None), ("DELETE", "endpoints/embed", None),
        ("POST", "tasks", {"endpoint": "embed", "input": 1}),
    ):  # fmt: skip
        real = call(method, f"/api/v1/{path}", stranger, body)
        body = body and {**body, "endpoint": "nothing"}
        missing = call(method, f"/api/v1/{path.replace('embed', 'nothing')}", stranger, body)
        assert (real.status_code, missing.status_code) == (404, 404)
        assert real.json()["detail"].replace("embed", "nothing") == missing.json()["detail"]


def test_task_is_submitted_and_its_result_read(endpoint, token):
    answer = call("POST", "/api/v1/tasks", token, {"endpoint": "embed", "input": {"text": "hello"}, "units": 2})
    [task] = answer.json()["items"]
    assert (answer.status_code, task["state"], task["cost"]) == (201, "queued", 20.0)
    assert json.loads(bytes(InferenceRequest.objects.get().payload)) == {"text": "hello"}
    complete(task["id"])
    [task] = call("GET", f"/api/v1/tasks/{task['id']}", token).json()["items"]
    assert (task["state"], task["output"], task["flush_reason"], task["batch_size"]) == (
        "completed",
        {"x": 1},
        "size",
        1,
    )
    raw = call("GET", f"/api/v1/tasks/{task['id']}/result", token)
    assert (raw.content, raw["Content-Type"]) == (b'{"x": 1}', "application/json")


def test_next_step_without_a_result_is_to_wait_or_to_submit_it_again(endpoint, token):
    """A task that has ended is never completed later."""
    [task] = call("POST", "/api/v1/tasks", token, {"endpoint": "embed", "input": 1}).json()["items"]
    waiting = call("GET", f"/api/v1/tasks/{task['id']}/result", token)
    assert (waiting.status_code, waiting.json()["next_step"]) == (409, "wait until it is completed")
    call("POST", f"/api/v1/tasks/{task['id']}/cancel", token)
    cancelled = call("GET", f"/api/v1/tasks/{task['id']}/result", token)
    assert (cancelled.status_code, cancelled.json()["next_step"]) == (409, "submit its input again")
    assert "is cancelled and has no result" in cancelled.json()["detail"]


def test_submit_returns_the_tasks_as_a_read_does(endpoint, token):
    body = {"endpoint": "embed", "inputs": [1, 2], "units": 2}
    items = call("POST", "/api/v1/tasks", token, body).json()["items"]
    assert [call("GET", f"/api/v1/tasks/{item['id']}", token).json()["items"] for item in items] == [
        [item] for item in items
    ]


def test_result_that_is_a_page_is_never_shown_as_one(endpoint, token):
    [task] = call("POST", "/api/v1/tasks", token, {"endpoint": "embed", "input": 1}).json()["items"]
    complete(task["id"], b"<script>", "text/html")
    raw = call("GET", f"/api/v1/tasks/{task['id']}/result", token)
    assert (raw["Content-Disposition"], raw["X-Content-Type-Options"]) == ("attachment", "nosniff")


def test_many_tasks_keep_their_order_and_are_listed_newest_first(endpoint, token):
    inputs = [{"n": number} for number in range(5)]
    items = call("POST", "/api/v1/tasks", token, {"endpoint": "embed", "inputs": inputs}).json()["items"]
    stored = InferenceRequest.objects.order_by("id").values_list("payload", flat=True)
    assert [json.loads(bytes(payload)) for payload in stored] == inputs
    first = call("GET", "/api/v1/tasks?limit=3", token).json()
    rest = call("GET", f"/api/v1/tasks?limit=3&cursor={first['next_cursor']}", token).json()
    listed = [item["id"] for item in first["items"] + rest["items"]]
    assert listed == sorted((item["id"] for item in items), reverse=True)


@pytest.mark.django_db(transaction=True)
def test_wait_returns_the_result_of_a_task_that_has_ended(endpoint, token):
    [task] = call("POST", "/api/v1/tasks", token, {"endpoint": "embed", "input": 1}).json()["items"]
    complete(task["id"])
    answer = call("GET", f"/api/v1/tasks/{task['id']}?wait=30", token)
    assert json.loads(asyncio.run(answer.resolve()).content)["items"][0]["output"] == {"x": 1}


def test_endpoint_without_a_cost_for_its_requests_is_refused(token):
    """Not replaced by the default of its type."""
    answer = call(
        "POST", "/api/v1/endpoints", token, {"name": "free", "tenant": "nlp", "template": TEMPLATE, "cost": 0}
    )
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (400, ["cost"])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"endpoint": "embed"}, "input"),
        ({"endpoint": "embed", "input": 1, "inputs": [1]}, "input"),
        ({"endpoint": "embed", "inputs": []}, "inputs"),
        ({"endpoint": "embed", "inputs": [1] * 1001}, "inputs"),
        ({"endpoint": "embed", "input": "x" * (300 << 10)}, "input"),
        ({"endpoint": "embed", "inputs": [1, "x" * (300 << 10)]}, "inputs[1]"),
        ({"endpoint": "embed", "input": 1, "units": 0}, "units"),
        ({"endpoint": "embed", "input": 1, "units": 1e-318}, "units"),
        ({"input": 1}, "endpoint"),
    ],
)
def test_wrong_task_is_a_400_that_names_the_field(endpoint, token, body, field):
    answer = call("POST", "/api/v1/tasks", token, body)
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (400, [field])
    assert not InferenceRequest.objects.exists()


def test_task_is_cancelled_by_its_user_and_no_colleague(endpoint, token, tenant):
    [task] = call("POST", "/api/v1/tasks", token, {"endpoint": "embed", "input": 1}).json()["items"]
    path = f"/api/v1/tasks/{task['id']}/cancel"
    assert call("POST", path, make_token(make_member(tenant))).status_code == 403
    assert call("POST", path, make_token(make_member(make_tenant("other")))).status_code == 404
    assert [call("POST", path, token).json()["status"] for _ in range(2)] == ["cancelled", "had_ended"]


def test_bucket_limits_submits_and_reports_what_is_left(endpoint, token, admin):
    bucket = {"tenant": "nlp", "scope": "user", "rate_per_second": 0, "burst": 25}
    created = call("POST", "/api/v1/buckets", admin, bucket)
    assert created.status_code == 201, created.content
    assert call("POST", "/api/v1/buckets", admin, bucket).status_code == 409
    assert call("POST", "/api/v1/buckets", token, bucket).status_code == 403
    answer = call("POST", "/api/v1/tasks", token, {"endpoint": "embed", "input": 1})
    assert (answer["RateLimit-Limit"], answer["RateLimit-Remaining"]) == ("25", "15")
    refused = call("POST", "/api/v1/tasks", token, {"endpoint": "embed", "inputs": [1, 2]})
    assert (refused.status_code, refused.json()["code"]) == (429, "out_of_tokens")
    assert int(refused["Retry-After"]) > 0
    path = f"/api/v1/buckets/{created.json()['id']}"
    assert call("PATCH", path, admin, {"burst": 100}).json()["burst"] == 100
    assert [item["scope"] for item in call("GET", "/api/v1/buckets", token).json()["items"]] == ["user"]
    assert call("DELETE", path, admin).status_code == 204
    assert call("POST", "/api/v1/tasks", token, {"endpoint": "embed", "inputs": [1, 2]}).status_code == 201


def test_archived_tenant_gets_no_endpoints_and_no_tasks(endpoint, token, admin):
    assert call("POST", "/api/v1/tenants/nlp/archive", admin).status_code == 200
    for path, body in (
        ("endpoints", {"name": "other", "tenant": "nlp", "template": TEMPLATE}),
        ("tasks", {"endpoint": "embed", "input": 1}),
    ):
        answer = call("POST", f"/api/v1/{path}", token, body)
        assert (answer.status_code, answer.json()["code"]) == (409, "tenant_archived"), path


def submitted(token):
    return call("POST", "/api/v1/tasks", token, {"endpoint": "embed", "input": 1})


def test_repeated_submit_reads_no_endpoint(endpoint, token, monkeypatch):
    assert submitted(token).status_code == 201
    monkeypatch.setattr(endpoints, "find", None)
    assert submitted(token).json()["items"][0]["endpoint"] == "embed"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "endpoints/embed/drain", None, 409, "endpoint_draining"),
        ("DELETE", "endpoints/embed?with_queue=true", None, 404, "not_found"),
        ("PATCH", "endpoints/embed", {"allowed_users": []}, 403, "not_permitted"),
        ("PATCH", "endpoints/embed", {"max_queue": 1}, 429, "queue_full"),
        ("POST", "tenants/nlp/archive", None, 409, "tenant_archived"),
        ("POST", "endpoints", {"name": "embed", "tenant": "other", "template": TEMPLATE}, 400, "invalid"),
    ],
)
def test_submit_after_a_change_obeys_it_at_once(endpoint, user, admin, method, path, body, status, code):
    """The endpoint that this process read for the submit before it does not count any more."""
    colleague = make_member(make_tenant("other"), name="eve")
    Membership.objects.create(user=colleague, tenant_id=Tenant.objects.get(name="nlp").pk, role="member")
    token = make_token(colleague)
    assert submitted(token).status_code == 201
    changed = call(method, f"/api/v1/{path}", admin, body)
    assert changed.status_code < 300, changed.content
    answer = submitted(token)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_submit_after_a_change_of_cost_costs_that(endpoint, token, admin):
    assert submitted(token).json()["items"][0]["cost"] == 10.0
    assert call("PATCH", "/api/v1/endpoints/embed", admin, {"cost": 3.0}).status_code == 200
    assert submitted(token).json()["items"][0]["cost"] == 3.0


def test_wait_goes_with_neither_a_dry_run_nor_a_key(endpoint, token):
    """A dry run stores no task, so its wait would never end."""
    body = {"endpoint": "embed", "input": 1}
    answer = call("POST", "/api/v1/tasks?wait=5&dry_run=true", token, body)
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (400, ["wait"])
    dry = call("POST", "/api/v1/tasks?dry_run=true", token, body)
    assert (dry.status_code, dry["Dry-Run"], InferenceRequest.objects.count()) == (200, "true", 0)


def test_lists_have_pages(endpoint, token, admin):
    assert (
        call("POST", "/api/v1/endpoints", token, {"name": "ask", "tenant": "nlp", "template": TEMPLATE}).status_code
        == 201
    )
    for scope in ("user", "tenant"):
        call("POST", "/api/v1/buckets", admin, {"tenant": "nlp", "scope": scope, "rate_per_second": 1, "burst": 9})
    for path, field, values in (("endpoints", "name", ["ask", "embed"]), ("buckets", "scope", ["user", "tenant"])):
        first = call("GET", f"/api/v1/{path}?limit=1", token).json()
        rest = call("GET", f"/api/v1/{path}?limit=5&cursor={first['next_cursor']}", token).json()
        assert ([item[field] for item in first["items"] + rest["items"]], rest["next_cursor"]) == (values, None)
