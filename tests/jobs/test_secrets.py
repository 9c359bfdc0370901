"""A secret that a job names reaches the node that runs it and nothing else (A56)."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client, override_settings
from psycopg.conninfo import make_conninfo

from gpusched.management.commands import backup
from gpusched.protocol.agent_messages import Run
from gpusched.protocol.job_request import JobRequest, validate
from gpusched.protocol.states import Role
from tenants import secrets
from tenants.models import Tenant
from tests.factories import FakeAgent, make_member, make_node, make_tenant, make_token, make_user, run_cycle

pytestmark = pytest.mark.django_db(transaction=True)
VALUE = "s3cr3t-ä-hunter2"
READ = (
    "jobs", "jobs?state=pending", "jobs/{id}", "jobs/{id}/events", "jobs/{id}/attempts", "jobs/{id}/explain",
    "queue", "cluster/status", "tenants", "tenants/nlp", "tenants/nlp/secrets", "openapi.json",
)  # fmt: skip


def store_secret(tenant: Tenant, value: str = VALUE, name: str = "wandb") -> None:
    secrets.set_secret(tenant, name, value, actor="grace")


def submit(token: str, key: str = "", status: int = 201, path: str = "jobs", **fields: Any) -> bytes:
    body = {"command": ["true"], "gpu_count": 1, "secrets": ["wandb"], **fields}
    headers = {"Authorization": f"Bearer {token}", **({"Idempotency-Key": key} if key else {})}
    answer = Client().post(f"/api/v1/{path}", json.dumps(body), content_type="application/json", headers=headers)
    assert answer.status_code == status, answer.content
    return answer.content


def job_of(answer: bytes) -> int:
    return int(json.loads(answer)["job_id"])


def everything_in_the_database() -> str:
    """Return all rows of all tables as text, like a dump."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
        dump = []
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT t::text FROM "{table}" t')
            dump += [f"{table} {row[0]}" for row in cursor.fetchall()]
    return "\n".join(dump)


def leaks(text: str | bytes) -> bool:
    content = text.decode(errors="replace") if isinstance(text, bytes) else text
    return any(form in content for form in (VALUE, json.dumps(VALUE)[1:-1], VALUE.encode().hex(), "hunter2"))


def run_of(node: FakeAgent) -> Run:
    [order] = node.sync().assignments
    assert isinstance(order, Run)
    return order


def test_secret_value_is_in_no_answer_page_row_snapshot_or_export(tmp_path) -> None:
    """A56."""
    tenant, node = make_tenant("nlp"), make_node()
    member, admin = make_member(tenant), make_user(admin=True)
    owner = make_token(make_member(tenant, Role.OWNER))
    address = "/api/v1/tenants/nlp/secrets/wandb"
    stored = Client().put(
        address, {"value": VALUE}, content_type="application/json", headers={"Authorization": f"Bearer {owner}"}
    )
    assert stored.status_code == 201
    answer = submit(make_token(member))
    job_id = job_of(answer)
    assert json.loads(answer)["job"]["secrets"] == ["wandb"], "names are not secret"
    run_cycle()
    texts: list[str | bytes] = [stored.content, answer, everything_in_the_database()]
    for token in (make_token(member), make_token(admin)):
        for path in READ:
            read = Client().get(f"/api/v1/{path.format(id=job_id)}", headers={"Authorization": f"Bearer {token}"})
            assert read.status_code == 200, path
            texts.append(read.content)
    texts.append(Client().get("/api/v1/audit", headers={"Authorization": f"Bearer {make_token(admin)}"}).content)
    assert "secret.set" in str(texts[-1])
    browser = Client()
    browser.force_login(admin)
    edited = f"/admin/tenants/tenant/{tenant.pk}/change/"
    for page in ("/", "/jobs/", f"/jobs/{job_id}/", "/admin/", edited):
        texts.append(browser.get(page, follow=True).content)
    for command in ("dump_snapshot", "export_history"):
        call_command(command, str(tmp_path / command))
        texts.append((tmp_path / command).read_bytes())
    assert not [text[:200] for text in texts if leaks(text)]
    assert run_of(node).spec.secrets == {"wandb": VALUE}


def test_only_the_node_that_runs_a_job_gets_its_secrets() -> None:
    """A56."""
    tenant, node, other = make_tenant(), make_node(), make_node()
    store_secret(tenant)
    store_secret(tenant, "for others", "hf")
    store_secret(make_tenant(), "of another tenant")
    submit(make_token(make_member(tenant)))
    run_cycle()
    placed, idle = (node, other) if node.sync().assignments else (other, node)
    assert not idle.sync().assignments
    assert run_of(placed).spec.secrets == {"wandb": VALUE}


def test_job_without_secrets_gets_none() -> None:
    tenant, node = make_tenant(), make_node()
    store_secret(tenant)
    submit(make_token(make_member(tenant)), secrets=[])
    run_cycle()
    assert (run_of(node).spec.secrets, run_of(node).spec.unfit) == ({}, "")


def test_unknown_secret_is_refused_with_the_next_step() -> None:
    tenant = make_tenant("nlp")
    store_secret(tenant)
    store_secret(make_tenant("other"), name="hf")
    make_node()
    token = make_token(make_member(tenant))
    for path in ("jobs", "jobs/simulate"):
        refused = json.loads(submit(token, status=400, path=path, secrets=["wandb", "s3", "hf"]))
        [error] = refused["errors"]
        assert (error["field"], error["code"]) == ("secrets", "unknown")
        assert "'hf', 's3'" in error["message"] and "'wandb'" not in error["message"]
        assert "gpusched secret set hf --tenant nlp" in error["message"]


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["a", "a"], "repeated"),
        ([f"s{i}" for i in range(33)], "too_long"),
        (["../hunter2"], "invalid_name"),
        ([""], "invalid_name"),
    ],
)
def test_invalid_secret_names_are_refused_and_not_echoed(names: list[str], code: str) -> None:
    [error] = validate(JobRequest(command=["true"], secrets=names))
    assert (error.field, error.code) == ("secrets", code) and "hunter2" not in error.message
    assert validate(JobRequest(command=["true"], secrets=[f"s{i}" for i in range(32)])) == []


def test_new_secret_value_reaches_the_next_attempt() -> None:
    tenant, node = make_tenant(), make_node()
    store_secret(tenant)
    submit(make_token(make_member(tenant)))
    run_cycle()
    assert run_of(node).spec.secrets == {"wandb": VALUE}
    started = node.start_all()
    store_secret(tenant, "newer")
    node.end(*started, exit_code=None, reason="node_rebooted")
    run_cycle()
    assert run_of(node).spec.secrets == {"wandb": "newer"}


def test_deleted_secret_fails_only_the_jobs_that_name_it() -> None:
    tenant, node = make_tenant("nlp"), make_node()
    store_secret(tenant)
    token = make_token(make_member(tenant))
    poor, other = job_of(submit(token)), job_of(submit(token, secrets=[]))
    secrets.delete_secret(tenant, "wandb", actor="grace")
    run_cycle()
    orders = {order.spec.job_id: order for order in node.sync().assignments if isinstance(order, Run)}
    assert orders[other].spec.unfit == ""
    message = orders[poor].spec.unfit
    assert orders[poor].spec.secrets == {} and "tenant nlp has no secret 'wandb'" in message
    # For the agent's answer see tests/agent/test_secrets.py.
    node.end(orders[poor].key, exit_code=None, reason="launch_failed", detail=message)
    job = json.loads(Client().get(f"/api/v1/jobs/{poor}", headers={"Authorization": f"Bearer {token}"}).content)
    assert (job["state"], job["reason"]["code"]) == ("failed", "launch_failed")
    assert message in job["reason"]["sentence"]


def test_repeated_submit_returns_the_first_answer_when_the_secret_is_deleted() -> None:
    """A03."""
    tenant = make_tenant()
    store_secret(tenant)
    token = make_token(make_member(tenant))
    make_node()
    first = submit(token, "k")
    secrets.delete_secret(tenant, "wandb", actor="grace")
    assert submit(token, "k") == first
    submit(token, "k", status=409, secrets=["hf"])
    submit(token, "another", status=400)


def test_wrong_secret_key_fails_only_jobs_with_secrets() -> None:
    tenant, node = make_tenant(), make_node()
    store_secret(tenant)
    token = make_token(make_member(tenant))
    submit(token)
    submit(token, secrets=[])
    run_cycle()
    with override_settings(SECRET_KEY="another one, as long as the first, more or less, but not the same"):
        orders = node.sync().assignments
    specs = sorted((order.spec.unfit, order.spec.secrets) for order in orders if isinstance(order, Run))
    assert [values for _, values in specs] == [{}, {}]
    assert [bool(unfit) for unfit, _ in specs] == [False, True] and "SECRET_KEY" in specs[1][0]


@pytest.mark.parametrize(("key", "is_warned"), [("", False), ("of a shell without the settings of the server", True)])
def test_backup_warns_of_a_key_that_cannot_read_the_secrets(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    key: str, is_warned: bool,
) -> None:  # fmt: skip
    """As from a shell without GPUSCHED_SECRET_KEY: a restore of this backup could read no secret."""
    store_secret(make_tenant("nlp"))
    params = connection.get_connection_params()
    url = make_conninfo(
        **{name: params[name] for name in ("host", "port", "user", "password", "dbname") if name in params}
    )
    settings.DATA_DIR, settings.SECRET_KEY = tmp_path, key or settings.SECRET_KEY
    monkeypatch.setattr(backup, "database_url", lambda: url)
    call_command("backup", into=tmp_path / "backups")
    output = capsys.readouterr()
    assert "copy it to another machine" in output.out
    assert ("cannot be read with it" in output.err) is is_warned
