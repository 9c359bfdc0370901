"""Query parameters are parsed as documented, or rejected by name (A55)."""

from typing import Any

import msgspec
import pytest

from gpusched.lib.api.problems import Problem
from gpusched.lib.api.rest import decode
from gpusched.lib.db.sql import query
from tenants.billing import usage_report
from tests.api.calls import call
from tests.factories import make_token, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def token(member):
    return make_token(member)


def refused(path, token):
    answer = call("GET", f"/api/v1/{path}", token)
    assert answer.status_code == 400, (path, answer.status_code, answer.content)
    return [operation["field"] for operation in answer.json()["errors"]]


@pytest.mark.parametrize("path", ["jobs?format=csv", "tenants/nlp/usage?format=xml", "nodes?format=json"])
def test_format_is_not_a_parameter_of_json_endpoints(token, path):
    assert refused(path, token) == ["format"]


def test_download_parameter_is_a_boolean(tenant, member, token):
    job_id = submit(member, tenant)
    assert refused(f"jobs/{job_id}/logs?download=1", token) == ["download"]
    assert call("GET", f"/api/v1/jobs/{job_id}/logs?download=false", token).status_code == 200


@pytest.mark.parametrize("number", ["1_0", "%2B5", "+5", "%205", "1.0", "1e2", "%D9%A5", "0x5", "9" * 5000])
def test_whole_number_has_only_digits(token, number):
    assert refused(f"jobs?limit={number}", token) == ["limit"]


@pytest.mark.parametrize("raw", [rb'{"x": "\ud800"}', rb'{"x": "\ud800abc"}', rb'{"x": "\\ \uDFff \ud800"}'])
def test_half_of_a_surrogate_pair_is_not_called_truncated(raw):
    with pytest.raises(Problem, match="surrogate pair") as message:
        decode(raw, Text)
    assert (message.value.status, message.value.code) == (400, "malformed_json")


@pytest.mark.parametrize("raw", [rb'{"x": "\\ud800', rb'{"x": "\ud800', b'{"x": "a', rb'{"x": "\u12'])
def test_truncated_body_is_called_truncated(raw):
    with pytest.raises(Problem, match="truncated"):
        decode(raw, Text)


class Text(msgspec.Struct):
    x: str


@pytest.mark.parametrize("text", ["2030-01-31T08:00:00 02:00", "2030-01-31T08:00:00%2B02:00", "2030-01-31%2006:00"])
def test_times_are_parsed_alike_everywhere(token, text):
    assert call("GET", f"/api/v1/jobs?submitted_after={text}", token).status_code == 200
    assert call("GET", f"/api/v1/tenants/nlp/usage?from=2030-01-01&to={text}", token).status_code == 200


@pytest.mark.parametrize("text", ["2030-01-31T08:00:00+02:00", "2030-01-31 08:00 +02:00", "2030-01-31 06:00"])
def test_not_before_accepts_every_form_of_time(token, text):
    body = {"tenant": "nlp", "command": ["x"], "not_before": text}
    assert call("POST", "/api/v1/jobs", token, body).json()["job"]["not_before"] == "2030-01-31T06:00:00Z"


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59.999999Z", "2900-01-01", "9999-12-31T23:59:59-14:00"])
@pytest.mark.parametrize("address", ["/api/v1/jobs", "/api/v1/jobs/simulate"])
def test_start_near_the_end_of_time_is_rejected(token, address, text):
    """Such a time was accepted, and its reason, which has no date, stopped every cycle of the scheduler."""
    answer = call("POST", address, token, {"tenant": "nlp", "command": ["x"], "not_before": text})
    assert answer.status_code == 400
    assert [error["field"] for error in answer.json()["errors"]] == ["not_before"]


def test_job_is_found_by_its_number_without_a_scan(tenant, member, monkeypatch):
    submit(member, tenant)
    requested: list[tuple[str, Any]] = []

    def asking(sql: str, params: Any) -> Any:
        requested.append((sql, params))
        return query(sql, params)

    monkeypatch.setattr(usage_report, "query", asking)
    now = query("SELECT now() AS now")[0]["now"]
    usage_report.report([tenant.pk], now.replace(year=2000), now, "job")
    query("SET LOCAL enable_seqscan = off")
    plan = str(query(f"EXPLAIN {requested[-1][0]}", requested[-1][1]))
    assert "jobs_job" in plan and "Seq Scan on jobs_job" not in plan
