"""A secret reaches the node that runs the job and nobody and nothing else (A56)."""

import json
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client, override_settings

from gpusched.protocol.messages import Run
from jobs import sealed, services
from jobs.models import JobSecrets
from tests.factories import (
    FakeAgent,
    identity_for,
    make_member,
    make_node,
    make_tenant,
    make_token,
    make_user,
    run_cycle,
)

pytestmark = pytest.mark.django_db(transaction=True)
VALUE = "s3cr3t-ä-hunter2"
READ = (
    "jobs", "jobs?state=pending", "jobs/{id}", "jobs/{id}/events", "jobs/{id}/attempts", "jobs/{id}/explain",
    "queue", "cluster/status",
)  # fmt: skip


def submit(token: str, key: str = "", **fields: Any) -> tuple[int, bytes]:
    body = {"command": ["true"], "gpu_count": 1, "secrets": {"wandb": VALUE}, **fields}
    headers = {"Authorization": f"Bearer {token}", **({"Idempotency-Key": key} if key else {})}
    answer = Client().post("/api/v1/jobs", json.dumps(body), content_type="application/json", headers=headers)
    assert answer.status_code in (201, 409), answer.content
    return answer.status_code, answer.content


def job_of(answer: bytes) -> int:
    return int(json.loads(answer)["job_id"])


def everything_in_the_database() -> str:
    """All rows of all tables as text, as a dump would have them."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
        found = []
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT t::text FROM "{table}" t')
            found += [f"{table} {row[0]}" for row in cursor.fetchall()]
    return "\n".join(found)


def leaks(text: str | bytes) -> bool:
    told = text.decode(errors="replace") if isinstance(text, bytes) else text
    return any(form in told for form in (VALUE, json.dumps(VALUE)[1:-1], VALUE.encode().hex(), "hunter2"))


def run_of(node: FakeAgent) -> Run:
    [order] = node.sync().assignments
    assert isinstance(order, Run)
    return order


def test_a_secret_is_in_no_answer_no_page_no_row_no_snapshot_and_no_export(tmp_path) -> None:
    """A56."""
    tenant, node = make_tenant(), make_node()
    member, admin = make_member(tenant), make_user(admin=True)
    answers = [submit(make_token(member), "a key")[1], submit(make_token(member), "a key")[1]]
    job_id = job_of(answers[0])
    assert json.loads(answers[0])["job"]["secrets"] == ["wandb"], "names are no secrets"
    run_cycle()
    texts: list[str | bytes] = [*answers, everything_in_the_database()]
    for token in (make_token(member), make_token(admin)):
        for path in READ:
            answer = Client().get(f"/api/v1/{path.format(id=job_id)}", headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code == 200, path
            texts.append(answer.content)
    browser = Client()
    browser.force_login(admin)
    for page in ("/", "/jobs/", f"/jobs/{job_id}/", f"/admin/jobs/job/{job_id}/change/", "/admin/"):
        texts.append(browser.get(page, follow=True).content)
    for command in ("dump_snapshot", "export_history"):
        call_command(command, str(tmp_path / command))
        texts.append((tmp_path / command).read_bytes())
    assert not [text[:200] for text in texts if leaks(text)]
    assert run_of(node).spec.secrets == {"wandb": VALUE}


def test_only_the_node_that_runs_it_gets_it_and_it_is_deleted_with_the_end_of_the_job() -> None:
    """A56."""
    tenant, node = make_tenant(), make_node()
    job_id = job_of(submit(make_token(make_member(tenant)))[1])
    other = make_node()
    run_cycle()
    placed, idle = (node, other) if node.sync().assignments else (other, node)
    assert not idle.sync().assignments and run_of(placed).spec.secrets
    [key] = placed.start_all()
    assert JobSecrets.objects.filter(job_id=job_id).exists(), "it may be started again"
    placed.end(key)
    assert not JobSecrets.objects.exists()


def test_a_job_that_goes_back_to_the_queue_has_them_again_and_a_cancelled_one_has_none() -> None:
    tenant, node = make_tenant(), make_node()
    member = make_member(tenant)
    job_id = job_of(submit(make_token(member))[1])
    run_cycle()
    node.end(*node.start_all(), exit_code=None, reason="node_rebooted")
    run_cycle()
    assert run_of(node).spec.secrets == {"wandb": VALUE}
    waiting = job_of(submit(make_token(member), gpu_count=8)[1])
    services.cancel(waiting, identity_for(member))
    assert list(JobSecrets.objects.values_list("job_id", flat=True)) == [job_id]


def test_the_same_key_with_another_secret_is_another_request() -> None:
    """A03; what is kept to know a request again cannot be tried out without the key."""
    token = make_token(make_member(make_tenant()))
    make_node()
    first, again, other = submit(token, "k"), submit(token, "k"), submit(token, "k", secrets={"wandb": "else"})
    assert first[1] == again[1] and other[0] == 409
    body = json.dumps({"command": ["true"], "gpu_count": 1, "secrets": {"wandb": VALUE}}).encode()
    import hashlib

    assert hashlib.sha256(body).hexdigest() not in everything_in_the_database()


def test_with_another_secret_key_the_job_says_so_and_its_node_hears_of_the_others() -> None:
    tenant, node = make_tenant(), make_node()
    token = make_token(make_member(tenant))
    submit(token)
    submit(token, secrets={})
    run_cycle()
    with override_settings(SECRET_KEY="another one, as long as the first, more or less, but not the same"):
        orders = node.sync().assignments
    told = sorted((order.spec.unfit, order.spec.secrets) for order in orders if isinstance(order, Run))
    assert [secrets for _, secrets in told] == [{}, {}]
    assert [bool(unfit) for unfit, _ in told] == [False, True] and "SECRET_KEY" in told[1][0]


def test_a_spoiled_seal_is_not_opened() -> None:
    with pytest.raises(sealed.Unreadable):
        sealed.opened("gAAAAABspoiled")
    assert sealed.opened(None) == {}
