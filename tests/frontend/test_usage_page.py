"""Usage: allocated, used and held idle hours by key, visibility and CSV."""

import csv
import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from urllib.parse import parse_qsl

import pytest
from django.utils import timezone

from gpusched.lib.db.sql import execute
from tenants.billing import rates
from tenants.models import UsageEntry
from tests.factories import make_member, make_tenant, make_user
from tests.frontend.browsing import browser, found, text_of

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 1, 22, tzinfo=UTC)
PERIOD = "from=2026-03-01&to=2026-03-03"


@pytest.fixture
def admin():
    return browser(make_user("root", admin=True))


def use(tenant, user, hours, *, job=1, model="NVIDIA A100", idle=0.0):
    """A GPU from 22:00 on; so many of the hours idle, on the first day."""
    UsageEntry.objects.create(
        tenant=tenant, user_id=user.pk, job_id=job, attempt=1, rank=0, device_id=job, node="n1", gpu_model=model,
        gpus=1.0, started_at=START, ended_at=START + timedelta(hours=hours), cause="exited",
    )  # fmt: skip
    execute(
        "INSERT INTO nodes_heldday (day, tenant_id, user_id, gpu_model, held_seconds, idle_seconds)"
        " VALUES ('2026-03-01', %s, %s, %s, %s, %s)",
        [tenant.pk, user.pk, model, hours * 3600, idle * 3600],
    )


def rows(page):
    """{key: (GPU-hours, used, idle)} of the table."""
    cell = r'data-label="{}" class="num">(?:<b>)?([\d.,]+)'
    return {
        row[0]: tuple(float(found(cell.format(name), row[1])) for name in ("GPU-hours", "Used", "Held idle"))
        for row in re.findall(r'(?s)<tr data-key="([^"]+)">(.*?)</tr>', page[page.index('id="rows"') :])
    }


def test_usage_shows_allocated_used_and_idle_by_key(nlp, member, admin):
    """A53."""
    other = make_tenant("vision")
    use(nlp, member, 4, idle=1)
    use(other, make_member(other, name="eve"), 2, job=2, model="NVIDIA H100")
    by_tenant = text_of(admin.get(f"/usage/?{PERIOD}"))
    assert rows(by_tenant) == {"nlp": (4, 3, 1), "vision": (2, 2, 0)}
    assert "6</b><span>GPU-hours allocated" in by_tenant
    assert rows(text_of(admin.get(f"/usage/?{PERIOD}&by=user"))) == {member.username: (4, 3, 1), "eve": (2, 2, 0)}
    assert rows(text_of(admin.get(f"/usage/?{PERIOD}&by=model"))) == {
        "NVIDIA A100": (4, 3, 1),
        "NVIDIA H100": (2, 2, 0),
    }
    assert rows(text_of(admin.get(f"/usage/?{PERIOD}&tenant=vision"))) == {"vision": (2, 2, 0)}


def test_usage_chart_has_every_utc_day(nlp, member, admin):
    use(nlp, member, 5)
    page = text_of(admin.get(f"/usage/?{PERIOD}"))
    payload = json.loads(found(r'(?s)<script id="usage-data" type="application/json">(.*?)</script>', page))
    assert payload == {
        "days": ["2026-03-01", "2026-03-02", "2026-03-03"],
        "lines": [{"label": "nlp", "values": [2.0, 3.0, 0.0]}],
    }


def test_usage_chart_sums_many_keys_as_others(nlp, admin):
    for number in range(9):
        use(nlp, make_member(nlp, name=f"u{number}"), 9 - number, job=number)
    page = text_of(admin.get(f"/usage/?{PERIOD}&by=user"))
    payload = json.loads(found(r'(?s)<script id="usage-data" type="application/json">(.*?)</script>', page))
    assert [line["label"] for line in payload["lines"]] == [*(f"u{n}" for n in range(7)), "others"]
    assert sum(payload["lines"][-1]["values"]) == 2 + 1


def test_usage_is_restricted_to_own_tenants(nlp, member, admin):
    """A08."""
    other = make_tenant("vision")
    use(nlp, member, 1)
    use(other, make_member(other, name="eve"), 2, job=2)
    client = browser(member)
    assert list(rows(text_of(client.get(f"/usage/?{PERIOD}")))) == ["nlp"]
    for path in (f"/usage/?{PERIOD}&by=user&tenant=vision", f"/usage/?{PERIOD}&by=user"):
        assert list(rows(text_of(client.get(path)))) == [member.username]
    assert "This tenant does not exist" in text_of(client.get("/usage/?tenant=vision"))


def test_usage_csv_has_all_days_and_escapes_formulas(nlp, admin):
    use(nlp, make_member(nlp, name="=1+1"), 5, idle=0.5)
    response = admin.get(f"/usage/?{PERIOD}&by=user&format=csv")
    assert (
        response["Content-Type"].startswith("text/csv")
        and "usage-by-user-2026-03-01" in response["Content-Disposition"]
    )
    assert list(csv.reader(text_of(response).splitlines())) == [
        ["day", "user", "gpu_hours", "idle_gpu_hours", "cost"],
        ["2026-03-01", "'=1+1", "2.0", "0.5", "0.0"],
        ["2026-03-02", "'=1+1", "3.0", "0.0", "0.0"],
    ]


def test_idle_hours_never_exceed_allocated_hours(nlp, member, admin):
    """Samples may tell of more than the ledger."""
    use(nlp, member, 2, idle=3)
    assert rows(text_of(admin.get(f"/usage/?{PERIOD}"))) == {"nlp": (2, 0, 2)}


def test_usage_links_keep_other_parameters(nlp, admin):
    page = text_of(admin.get(f"/usage/?{PERIOD}&by=user&show=cost&tenant=nlp")).replace("&amp;", "&")
    requested = [dict(parse_qsl(href)) for href in re.findall(r'href="\?([^"]+)"', page)]
    usual = {"from": "2026-03-01", "to": "2026-03-03", "by": "user", "show": "cost", "tenant": "nlp"}
    assert {**usual, "format": "csv"} in requested
    assert {**usual, "by": "model"} in requested
    assert {**usual, "show": "gpu_hours"} in requested
    assert all(entry.keys() >= usual.keys() for entry in requested)
    today = timezone.now().date()
    end = today.replace(day=1) - timedelta(days=1)
    assert {**usual, "from": str(end.replace(day=1)), "to": str(end)} in requested, "last month"
    assert {**usual, "from": str(today - timedelta(days=6)), "to": str(today)} in requested, "7 days"


def test_usage_shows_cost(nlp, member, admin):
    use(nlp, member, 5)
    assert "No rates are set" in text_of(admin.get(f"/usage/?{PERIOD}"))
    rates.set_rate("A100", Decimal(2), START - timedelta(days=1), None, "root")
    page = text_of(admin.get(f"/usage/?{PERIOD}&show=cost"))
    payload = json.loads(found(r'(?s)<script id="usage-data" type="application/json">(.*?)</script>', page))
    assert payload["lines"][0]["values"] == [4.0, 6.0, 0.0]


@pytest.mark.parametrize(
    "requested", ["from=x", "to=2026-13-01", "from=2026-03-02&to=2026-03-01", "from=0001-01-01", "by=x&show=y"]
)
def test_usage_reports_invalid_period_and_shows_default(requested, nlp, admin):
    response = admin.get(f"/usage/?{requested}")
    assert response.status_code == 200
    assert ("The last 30 days are shown" in text_of(response)) == requested.startswith(("from", "to"))
    assert str(timezone.now().date()) in text_of(response)


@pytest.mark.parametrize(
    ("requested", "sentence"),
    [("from=yesterday", "Write days like 2030-01-31."), ("tenant=nowhere", "This tenant does not exist, or you")],
)
def test_usage_csv_refuses_what_the_page_replaces(nlp, admin, requested, sentence):
    response = admin.get(f"/usage/?{requested}&format=csv")
    assert (response.status_code, response["Content-Type"]) == (400, "text/plain; charset=utf-8")
    assert text_of(response).startswith(sentence)


def test_usage_until_the_last_day_of_the_calendar_is_until_now(nlp, admin):
    assert admin.get("/usage/?from=9999-12-01&to=9999-12-31").status_code == 200
