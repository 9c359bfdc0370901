"""Reported use of a tenant: equal to the ledger, to its attempts and to wall time, however it is cut
(A53)."""

import csv
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.db import connection, transaction
from django.db.utils import DatabaseError
from django.test import Client
from django.utils import timezone

from gpusched.lib.db.sql import query
from jobs.actions import job_actions
from tenants.api import usage
from tenants.billing import rates, usage_report
from tenants.models import UsageEntry, UsageRefund
from tests.api.calls import call
from tests.factories import identity_for, make_member, make_node, make_tenant, make_token, run_cycle, submit
from tests.nodes.ledger_world import World, live

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 1, tzinfo=UTC)
LONG_AGO = "2000-01-01"


@pytest.fixture
def token(user):
    return make_token(user)


def used(token, by="day", tenant="nlp", **parameters):
    params = "&".join(f"{name}={value}" for name, value in {"from": LONG_AGO, "by": by, **parameters}.items())
    answer = call("GET", f"/api/v1/tenants/{tenant}/usage?{params}", token)
    assert answer.status_code == 200, answer.content
    return answer.json()


def entry(tenant, user, *, hours=1.0, at=START, job=1, attempt=1, rank=0, model="NVIDIA A100-SXM4-80GB", gpus=1.0):
    return UsageEntry.objects.create(
        tenant=tenant, user_id=user.pk, job_id=job, attempt=attempt, rank=rank, device_id=rank, node="n1", gpu_model=model,
        gpus=gpus, started_at=at, ended_at=at + timedelta(hours=hours), cause="exited",
    )  # fmt: skip


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("by", ["user", "job", "model", "day"])
def test_report_equals_the_ledger_and_the_attempts_to_the_second(by):
    """A53: through preemption, a lost node, a requeue, a failure with retry and a cancel."""
    world = World()
    started = [("sync", 0), ("sync", 1), ("sync", 0), ("sync", 1)]
    live(
        world,
        [("submit", "whole"), *started, ("let_pass", 600), ("act", "preempt"), *started, *started, ("let_pass", 5000),
         ("lose", 0), ("let_pass", 60), *started, ("submit", "shared"), *started, ("let_pass", 100_000), ("exit", 0, 3),
         *started, ("act", "requeue"), *started, ("let_pass", 77)],
    )  # fmt: skip
    answer = used(make_token(make_member(world.tenant)), by, world.tenant.name)

    ledger = sum(
        e.gpus * (e.ended_at - e.started_at).total_seconds() for e in UsageEntry.objects.filter(tenant=world.tenant)
    )
    [of_attempts] = query(
        """SELECT coalesce(sum(extract(epoch FROM s.ended_at - s.started_at) * CASE
                      WHEN j.gpu_sharing = 'shared' THEN j.gpu_memory_mb::float8 / 81920
                      ELSE jsonb_array_length(s.device_ids) END), 0)::float8 AS seconds
             FROM nodes_assignment s JOIN jobs_job j ON j.id = s.job_id
            WHERE j.tenant_id = %s AND s.started_at IS NOT NULL""",
        [world.tenant.pk],
    )
    assert answer["total"]["gpu_seconds"] > 100_000
    assert answer["total"]["gpu_seconds"] == pytest.approx(ledger, abs=1)
    assert answer["total"]["gpu_seconds"] == pytest.approx(of_attempts["seconds"], abs=1)
    assert sum(item["gpu_seconds"] for item in answer["items"]) == pytest.approx(ledger, abs=1)
    assert answer["total"]["running_gpu_seconds"] == 0


def test_running_job_counts_until_now_and_only_once_after_its_end(user, tenant, token):
    node = make_node(gpus=4)
    job = submit(user, tenant, gpu_count=2)
    run_cycle()
    [key] = node.start_all()
    with connection.cursor() as cursor:
        for table, column in (
            ("nodes_assignment", "started_at"),
            ("jobs_attempt", "started_at"),
            ("jobs_attempt", "scheduled_at"),
        ):
            cursor.execute(f"UPDATE {table} SET {column} = {column} - interval '1000 s' WHERE job_id = %s", [job])
    running = used(token)["total"]
    assert running["running_gpu_seconds"] == running["gpu_seconds"] == pytest.approx(2000, abs=20)
    assert running["jobs"] == 1
    node.end(key)
    ended = used(token)["total"]
    assert (ended["running_gpu_seconds"], ended["jobs"]) == (0, 1)
    assert running["gpu_seconds"] <= ended["gpu_seconds"] <= running["gpu_seconds"] + 20


def test_only_use_within_the_requested_time_counts(user, tenant, token):
    entry(tenant, user, hours=10)
    requested = {"from": "2026-03-01T02:00:00Z", "to": "2026-03-01T05:30:00Z"}
    answer = used(token, "job", **requested)
    assert answer["total"]["gpu_hours"] == 3.5
    assert (answer["start_at"], answer["end_at"]) == (requested["from"], requested["to"])
    assert used(token, "job", to="2026-03-01")["items"] == []


@pytest.mark.parametrize(
    ("to", "start"),
    [
        ("2026-03-01", "2026-02-01"),
        ("2026-03-01T00:00:01Z", "2026-03-01"),
        ("2026-03-31", "2026-03-01"),
        ("9990-01-01", None),
    ],
)
def test_report_defaults_to_the_present_month(user, tenant, token, to, start):
    """A bill to the first of a month, or to a day in the future, was empty."""
    report = call("GET", f"/api/v1/tenants/nlp/usage?to={to}", token).json()
    assert report["start_at"] == f"{start or timezone.now().strftime('%Y-%m-01')}T00:00:00Z"


def test_report_without_an_end_reaches_the_present_of_the_database(user, tenant, token, monkeypatch):
    """A web host whose clock is ten minutes behind left out the use of these minutes."""
    now = timezone.now()
    entry(tenant, user, hours=1 / 60, at=now - timedelta(minutes=5))
    monkeypatch.setattr(timezone, "now", lambda: now - timedelta(minutes=10))
    assert used(token)["total"]["gpu_seconds"] == pytest.approx(60)


def test_long_use_is_split_at_midnight(user, tenant, token):
    entry(tenant, user, hours=30, at=START + timedelta(hours=20))
    report = {item["key"]: item["gpu_hours"] for item in used(token)["items"]}
    assert report == {"2026-03-01": 4.0, "2026-03-02": 24.0, "2026-03-03": 2.0}


def test_rows_name_users_jobs_and_models(user, tenant, token):
    other = make_member(tenant)
    job = submit(user, tenant, name="train")
    entry(tenant, user, job=job, gpus=0.5)
    entry(tenant, other, job=999_999, model="NVIDIA H100", hours=2)
    assert {i["key"]: i["gpu_hours"] for i in used(token, "user")["items"]} == {user.username: 0.5, other.username: 2.0}
    assert {i["key"]: i["gpu_hours"] for i in used(token, "model")["items"]} == {
        "NVIDIA A100-SXM4-80GB": 0.5,
        "NVIDIA H100": 2.0,
    }
    assert [(i["key"], i["name"], i["user"]) for i in used(token, "job")["items"]] == [
        (str(job), "train", user.username),
        ("999999", "", other.username),
    ]


@pytest.mark.parametrize("by", ["user", "job", "model", "day"])
def test_pages_have_no_gap_and_each_has_the_complete_total(user, tenant, token, by):
    for number in range(5):
        entry(tenant, make_member(tenant), job=number + 8, model=f"M{number}", at=START + timedelta(days=number))
    keys: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = used(token, by, limit=2, **cursor)
        keys += [item["key"] for item in page["items"]]
        assert page["total"]["gpu_hours"] == 5.0
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert len(keys) == len(set(keys)) == 5


def test_tenants_see_only_their_own_use(user, tenant, token):
    entry(other := make_tenant("other"), user)
    assert used(token)["total"]["gpu_hours"] == 0
    assert call("GET", f"/api/v1/tenants/{other.name}/usage", token).status_code == 404


class TestCsv:
    @pytest.mark.parametrize(("query", "accept"), [("&format=csv", "*/*"), ("", "text/csv")])
    def test_csv_has_all_rows_with_a_header(self, user, tenant, token, query, accept):
        for number in range(150):
            entry(tenant, user, job=number)
        answer = Client().get(
            f"/api/v1/tenants/nlp/usage?by=job&from={LONG_AGO}{query}",
            headers={"Authorization": f"Bearer {token}", "Accept": accept},
        )
        assert answer["Content-Type"].startswith("text/csv")
        header, *rows = csv.reader(answer.content.decode().splitlines())
        assert header[:5] == ["job", "name", "user", "gpu_seconds", "gpu_hours"]
        assert len(rows) == 150
        assert sum(float(row[3]) for row in rows) == 150 * 3600

    def test_name_is_never_a_formula(self, user, tenant, token):
        """A55: what a spreadsheet would run is quoted."""
        entry(tenant, user, job=submit(user, tenant, name="=cmd|' /C calc'!A0"))
        answer = call("GET", f"/api/v1/tenants/nlp/usage?by=job&format=csv&from={LONG_AGO}", token)
        assert next(csv.reader(answer.content.decode().splitlines()[1:]))[1] == "'=cmd|' /C calc'!A0"

    def test_too_many_rows_for_a_file_are_rejected_and_none_is_left_out(self, user, tenant, token, monkeypatch):
        monkeypatch.setattr(usage, "MAX_ROWS", 2)
        for number in range(3):
            path = f"/api/v1/tenants/nlp/usage?by=job&format=csv&from={LONG_AGO}"
            entry(tenant, user, job=number)
            answer = call("GET", path, token)
            assert answer.status_code == (200 if number < 2 else 400)
        assert answer.json()["errors"][0]["field"] == "from"

    def test_csv_error_is_a_problem(self, tenant, token):
        answer = call("GET", "/api/v1/tenants/nlp/usage?by=week&format=csv", token)
        assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
        assert answer.json()["errors"][0]["field"] == "by"


@pytest.mark.parametrize(
    "query",
    ["from=yesterday", "to=%00", "from=2030-01-01&to=2029-01-01", "cursor=zzz", "by=job&cursor=WyJhIl0", "limit=0",
     "from=0001-01-01T00:00:00%2B23:59", "cursor=WyJcdTAwMDAiXQ"],
)  # fmt: skip
def test_invalid_time_and_cursor_are_rejected(tenant, token, query):
    """A55"""
    assert call("GET", f"/api/v1/tenants/nlp/usage?{query}", token).status_code == 400


class TestRefunds:
    def lost(self, user, tenant):
        """A gang of two nodes of which one falls under it: one rank is the node's fault, the other only followed."""
        nodes = [make_node(gpus=2), make_node(gpus=2)]
        submit(user, tenant, gpu_count=4, gang_scheduling=True)
        run_cycle()
        keys = [node.start_all()[0] for node in nodes]
        for node, key, reason in zip(nodes, keys, ("node_fault", "signalled"), strict=True):
            node.end(key, exit_code=None, reason=reason)
        return nodes

    def test_attempt_ended_by_a_node_fault_costs_nothing(self, user, tenant, token):
        self.lost(user, tenant)
        entries = UsageEntry.objects.filter(tenant=tenant)
        assert (
            set(UsageRefund.objects.values_list("entry_id", flat=True)) == {e.pk for e in entries} and len(entries) == 4
        )
        assert set(UsageRefund.objects.values_list("reason", flat=True)) == {"node_fault"}
        total = used(token)["total"]
        assert total["refunded_gpu_seconds"] == total["gpu_seconds"] > 0, "the ledger itself stays wall time x GPUs"
        assert total["cost"] == 0

    @pytest.mark.parametrize("reason", ["exited", "signalled", "supervisor_lost"])
    def test_end_that_the_job_may_have_caused_is_not_refunded(self, user, tenant, reason):
        node = make_node(gpus=1)
        submit(user, tenant)
        run_cycle()
        node.end(*node.start_all(), exit_code=1 if reason == "exited" else None, reason=reason)
        assert UsageEntry.objects.count() == 1
        assert not UsageRefund.objects.exists()

    def test_earlier_attempts_are_not_refunded(self, user, tenant):
        node = make_node(gpus=1)
        job_id = submit(user, tenant)
        for reason in ("requeued", "node_fault"):
            run_cycle()
            keys = node.start_all()
            if reason == "requeued":
                job_actions.requeue(job_id, identity_for(user))
            node.end(*keys, exit_code=None, reason=reason)
        assert list(UsageEntry.objects.order_by("attempt").values_list("attempt", flat=True)) == [1, 2]
        assert UsageRefund.objects.get().entry.attempt == 2

    @pytest.mark.parametrize("sql", ["UPDATE tenants_usagerefund SET reason = ''", "DELETE FROM tenants_usagerefund"])
    def test_refunds_never_change(self, user, tenant, sql):
        UsageRefund.objects.create(entry=entry(tenant, user), reason="node_lost")
        with pytest.raises(DatabaseError, match="Cannot update or delete"), transaction.atomic():
            query(sql)

    def test_job_shows_its_refund(self, user, tenant, token):
        rates.set_rate("*", Decimal(2), START, None, "root")
        entry(tenant, user, job=5, attempt=1, hours=3)
        UsageRefund.objects.create(entry=UsageEntry.objects.get(), reason="node_lost", at=timezone.now())
        entry(tenant, user, job=5, attempt=2, hours=1)
        [item] = used(token, "job")["items"]
        assert (item["gpu_hours"], item["refunded_gpu_seconds"]) == (4.0, 3 * 3600)
        assert (item["cost"], item["refunded_cost"]) == (2.0, 6.0)
        end = START + timedelta(days=1)
        assert [day["cost"] for day in usage_report.daily([tenant.pk], START, end, "user")] == [2.0]
