"""How many statements each endpoint sends to PostgreSQL: a committed baseline, and no more of them with more rows."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from nodes.models import Device
from tests.api.test_access import BODIES, MATRIX, call
from tests.factories import make_member, make_node, make_tenant, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db
# Rewritten by hand when a change is meant: fewer is better, and one more needs a reason.
BASELINE: dict[str, int] = json.loads((Path(__file__).parent / "query_counts.json").read_text())
# In this order: a job is cancelled before it is tried again, and a secret is written before it is deleted. Those about
# jobs are a member's, the others an admin's.
WRITES = [
    ("POST", "/api/v1/jobs"), ("POST", "/api/v1/jobs/bulk"), ("POST", "/api/v1/jobs/simulate"),
    ("POST", "/api/v1/jobs/{own}/hold"), ("POST", "/api/v1/jobs/{own}/release"), ("POST", "/api/v1/jobs/{own}/extend"),
    ("POST", "/api/v1/jobs/{own}/cancel"), ("POST", "/api/v1/jobs/{own}/retry"), ("DELETE", "/api/v1/jobs/{own}"),
    ("POST", "/api/v1/tenants"), ("PATCH", "/api/v1/tenants/nlp"), ("PUT", "/api/v1/tenants/nlp/quota"),
    ("PUT", "/api/v1/tenants/nlp/budget"), ("PUT", "/api/v1/tenants/nlp/secrets/wandb"),
    ("DELETE", "/api/v1/tenants/nlp/secrets/wandb"), ("POST", "/api/v1/tenants/nlp/service-tokens"),
    ("POST", "/api/v1/tokens"), ("POST", "/api/v1/rates"), ("POST", "/api/v1/idle-exemptions"),
    ("POST", "/api/v1/nodes/join-tokens"), ("POST", "/api/v1/nodes/n1/cordon"), ("POST", "/api/v1/nodes/n1/uncordon"),
    ("PATCH", "/api/v1/scheduling/policy"),
]  # fmt: skip
READS = [key for key in MATRIX if key[0] == "GET" and "999999" not in key[1]] + [("GET", "/api/v1/gpus/{gpu}/samples")]


@contextmanager
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is sent while it lasts, by Django's cursors and by our own."""
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
    """What is remembered for seconds is not forgotten between two calls on a busy machine."""
    for name in (
        "jobs.services._ROOM_SECONDS",
        "scheduling.entitlements.HISTORY_FRESH_SECONDS",
        "scheduling.requests._FRESH_SECONDS",
        "scheduling.services._FRESH_SECONDS",
    ):
        monkeypatch.setattr(name, 3600.0)


@pytest.fixture
def nlp():
    return make_tenant("nlp")


def grow(tenant: Any, member: Any, name: str) -> int:
    """Two more of everything that lists show; gives a waiting job."""
    for n in range(2):
        node = make_node(name=f"{name}{n}", gpus=2)
        make_member(make_tenant(f"other-{name}{n}"))
        submit(member, tenant, gpu_count=2)
        run_cycle()
        node.end(*node.start_all())
        submit(member, tenant, gpu_count=2)
        run_cycle()
        node.start_all()
    return submit(member, tenant)


def counted(monkeypatch: pytest.MonkeyPatch, method: str, path: str, token: str, **names: int) -> int:
    body, path = BODIES.get((method, path)), path.format(**names)
    with statements(monkeypatch) as sent:
        response = call(method, path, token, body)
        response.getvalue()
    assert response.status_code < 300, response.content
    return len([one for one in sent if not one.startswith(("SAVEPOINT", "RELEASE SAVEPOINT"))])


def off(methods: str | tuple[str, ...], found: dict[str, int]) -> dict[str, tuple[int | None, int | None]]:
    """Endpoint → (baseline, now), where they differ."""
    known = {name: count for name, count in BASELINE.items() if name.startswith(methods)}
    both = {name: (known.get(name), found.get(name)) for name in known | found}
    return {name: (old, new) for name, (old, new) in both.items() if old != new}


def test_each_endpoint_sends_what_the_baseline_says_whatever_there_is(nlp, monkeypatch):
    admin, member = make_token(make_user(admin=True)), make_member(nlp)
    found: dict[str, list[int]] = {}
    for name in ("n", "m"):
        own = grow(nlp, member, name)
        for method, path in READS:
            at = path.format(own=own, gpu=Device.objects.values_list("pk", flat=True)[0])
            call(method, at, admin)  # what is remembered for seconds is remembered now
            found.setdefault(f"{method} {path}", []).append(counted(monkeypatch, method, at, admin))
    growing = {name: counts for name, counts in found.items() if counts[0] != counts[1]}
    assert not growing, "more statements with more rows"
    assert not off("GET", {name: counts[0] for name, counts in found.items()})


def test_each_write_sends_what_the_baseline_says(nlp, monkeypatch):
    member = make_member(nlp)
    token, admin = make_token(member), make_token(make_user(admin=True))
    make_node(name="n1")
    own = submit(member, nlp, max_runtime_minutes=30)
    call("POST", "/api/v1/jobs", token, BODIES["POST", "/api/v1/jobs"])
    call("POST", "/api/v1/jobs/simulate", token, BODIES["POST", "/api/v1/jobs"])
    call("GET", "/api/v1/me", admin)
    found = {
        f"{method} {path}": counted(monkeypatch, method, path, token if "/jobs" in path else admin, own=own)
        for method, path in WRITES
    }
    assert not off(("POST", "PUT", "PATCH", "DELETE"), found)


def test_a_bulk_sends_as_many_however_large_it_is(nlp, monkeypatch):
    token, found = make_token(make_member(nlp)), []
    make_node(name="n1")
    for jobs in (1, 2, 40):
        body = {"jobs": [{"tenant": "nlp", "command": ["x"]}] * jobs}
        with statements(monkeypatch) as sent:
            assert call("POST", "/api/v1/jobs/bulk", token, body).status_code == 201
        found.append(len(sent))
    assert found[1] == found[2]  # the first one remembers what the others need not ask
