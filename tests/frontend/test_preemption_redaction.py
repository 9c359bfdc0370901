"""No interface reveals the other job of a preemption between tenants (A08)."""

import json

import pytest
from django.db import connection

from frontend.pages.job import rows as jobrows
from jobs.models import JobEvent
from scheduling.cycle import snapshot
from scheduling.engine.model import Policy
from tests.api.calls import call
from tests.factories import make_member, make_node, make_tenant, make_token, make_user, run_cycle, submit
from tests.frontend.browsing import browser, text_of
from tests.frontend.test_viewer_topics import notices

pytestmark = pytest.mark.django_db(transaction=True)
TABS = ("log", "timeline", "gpus", "why", "spec", "events")
RULE = "preempted for a job of another tenant, which has priority 1500"


@pytest.fixture
def stopped(monkeypatch):
    """The owners of a job that is being stopped and of the one that it is stopped for, with tenants and jobs."""
    monkeypatch.setattr(snapshot, "policy", lambda: Policy(min_runtime_seconds=0, preemption_delay_seconds=0))
    node = make_node(gpus=2)
    losing, winning = make_tenant("lemur"), make_tenant("zebra")
    loser, winner = make_member(losing), make_member(winning)
    victim = submit(loser, losing, gpu_count=2, priority=100, requeue=False)
    run_cycle()
    node.start_all()
    _count_from(770001)
    preemptor = submit(winner, winning, gpu_count=2, priority=1500)
    run_cycle()
    return node, (loser, losing, victim), (winner, winning, preemptor)


def _count_from(number):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT setval(pg_get_serial_sequence('jobs_job', 'id'), {number})")


def told(user, tenant, job):
    """Return all texts that a user can read about their job: REST, page, live topic, notices."""
    token = make_token(user)
    paths = ["/jobs", "/queue", "/events?since=0", *(f"/jobs/{job}{part}" for part in ("", "/events", "/explain", "/attempts"))]  # fmt: skip
    yield from ((path, call("GET", f"/api/v1{path}", token).content.decode()) for path in paths)
    client = browser(user)
    yield from ((tab, text_of(client.get(f"/jobs/{job}/?tab={tab}"))) for tab in TABS)
    yield from ((path, text_of(client.get(path))) for path in ("/", "/queue/", "/jobs/"))
    yield "live", json.dumps(jobrows.restrict(jobrows.load([job])[job], [tenant.pk]))
    yield "bell", json.dumps(notices(user, [tenant.pk]))


@pytest.mark.parametrize("is_over", [False, True])
def test_preemption_hides_both_tenants_from_each_other(stopped, is_over):
    node, losing, winning = stopped
    if is_over:
        node.end(*node.held, exit_code=None, signal=15, reason="preempted")
    for place, text in told(*losing):
        assert "zebra" not in text and str(winning[2]) not in text, place
    for place, text in told(*winning):
        assert "lemur" not in text, place
    if is_over:
        for user, tenant, _ in (losing, winning):
            page = text_of(browser(user).get(f"/tenants/{tenant.name}/"))
            assert "another tenant" in page and {"zebra": "lemur", "lemur": "zebra"}[tenant.name] not in page
    data = JobEvent.objects.get(job_id=winning[2], kind="preempting").data
    assert data == {"victims": [], "of_other_tenants": 1, "rule": "priority"}


def test_preemption_names_another_tenant_and_rule(stopped):
    node, (loser, _, victim), _ = stopped
    token = make_token(loser)
    assert call("GET", f"/api/v1/jobs/{victim}", token).json()["reason"]["sentence"] == RULE
    assert call("GET", f"/api/v1/jobs/{victim}/explain", token).json()["sentence"] == RULE
    node.end(*node.held, exit_code=None, signal=15, reason="preempted")
    [attempt] = call("GET", f"/api/v1/jobs/{victim}/attempts", token).json()["items"]
    assert attempt["sentence"] == RULE
    assert RULE in text_of(browser(loser).get(f"/jobs/{victim}/?tab=timeline"))


def test_admins_see_preempting_job(stopped):
    _, (_, _, victim), (_, _, preemptor) = stopped
    token = make_token(make_user(admin=True))
    for path in (f"/jobs/{victim}/events", "/events?since=0"):
        payload = [entry["data"].get("by_job") for entry in call("GET", f"/api/v1{path}", token).json()["items"]]
        assert preemptor in payload, path
