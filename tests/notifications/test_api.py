"""REST of routes, webhooks and deliveries: what is accepted, what is shown, and to whom."""

import base64
import hmac
from typing import Any, get_args

import pytest

from gpusched.lib.db.sql import query
from gpusched.protocol.rest.notifications import NoticeKind
from gpusched.protocol.states import Role, Scope
from notifications import targets
from notifications.models import CHOSEN_KINDS, Route
from notifications.sending.sender import Sender
from tenants.models import tenants
from tests.api.calls import call
from tests.factories import make_member, make_tenant, make_token, make_user
from tests.notifications.receiver import Receiver
from tests.notifications.scenes import work

pytestmark = pytest.mark.django_db(transaction=True)
SECRET_TARGET = "mailtos://ada:hunter22@smtp.example.com?to=ada@example.com"


@pytest.fixture
def owner() -> str:
    return make_token(make_member(make_tenant("nlp"), Role.OWNER, "ada"))


def ask(method: str, path: str, token: str, body=None):
    answer = call(method, f"/api/v1{path}", token, body)
    return answer.status_code, answer.json() if answer.content else None


def test_kinds_of_rest_are_those_of_the_server():
    assert set(get_args(NoticeKind)) == set(CHOSEN_KINDS)


def test_target_is_sealed_and_never_shown(owner: str):
    body = {"name": "mail", "target": SECRET_TARGET, "kinds": ["job_failed"], "tenant": "nlp"}
    status, route = ask("POST", "/notifications/routes", owner, body)
    assert (status, route["target"]) == (201, "E-mail (ada@example.com)")
    stored = query("SELECT sealed_target, target_shown FROM notifications_route")[0]
    assert "hunter22" not in str(stored) and targets.unseal(stored["sealed_target"]) == SECRET_TARGET
    _, listed = ask("GET", "/notifications/routes", owner)
    assert "hunter22" not in str(listed) and listed["items"][0]["name"] == "mail"
    ask("PATCH", f"/notifications/routes/{route['id']}", owner, {"target": SECRET_TARGET.replace("22", "33")})
    assert "hunter" not in str(query("SELECT * FROM lib_auditentry"))
    changed = query("SELECT after FROM lib_auditentry WHERE action = 'route.change'")
    assert changed[0]["after"] == {"target": "changed"}


def test_webhook_is_signed_so_that_a_receiver_can_verify_it(owner: str, sender: Sender, receiver: Receiver):
    _, webhook = ask(
        "POST", "/webhooks", owner, {"name": "ci", "url": receiver.url, "kinds": ["job_failed"], "tenant": "nlp"}
    )
    assert webhook["secret"].startswith("whsec_") and webhook["url"] == f"http://127.0.0.1:{receiver.port}/…"
    status, delivery = ask("POST", f"/webhooks/{webhook['id']}/test", owner)
    assert (status, delivery["state"]) == (200, "pending")
    work(sender)
    [request] = receiver.requests
    assert verifies(request, webhook["secret"])
    assert not verifies(request, "whsec_" + base64.b64encode(b"another").decode())
    _, delivery = ask("GET", f"/notifications/deliveries/{delivery['id']}", owner)
    assert (delivery["state"], delivery["status_code"], delivery["uid"]) == ("sent", 200, request.uid)


def verifies(request, secret: str) -> bool:
    """Does what a library for receivers does."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.{request.body}"
    expected = "v1," + base64.b64encode(hmac.digest(key, signed.encode(), "sha256")).decode()
    return any(hmac.compare_digest(expected, one) for one in request.headers["webhook-signature"].split())


def test_rotation_signs_with_both_secrets_until_its_end(owner: str, sender: Sender, receiver: Receiver):
    _, webhook = ask(
        "POST", "/webhooks", owner, {"name": "ci", "url": receiver.url, "kinds": ["job_failed"], "tenant": "nlp"}
    )
    status, rotated = ask("POST", f"/webhooks/{webhook['id']}/rotate-secret", owner)
    assert status == 200 and rotated["secret"] != webhook["secret"]
    ask("POST", f"/webhooks/{webhook['id']}/test", owner)
    work(sender)
    assert verifies(receiver.requests[0], webhook["secret"]) and verifies(receiver.requests[0], rotated["secret"])
    Route.objects.update(previous_secret_until="2020-01-01T00:00:00Z")
    ask("POST", f"/webhooks/{webhook['id']}/test", owner)
    work(sender)
    assert not verifies(receiver.requests[1], webhook["secret"]) and verifies(receiver.requests[1], rotated["secret"])


def test_replay_sends_again_under_the_same_id(owner: str, sender: Sender, receiver: Receiver):
    _, webhook = ask(
        "POST", "/webhooks", owner, {"name": "ci", "url": receiver.url, "kinds": ["job_failed"], "tenant": "nlp"}
    )
    _, delivery = ask("POST", f"/webhooks/{webhook['id']}/test", owner)
    path = f"/notifications/deliveries/{delivery['id']}/replay"
    assert ask("POST", path, owner)[0] == 409
    work(sender)
    assert ask("POST", path, owner)[0] == 200
    work(sender)
    assert [request.uid for request in receiver.requests] == [delivery["uid"]] * 2
    _, listed = ask("GET", f"/notifications/deliveries?route={webhook['id']}&state=sent", owner)
    assert [(item["id"], item["attempts"]) for item in listed["items"]] == [(delivery["id"], 2)]


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("file:///etc/passwd", "invalid"), ("json://example.com", "invalid"), ("syslog://", "invalid"),
        ("dbus://", "invalid"), ("exec:///bin/true", "invalid"), ("slack://x", "invalid"),
        ("slack://TAAAAAAAA/BAAAAAAAA/abcdefghijklmnopqrstuvwx/?template=/etc/passwd", "invalid"),
        ("ntfy://127.0.0.1/topic", "not_allowed"), ("ntfy://localhost/topic", "not_allowed"),
        ("mailto://10.0.0.1?from=a@x.org&to=b@x.org", "not_allowed"),
        ("gotify://[::ffff:169.254.169.254]/abcdef", "not_allowed"),
    ],
)  # fmt: skip
def test_target_is_refused_by_scheme_option_or_address(owner: str, target: str, code: str):
    body = {"name": "x", "target": target, "kinds": ["job_failed"], "tenant": "nlp"}
    status, problem = ask("POST", "/notifications/routes", owner, body)
    assert (status, problem["errors"][0]["field"], problem["errors"][0]["code"]) == (400, "target", code)
    assert not Route.objects.exists()


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ftp://example.com/", "invalid"), ("https://", "invalid"), ("https://a:b@example.com/", "invalid"),
        ("http://127.0.0.1/", "not_allowed"), ("http://[::1]/", "not_allowed"), ("http://a.localhost/", "not_allowed"),
        ("http://169.254.169.254/latest/meta-data", "not_allowed"), ("http://x:99999/", "invalid"),
        ("https://example.com/\n", "invalid"),
    ],
)  # fmt: skip
def test_webhook_is_refused_by_its_address(owner: str, url: str, code: str):
    status, problem = ask("POST", "/webhooks", owner, {"name": "x", "url": url, "kinds": ["budget"], "tenant": "nlp"})
    assert (status, problem["errors"][0]["field"], problem["errors"][0]["code"]) == (400, "url", code)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kinds": []}, "kinds"), ({"kinds": ["incident"]}, "kinds"), ({"name": "A b"}, "name"),
        ({"time_zone": "Mars/Base"}, "time_zone"), ({"quiet_from": "22:00"}, "quiet_until"),
        ({"quiet_from": "", "quiet_until": ""}, "quiet_until"),
        ({"quiet_from": "22:00", "quiet_until": "07:00+02:00"}, "quiet_until"),
        ({"quiet_from": "25:00", "quiet_until": "07:00"}, "quiet_from"), ({"digest_minutes": -1}, "digest_minutes"),
        ({"digest_minutes": 99999999}, "digest_minutes"),
    ],
)  # fmt: skip
def test_wrong_field_of_a_route_is_named(owner: str, change: dict[str, Any], field: str):
    body = {"name": "x", "target": "ntfy://topic", "kinds": ["job_failed"], "tenant": "nlp", **change}
    status, problem = ask("POST", "/notifications/routes", owner, body)
    assert (status, [error["field"] for error in problem["errors"]]) == (400, [field])


def test_time_zone_that_only_python_knows_is_refused(owner: str, sender: Sender, monkeypatch: pytest.MonkeyPatch):
    """One route with such a zone would stop the messages of all tenants: each claim reads the zones of all routes."""
    monkeypatch.setattr(tenants, "available_timezones", lambda: {"UTC", "Mars/Base"})
    monkeypatch.setattr(tenants, "_time_zones", tenants._time_zones.__wrapped__)  # not cached
    body = {"name": "x", "target": "ntfy://topic", "kinds": ["job_failed"], "tenant": "nlp"}
    body |= {"time_zone": "Mars/Base", "quiet_from": "22:00", "quiet_until": "07:00"}
    status, problem = ask("POST", "/notifications/routes", owner, body)
    sender.tick()
    assert (status, [error["field"] for error in problem["errors"]]) == (400, ["time_zone"])


def test_names_are_unique_per_owner(owner: str):
    body = {"name": "x", "target": "ntfy://topic", "kinds": ["job_failed"], "tenant": "nlp"}
    assert ask("POST", "/notifications/routes", owner, body)[0] == 201
    assert ask("POST", "/notifications/routes", owner, body)[0] == 409
    assert ask("POST", "/notifications/routes", owner, {**body, "tenant": None})[0] == 201


def test_own_routes_are_for_their_user_alone():
    tenant = make_tenant("nlp")
    kim = make_token(make_member(tenant, name="kim"))
    others = [make_token(make_member(tenant, Role.OWNER)), make_token(make_user("root", admin=True))]
    _, route = ask("POST", "/notifications/routes", kim, {"name": "x", "target": "ntfy://topic", "kinds": ["budget"]})
    for other in others:
        assert ask("GET", f"/notifications/routes/{route['id']}", other)[0] == 404
        assert ask("DELETE", f"/notifications/routes/{route['id']}", other)[0] == 404
        assert ask("GET", "/notifications/routes", other)[1]["items"] == []
    assert ask("DELETE", f"/notifications/routes/{route['id']}", kim)[0] == 204


def test_token_of_one_tenant_neither_makes_nor_sees_own_routes():
    """A08: own routes get notices of all tenants of their user."""
    tenant = make_tenant("nlp")
    kim = make_member(tenant, Role.OWNER, name="kim")
    body = {"name": "x", "target": "ntfy://topic", "kinds": ["budget"]}
    _, route = ask("POST", "/notifications/routes", make_token(kim), body)
    limited = make_token(kim, Scope.READ, Scope.WRITE, tenant=tenant)
    assert ask("POST", "/notifications/routes", limited, {**body, "name": "y"})[0] == 403
    assert ask("GET", f"/notifications/routes/{route['id']}", limited)[0] == 404
    assert ask("GET", "/notifications/routes", limited)[1]["items"] == []
    assert ask("POST", "/notifications/routes", limited, {**body, "tenant": "nlp"})[0] == 201


def test_route_that_is_off_gets_nothing_and_gives_up_what_waits(owner: str, sender: Sender, receiver: Receiver):
    body = {"name": "ci", "url": receiver.url, "kinds": ["job_failed"], "tenant": "nlp"}
    _, webhook = ask("POST", "/webhooks", owner, body)
    ask("POST", f"/webhooks/{webhook['id']}/test", owner)
    assert ask("PATCH", f"/webhooks/{webhook['id']}", owner, {"enabled": False})[1]["failed"] == 1
    assert ask("POST", f"/webhooks/{webhook['id']}/test", owner)[0] == 409
    work(sender)
    assert not receiver.requests
