"""How many statements each endpoint sends to PostgreSQL: a committed baseline, and no more of them with more rows."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.api.test_access import BODIES, MATRIX, call
from tests.factories import make_member, make_node, make_tenant, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db
# Rewritten by hand when a change is meant: fewer is better, and one more needs a reason.
BASELINE: dict[str, int] = json.loads((Path(__file__).parent / "query_counts.json").read_text())
WRITES = [("POST", "/api/v1/jobs"), ("POST", "/api/v1/jobs/simulate"), ("POST", "/api/v1/jobs/{own}/cancel")]
READS = [key for key in MATRIX if key[0] == "GET" and "999999" not in key[1]]


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


def counted(monkeypatch: pytest.MonkeyPatch, method: str, path: str, token: str) -> int:
    body = BODIES.get((method, path))
    with statements(monkeypatch) as sent:
        response = call(method, path, token, body)
        response.getvalue()
    assert response.status_code < 300, response.content
    return len([one for one in sent if not one.startswith(("SAVEPOINT", "RELEASE SAVEPOINT"))])


def off(method: str, found: dict[str, int]) -> dict[str, tuple[int | None, int | None]]:
    """Endpoint → (baseline, now), where they differ."""
    known = {name: count for name, count in BASELINE.items() if name.startswith(method)}
    both = {name: (known.get(name), found.get(name)) for name in known | found}
    return {name: (old, new) for name, (old, new) in both.items() if old != new}


def test_each_endpoint_sends_what_the_baseline_says_whatever_there_is(nlp, monkeypatch):
    admin, member = make_token(make_user(admin=True)), make_member(nlp)
    found: dict[str, list[int]] = {}
    for name in ("n", "m"):
        own = grow(nlp, member, name)
        for method, path in READS:
            at = path.format(own=own)
            call(method, at, admin)  # what is remembered for seconds is remembered now
            found.setdefault(f"{method} {path}", []).append(counted(monkeypatch, method, at, admin))
    growing = {name: counts for name, counts in found.items() if counts[0] != counts[1]}
    assert not growing, "more statements with more rows"
    assert not off("GET", {name: counts[0] for name, counts in found.items()})


def test_submits_and_cancels_send_what_the_baseline_says(nlp, monkeypatch):
    member = make_member(nlp)
    make_node(name="n1")
    token = make_token(member)
    own = submit(member, nlp)
    call("POST", "/api/v1/jobs", token, BODIES["POST", "/api/v1/jobs"])
    call("POST", "/api/v1/jobs/simulate", token, BODIES["POST", "/api/v1/jobs"])
    found = {
        f"{method} {path}": counted(monkeypatch, method, path.format(own=own), token) for method, path in WRITES
    }  # fmt: skip
    assert not off("POST", found)
