"""Each write of the API, done to something that is there, leaves who did it, by which way, and what was before and
after: in the audit, or of a job in its events."""

import re
from dataclasses import dataclass
from typing import Any

import pytest

from gpusched.lib.db.sql import execute, query
from gpusched.lib.models import AuditEntry
from gpusched.urls import api
from jobs.models import JobEvent
from serving.models import InferenceRequest
from tests.api.calls import call, methods_of
from tests.api.operations import PASSWORD
from tests.factories import make_member, make_node, make_tenant, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db


@dataclass(frozen=True)
class Kept:
    """The entry that a write leaves, and which of before and after it has."""

    action: str
    has_before: bool
    has_after: bool
    body: Any = None


ENTRIES = {
    "POST jobs/bulk": Kept("jobs.submit.bulk", False, True, {"jobs": [{"tenant": "nlp", "command": ["x"]}]}),
    "POST tenants": Kept("tenant.create", False, True, {"name": "new"}),
    "PATCH tenants/{name}": Kept("tenant.change", True, True, {"weight": 2}),
    "PUT tenants/{name}/quota": Kept("quota.change", True, True, {"max_gpus": 4}),
    "PUT tenants/{name}/budget": Kept("budget.change", True, True, {"hard_gpu_hours": 9}),
    "PUT tenants/{name}/secrets/{secret}": Kept("secret.set", True, True, {"value": "y"}),
    "DELETE tenants/{name}/secrets/{secret}": Kept("secret.delete", True, False),
    "POST tenants/{name}/service-tokens": Kept("token.create", False, True, {"name": "ci"}),
    "DELETE tenants/{name}/service-tokens/{program_id}": Kept("token.revoke", True, True),
    "POST tenants/{name}/rename": Kept("tenant.rename", True, True, {"name": "renamed"}),
    "POST tenants/{name}/archive": Kept("tenant.archive", True, True, {"cancel_jobs": True}),
    "POST tenants/{archived}/unarchive": Kept("tenant.unarchive", True, True),
    "POST tenants/{name}/members": Kept("member.set", False, True, {"user": "kim"}),
    "PATCH tenants/{name}/members/{member}": Kept("member.set", True, True, {"role": "viewer"}),
    "DELETE tenants/{name}/members/{member}": Kept("member.remove", True, False),
    "POST users": Kept("user.create", False, True, {"username": "new"}),
    "PATCH users/{user}": Kept("user.change", True, True, {"is_admin": True}),
    "POST users/{user}/disable": Kept("user.disable", True, True),
    "POST users/{disabled}/enable": Kept("user.enable", True, True),
    "POST users/{user}/reset-password": Kept("user.reset_password", False, True),
    "PUT me/password": Kept(
        "user.change_password", False, True, {"old_password": PASSWORD, "new_password": "another horse battery"}
    ),
    "POST rates": Kept("rate.set", False, True, {"gpu_model": "H100", "price_per_gpu_hour": 2}),
    "DELETE rates/{rate_id}": Kept("rate.end", True, True),
    "POST tokens": Kept("token.create", False, True, {"name": "t"}),
    "DELETE tokens/{token_id}": Kept("token.revoke", True, True),
    "POST login": Kept("token.create", False, True, {"username": "root", "password": PASSWORD}),
    "POST nodes/join-tokens": Kept("join_token.create", False, True),
    "POST nodes/{node}/cordon": Kept("node.intent", True, True),
    "POST nodes/{node}/uncordon": Kept("node.intent", True, True),
    "POST nodes/{node}/drain": Kept("node.intent", True, True),
    "POST nodes/{node}/rotate-credential": Kept("node.rotate_credential", True, True),
    "PATCH nodes/{node}/labels": Kept("node.labels", True, True, {"labels": {"zone": "a"}}),
    "PATCH nodes/{node}/taints": Kept("node.taints", True, True, {"add": [{"key": "spot"}]}),
    "DELETE nodes/{closed}": Kept("node.remove", True, False),
    "POST gpus/{device_id}/quarantine": Kept("gpu.quarantine", True, True),
    "POST gpus/{device_id}/clear": Kept("gpu.clear", True, True),
    "POST gpus/{device_id}/retire": Kept("gpu.retire", True, False),
    "POST idle-exemptions": Kept("idle_exemption.create", False, True, {"tenant": "other"}),
    "DELETE idle-exemptions/{exemption_id}": Kept("idle_exemption.end", True, False),
    "POST endpoints": Kept(
        "endpoint.create", False, True, {"name": "new", "tenant": "nlp", "template": {"command": ["x"]}}
    ),
    "PATCH endpoints/{endpoint}": Kept("endpoint.change", True, True, {"max_batch": 4}),
    "POST endpoints/{endpoint}/drain": Kept("endpoint.drain", True, True),
    "DELETE endpoints/{unused}": Kept("endpoint.remove", True, True),
    "POST tasks/{task_id}/cancel": Kept("task.cancel", True, True),
    "POST buckets": Kept(
        "bucket.create", False, True, {"tenant": "nlp", "scope": "tenant", "rate_per_second": 1, "burst": 10}
    ),
    "PATCH buckets/{bucket_id}": Kept("bucket.change", True, True, {"burst": 20}),
    "DELETE buckets/{bucket_id}": Kept("bucket.delete", True, False),
    "POST notifications/routes": Kept(
        "route.create", False, True, {"name": "new", "target": "ntfy://topic", "kinds": ["budget"], "tenant": "nlp"}
    ),
    "PATCH notifications/routes/{route_id}": Kept("route.change", True, True, {"kinds": ["budget"]}),
    "DELETE notifications/routes/{route_id}": Kept("route.delete", True, False),
    "POST notifications/routes/{route_id}/test": Kept("route.test", False, True),
    "POST notifications/deliveries/{delivery_id}/replay": Kept("delivery.replay", False, True),
    "POST webhooks": Kept(
        "webhook.create", False, True, {"name": "new", "url": "https://example.com/x", "kinds": ["budget"]}
    ),
    "PATCH webhooks/{webhook_id}": Kept("webhook.change", True, True, {"enabled": False}),
    "DELETE webhooks/{webhook_id}": Kept("webhook.delete", True, False),
    "POST webhooks/{webhook_id}/test": Kept("webhook.test", False, True),
    "POST webhooks/{webhook_id}/rotate-secret": Kept("webhook.rotate_secret", False, True),
    "POST reservations": Kept("reservation.create", False, True, {"tenant": "nlp", "gpus": 1, "for_seconds": 600}),
    "POST reservations/{reservation_id}/renew": Kept("reservation.renew", True, True, {"for_seconds": 7200}),
    "POST reservations/{reservation_id}/shorten": Kept("reservation.shorten", True, True),
    "POST reservations/{reservation_id}/cancel": Kept("reservation.cancel", True, True),
    "PATCH scheduling/policy": Kept("policy.change", True, True, {"online_percent": 20}),
}
# Writes of jobs, with their bodies.
EVENTS: dict[str, Any] = {
    "POST jobs": {"tenant": "nlp", "command": ["x"]},
    "DELETE jobs/{pending}": None,
    "POST jobs/{pending}/cancel": None,
    "POST jobs/{pending}/hold": None,
    "POST jobs/{held}/release": None,
    "POST jobs/{running}/requeue": None,
    "POST jobs/{ended}/retry": None,
    "POST jobs/{pending}/extend": {"max_runtime_minutes": 60},
    "POST jobs/{running}/signal": {"signal": "USR1"},
}
WRITES_NOTHING = {"POST jobs/simulate"}
# Each task names its user: an entry per task, hundreds a second, would bury the others.
ROWS = {"POST tasks"}


@pytest.fixture(scope="module")
def admin(rows_of_module):
    return make_token(make_user("root", admin=True))


@pytest.fixture(scope="module")
def existing(admin):
    """Create an object of each kind that a write needs."""
    tenant = make_tenant("nlp")
    make_tenant("other")
    user = make_member(tenant)

    def made(path: str, body: Any = None, method: str = "POST") -> Any:
        answer = call(method, f"/api/v1/{path}", admin, body)
        assert answer.status_code < 300, answer.content
        return answer.json()

    make_tenant("old")
    make_user("kim")
    made("tenants/old/archive")
    made(f"users/{make_user('away').username}/disable")
    made("tenants/nlp/secrets/wandb", {"value": "x"}, "PUT")
    made("tenants/nlp/budget", {"hard_gpu_hours": 8}, "PUT")
    result = {
        "name": "nlp",
        "archived": "old",
        "user": "kim",
        "disabled": "away",
        "member": user.username,
        "secret": "wandb",
        "node": "n1",
        "closed": "n2",
        "program_id": made("tenants/nlp/service-tokens", {"name": "nightly"})["id"],
        "token_id": made("tokens", {"name": "old"})["id"],
        "rate_id": made("rates", {"gpu_model": "A100", "price_per_gpu_hour": 2})["id"],
        "exemption_id": made("idle-exemptions", {"tenant": "nlp"})["id"],
        "bucket_id": made("buckets", {"tenant": "nlp", "scope": "user", "rate_per_second": 1, "burst": 10})["id"],
    }
    wanted = {"tenant": "nlp", "name": "team", "kinds": ["job_failed"]}
    result["route_id"] = made("notifications/routes", {**wanted, "target": "ntfy://topic"})["id"]
    result["webhook_id"] = made("webhooks", {**wanted, "url": "https://hooks.example.com/x"})["id"]
    result["delivery_id"] = made(f"webhooks/{result['webhook_id']}/test")["id"]
    execute("UPDATE notifications_delivery SET state = 'sent', ended_at = now()")
    node = make_node(gpus=2, name="n1")
    for name in ("embed", "idle"):
        made("endpoints", {"name": name, "tenant": "nlp", "template": {"command": ["x"]}})
    tasks = made("tasks", {"endpoint": "embed", "input": 1})["items"]
    result |= {"endpoint": "embed", "unused": "idle", "task_id": tasks[0]["id"]}
    result["running"] = submit(user, tenant)
    run_cycle()
    node.start_all()
    result |= {state: submit(user, tenant) for state in ("pending", "held", "ended")}
    made(f"jobs/{result['held']}/hold")
    made(f"jobs/{result['ended']}/cancel")
    make_node(gpus=0, name="n2")
    made("nodes/n2/drain")
    [device] = query("SELECT id FROM nodes_device WHERE held_whole = 0")
    make_node(gpus=2, name="n3")
    lease = {"tenant": "nlp", "gpus": 1, "for_seconds": 3600, "lease": True}
    return result | {"device_id": device["id"], "reservation_id": made("reservations", lease)["id"]}


def prepare(route: str, admin: str, existing: dict[str, Any]) -> None:
    """Prepare the state in which the write changes something."""
    if route.endswith("/uncordon"):
        call("POST", f"/api/v1/nodes/{existing['node']}/cordon", admin)
    elif route.endswith("/clear"):
        call("POST", f"/api/v1/gpus/{existing['device_id']}/quarantine", admin)
    elif route.endswith("/retire"):
        execute("UPDATE nodes_device SET health = 'lost' WHERE id = %s", [existing["device_id"]])


def do(route: str, admin: str, existing: dict[str, Any], body: Any) -> None:
    method, _, path = route.partition(" ")
    token = None if path == "login" else admin
    answer = call(method, f"/api/v1/{path.format(**existing)}", token, body)
    assert answer.status_code < 300, answer.content


@pytest.mark.parametrize("route", ENTRIES)
def test_write_records_the_values_before_and_after(route, admin, existing):
    stored = ENTRIES[route]
    prepare(route, admin, existing)
    last = AuditEntry.objects.latest("id").pk
    do(route, admin, existing, stored.body)
    [entry] = AuditEntry.objects.filter(pk__gt=last, action=stored.action)
    assert (entry.actor, entry.via.split(" ")[0]) == ("root", "password" if route == "POST login" else "token")
    assert (bool(entry.before), bool(entry.after)) == (stored.has_before, stored.has_after)
    assert entry.before != entry.after


@pytest.mark.parametrize("route", EVENTS)
def test_write_of_a_job_records_an_event_with_its_actor(route, admin, existing):
    last = JobEvent.objects.latest("id").pk
    do(route, admin, existing, EVENTS[route])
    answer = JobEvent.objects.filter(pk__gt=last).values_list("actor", "via")
    assert ("root", f"token {admin.split('.')[0]}") in list(answer)


def test_task_names_its_user(admin, existing):
    do("POST tasks", admin, existing, {"endpoint": "embed", "input": 1})
    assert [*InferenceRequest.objects.values_list("user__username", flat=True)] == ["root", "root"]


def test_every_write_of_the_api_is_covered():
    """A new operation fails until its audit entry is listed."""
    existing = {
        f"{method} {shape(str(endpoint.pattern))}" for endpoint in api for method in methods_of(endpoint) - {"GET"}
    }
    assert existing == {shape(route) for route in {*ENTRIES, *EVENTS, *ROWS, *WRITES_NOTHING}}


def shape(route: str) -> str:
    return re.sub(r"<[^>]+>|{[^}]+}", "{}", route)
