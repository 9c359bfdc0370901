"""How many statements each endpoint sends to PostgreSQL: a committed baseline, and no more of them with more rows."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import transaction

from jobs.submit import queue_limits
from scheduling import admission
from scheduling.cycle import request_shapes, tenants
from tenants.models import TokenBucket
from tests.api.calls import call
from tests.api.operations import Operation, Stage, operations, writes
from tests.factories import make_member, make_node, make_tenant, make_token, run_cycle, submit

pytestmark = pytest.mark.django_db
# Rewritten by hand when a change is meant: fewer is better, and one more needs a reason. Each operation is in it.
BASELINE: dict[str, int] = json.loads((Path(__file__).parent / "query_counts.json").read_text())


@contextmanager
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the statements of Django's cursors and of our own."""
    sent: list[str] = []
    execute = psycopg.Cursor.execute

    def noted(self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        sent.append(str(query))
        return execute(self, query, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Cursor, "execute", noted)
        yield sent


@pytest.fixture(autouse=True)
def _remembered_for_long(monkeypatch):
    """Keep cached values between two calls on a busy machine."""
    monkeypatch.setattr(queue_limits, "_CACHE_SECONDS", 3600.0)
    for values in (tenants._histories, request_shapes._mixes, admission._clusters):
        monkeypatch.setattr(values, "seconds", 3600.0)
    # As in a request, which is in no transaction, unlike the test.
    monkeypatch.setattr(queue_limits, "_ONLY_LIMITS", queue_limits._GENERATION_AND_LIMITS)


def grow(tenant: Any, member: Any, name: str) -> None:
    """Two more of everything that lists show."""
    for n in range(2):
        node = make_node(name=f"{name}{n}", gpus=2)
        make_member(make_tenant(f"other-{name}{n}"))
        submit(member, tenant, gpu_count=2)
        run_cycle()
        node.end(*node.start_all())
        submit(member, tenant, gpu_count=2)
        run_cycle()
        node.start_all()
        endpoint = {"name": f"{name}{n}", "tenant": tenant.name, "template": {"command": ["x"]}}
        assert call("POST", "/api/v1/endpoints", make_token(member), endpoint).status_code == 201
        task = {"endpoint": endpoint["name"], "inputs": [1, 2]}
        assert call("POST", "/api/v1/tasks", make_token(member), task).status_code == 201
        TokenBucket.objects.create(tenant=tenant, scope="user", user=member, limits=name[0], rate_per_second=n, burst=1)
        member = make_member(tenant)


def counted(monkeypatch: pytest.MonkeyPatch, stage: Stage, row: Operation) -> int:
    """Count the second call, when short-lived caches are filled. Every change is rolled back.
    Jobs are a member's, all else is an admin's."""
    token = stage.member if row.is_write and "/jobs" in row.path else stage.token
    for _ in range(2):
        with transaction.atomic():
            with statements(monkeypatch) as sent:
                response = stage.do(row, token=token)
                response.getvalue()
            assert response.status_code < 300, (row.name, response.content)
            transaction.set_rollback(True)
    return len([row for row in sent if not row.startswith(("SAVEPOINT", "RELEASE SAVEPOINT"))])


def test_baseline_has_each_operation():
    assert set(BASELINE) == {row.name for row in operations()}


def test_each_read_matches_the_baseline_for_any_amount_of_data(monkeypatch):
    stage = Stage()
    result: dict[str, list[int]] = {}
    for name in ("n", "m"):
        grow(stage.tenant, stage.user, f"{name}-grown")
        for row in (row for row in operations() if not row.is_write):
            result.setdefault(row.name, []).append(counted(monkeypatch, stage, row))
    growing = {name: counts for name, counts in result.items() if counts[0] != counts[1]}
    assert not growing, "more statements with more rows"
    assert {name: counts[0] for name, counts in result.items()} == only(result)


def test_each_write_matches_the_baseline(monkeypatch):
    stage = Stage()
    result = {row.name: counted(monkeypatch, stage, row) for row in writes()}
    assert result == only(result)


def only(names: Iterable[str]) -> dict[str, int | None]:
    return {name: BASELINE.get(name) for name in names}


def test_bulk_needs_the_same_queries_at_any_size(monkeypatch):
    token, result = make_token(make_member(make_tenant("nlp"))), []
    make_node(name="n1")
    for jobs in (1, 2, 40):
        body = {"jobs": [{"tenant": "nlp", "command": ["x"]}] * jobs}
        with statements(monkeypatch) as sent:
            assert call("POST", "/api/v1/jobs/bulk", token, body).status_code == 201
        result.append(len(sent))
    assert result[1] == result[2]  # the first one remembers what the others need not ask
