"""Lists over a long history: no filter makes PostgreSQL look at all of it for one page."""

from itertools import combinations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

import jobs.api.jobs
import jobs.listing.job_list
from gpusched.lib.api.rest import encode_cursor
from gpusched.lib.db.sql import execute, query
from gpusched.protocol.arrays import ArrayRequest
from jobs.listing import representation
from tests.api.calls import call
from tests.factories import make_member, make_tenant, make_token, make_user, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def nlp():
    return make_tenant("nlp")


@pytest.mark.parametrize("searched", [1, 3, 7, 20, 10_000])
def test_search_by_name_has_no_gap_whatever_the_scan_limit(nlp, monkeypatch, searched):
    monkeypatch.setattr(jobs.listing.job_list, "MAX_SEARCHED", searched)
    user = make_member(nlp)
    ids = [submit(user, nlp, name="rare" if n in (1, 2, 11) else "common") for n in range(20)]
    token, result, cursor, pages = make_token(user), [], "", 0
    while True:
        page = call("GET", f"/api/v1/jobs?name=RARE&limit=2{cursor}", token).json()
        result += [job["id"] for job in page["items"]]
        pages += 1
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert result == [ids[11], ids[2], ids[1]]
    assert pages <= 20 / searched + 3


def grow(job: int, user: int, count: int) -> None:
    """Insert this many copies of the job into the history."""
    execute("UPDATE jobs_job SET state = 'completed', ended_at = now(), user_id = %s WHERE id = %s", [user, job])
    result = query("SELECT attname FROM pg_attribute WHERE attrelid = 'jobs_job'::regclass AND attnum > 0")
    names = ", ".join(row["attname"] for row in result if row["attname"] != "id")
    execute(
        f"INSERT INTO jobs_job ({names}) SELECT {names} FROM jobs_job, generate_series(1, %s) WHERE id = %s",
        [count, job],
    )


def test_lists_walk_an_index(nlp):
    """With many jobs of a large tenant, few of another, and the statistics of them."""
    small, seldom = make_tenant("small"), make_user("seldom")
    grow(submit(make_member(nlp), nlp), make_member(nlp).pk, 8_000)
    grow(submit(make_member(small), small), seldom.pk, 20)
    execute("ANALYZE jobs_job")
    for values, visible, index in (
        ({}, None, "jobs_job_pkey"),
        ({"tenant": "small"}, None, "job_by_tenant"),
        ({}, [small.pk], "job_by_tenant"),
        ({"user": "seldom"}, None, "job_by_user"),
        ({"state": "waiting"}, None, ("job_unfinished", "job_waiting_by_tenant")),
        ({"cursor": encode_cursor("jobs", 1000)}, None, "jobs_job_pkey"),
    ):
        location, params = jobs.listing.job_list._condition(values, visible)
        plan = query(f"EXPLAIN {representation._SELECT} WHERE {location} ORDER BY j.id DESC LIMIT 100", params)
        text = "\n".join(row["QUERY PLAN"] for row in plan)
        indexes = (index,) if isinstance(index, str) else index
        assert any(f"{name} on jobs_job" in text for name in indexes), (values, text)


ONE_EACH = {
    "tenant": "small", "state": "failed,pending", "user": "seldom", "name": "rare", "submitted_after": "2029-01-10",
    "submitted_before": "2029-01-12", "ended_after": "2029-01-10", "ended_before": "2029-01-12", "cursor": encode_cursor("jobs", 1000),
}  # fmt: skip


def test_no_pair_of_filters_scans_all_jobs(nlp):
    """All documented filters, in pairs; a member of one tenant has one more filter."""
    small, seldom = make_tenant("small"), make_user("seldom")
    grow(submit(make_member(nlp), nlp), make_member(nlp).pk, 8_000)
    grow(submit(make_member(small), small), seldom.pk, 20)
    array = submit(make_member(nlp), nlp, array=ArrayRequest(count=5))
    at = "'2029-01-01'::timestamptz + (id - (SELECT min(id) FROM jobs_job)) * interval '5 minutes'"
    execute(f"UPDATE jobs_job SET submitted_at = {at}, ended_at = {at} WHERE ended_at IS NOT NULL")
    execute("ANALYZE jobs_job")
    values = {**ONE_EACH, "array": str(array)}
    assert {*values, "limit"} == {*jobs.api.jobs._FILTERS}
    for names in [*combinations(values, 1), *combinations(values, 2)]:
        for visible in (None, [small.pk])[: 3 - len(names)]:
            with CaptureQueriesContext(connection) as requested:
                jobs.listing.job_list.list_jobs({name: values[name] for name in names}, visible, 1)
            for one in requested.captured_queries:
                text = "\n".join(row["QUERY PLAN"] for row in query("EXPLAIN " + one["sql"].replace("%", "%%")))
                assert "Seq Scan on jobs_job" not in text, (names, visible, one["sql"], text)
