"""Secrets of tenants: permission to set, list and delete them, and their storage (A56)."""

import pytest
from django.test import Client, override_settings

from gpusched.lib.db.sql import query
from gpusched.protocol.states import Role
from tenants import secrets
from tenants.models import Secret
from tests.api.calls import call
from tests.factories import make_member, make_tenant, make_token

pytestmark = pytest.mark.django_db
PATH = "/api/v1/tenants/nlp/secrets"
VALUE = "s3cr3t-ä-hunter2"


@pytest.fixture
def owner(tenant):
    return make_token(make_member(tenant, Role.OWNER, "grace"))


def put(token, name="wandb", value=VALUE, status=201):
    answer = call("PUT", f"{PATH}/{name}", token, {"value": value})
    assert answer.status_code == status, answer.content
    assert "hunter2" not in answer.content.decode()
    return answer.json()


def names(token):
    return [item["name"] for item in call("GET", PATH, token).json()["items"]]


def sealed(tenant):
    return {secret.name: secret.sealed for secret in Secret.objects.filter(tenant=tenant)}


def test_members_see_names_setters_and_times_but_never_a_value(tenant, user, owner):
    """A56."""
    put(owner)
    put(owner, "hf", "other")
    answer = call("GET", PATH, make_token(user))
    assert [(item["name"], item["set_by"]) for item in answer.json()["items"]] == [("hf", "grace"), ("wandb", "grace")]
    assert set(answer.json()["items"][0]) == {"name", "set_by", "set_at"}
    assert "hunter2" not in answer.content.decode()


def test_new_value_replaces_the_old_one(tenant, owner):
    first = put(owner)
    other = make_token(make_member(tenant, Role.OWNER, "ada"))
    second = put(other, value="newer", status=200)
    assert (second["set_by"], second["set_at"] > first["set_at"]) == ("ada", True)
    assert secrets.unseal(sealed(tenant), ["wandb"], "nlp") == ({"wandb": "newer"}, "")


def test_deleted_secret_is_gone_and_deleting_it_again_is_404(tenant, owner):
    put(owner)
    assert call("DELETE", f"{PATH}/wandb", owner).status_code == 204
    assert names(owner) == []
    assert call("DELETE", f"{PATH}/wandb", owner).status_code == 404
    assert call("DELETE", f"{PATH}/a%00b", owner).status_code == 404


def test_tenants_have_separate_secrets(tenant, owner):
    put(owner)
    other = make_tenant("other")
    token = make_token(make_member(other, Role.OWNER))
    assert call("GET", "/api/v1/tenants/other/secrets", token).json()["items"] == []
    assert call("DELETE", "/api/v1/tenants/other/secrets/wandb", token).status_code == 404
    assert names(owner) == ["wandb"]


@pytest.mark.parametrize("name", [".hidden", "a b", "ä", "x" * 101, "a%00b", "a%0A", "%2E%2E"])
def test_name_that_is_not_a_file_name_is_rejected(owner, name):
    assert put(owner, name, status=400)["errors"][0]["field"] == "name"


@pytest.mark.parametrize(
    ("value", "code"),
    [("", "required"), ("ä" * 32_769, "too_long"), ("a\x00b", "invalid_character"), ("\x1b[31m", "invalid_character")],
)
def test_value_that_no_job_could_have_is_rejected(owner, value, code):
    assert [(e["field"], e["code"]) for e in put(owner, value=value, status=400)["errors"]] == [("value", code)]


def test_values_are_stored_byte_for_byte(tenant, owner):
    value = "-----BEGIN KEY-----\r\n\tä\n" + "x" * (65_536 - 25 - 1) + "\n"
    assert len(value.encode()) == 65_536
    put(owner, value=value)
    assert secrets.unseal(sealed(tenant), ["wandb"], "nlp") == ({"wandb": value}, "")


def test_error_for_a_body_does_not_repeat_it(owner):
    for body in (b'{"value": "hunter2', b'{"value": ["hunter2"]}', b'{"value": "hunter2\\ud800"}'):
        headers = {"Authorization": f"Bearer {owner}"}
        answer = Client().put(f"{PATH}/wandb", body, content_type="application/json", headers=headers)
        assert answer.status_code == 400 and b"hunter2" not in answer.content, answer.content


def test_tenant_has_at_most_64_secrets_and_can_replace_them(owner, monkeypatch):
    monkeypatch.setattr(secrets, "MAX_SECRETS", 2)
    put(owner, "a")
    put(owner, "b")
    refused = put(owner, "c", status=400)
    assert "delete one" in refused["detail"]
    put(owner, "a", "newer", status=200)
    call("DELETE", f"{PATH}/b", owner)
    put(owner, "c")


def test_history_has_actors_and_no_values(tenant, owner, admin):
    """A56."""
    put(owner)
    put(owner, value="hunter2 newer", status=200)
    call("DELETE", f"{PATH}/wandb", owner)
    audit = call("GET", "/api/v1/audit?action=secret", admin)
    listed = [(secret["action"], secret["actor"], secret["subject"]) for secret in audit.json()["items"]]
    subject = ("grace", "secret wandb of nlp")
    assert listed == [("secret.delete", *subject), ("secret.set", *subject), ("secret.set", *subject)]
    assert "hunter2" not in audit.content.decode() and not any(
        text in audit.content.decode() for text in ("sealed", "gAAAA")
    )
    rows = query(
        "SELECT e.pgh_label, e.name, c.metadata->>'actor' AS actor, c.metadata->>'via' AS via"
        "  FROM tenants_secretevent e JOIN pghistory_context c ON c.id = e.pgh_context_id ORDER BY e.pgh_id"
    )
    assert [tuple(row.values()) for row in rows] == [
        ("insert", "wandb", "grace", "set_secret"),
        ("update", "wandb", "grace", "set_secret"),
        ("delete", "wandb", "grace", "delete_secret"),
    ]
    columns = query("SELECT column_name FROM information_schema.columns WHERE table_name = 'tenants_secretevent'")
    assert "sealed" not in {row["column_name"] for row in columns}


def test_missing_secrets_are_named_with_the_next_step(tenant, owner):
    put(owner)
    values, reason = secrets.unseal(sealed(tenant), ["wandb", "hf"], "nlp")
    assert values == {} and "no secret 'hf'" in reason


def test_wrong_secret_key_or_corrupt_seal_opens_nothing(tenant, owner):
    put(owner)
    with override_settings(SECRET_KEY="another one, as long as the first, more or less, but not the same"):
        values, reason = secrets.unseal(sealed(tenant), ["wandb"], "nlp")
    assert values == {} and "SECRET_KEY" in reason
    assert secrets.unseal({"wandb": "gAAAAABspoiled"}, ["wandb"], "nlp")[0] == {}
    assert secrets.unseal({"wandb": "ä"}, ["wandb"], "nlp")[0] == {}
