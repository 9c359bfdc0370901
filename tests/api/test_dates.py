"""The list of jobs by date: what is in the span and nothing else, however many pages it takes."""

import pytest

from gpusched.lib.db.sql import execute
from jobs.listing import job_list
from tests.api.calls import call
from tests.factories import make_token, submit

pytestmark = pytest.mark.django_db
DAYS = range(1, 29)


@pytest.fixture
def jobs(member, tenant):
    """Create a job on each day of a month at noon, which ended a day later."""
    ids = [submit(member, tenant) for _ in DAYS]
    for day, job in zip(DAYS, ids, strict=True):
        execute(
            "UPDATE jobs_job SET state = 'completed', submitted_at = %s, ended_at = %s WHERE id = %s",
            [f"2029-01-{day:02d}T12:00:00Z", f"2029-01-{day + 1:02d}T12:00:00Z", job],
        )
    return dict(zip(DAYS, ids, strict=True))


def listed(member, **values):
    """Return all pages, by days."""
    cursor: str | None = ""
    result: list[int] = []
    while cursor is not None:
        query = "&".join(f"{name}={value}" for name, value in {**values, "cursor": cursor}.items() if value)
        answer = call("GET", f"/api/v1/jobs?{query}", make_token(member))
        assert answer.status_code == 200, answer.content
        result += [int(job["submitted_at"][8:10]) for job in answer.json()["items"]]
        cursor = answer.json()["next_cursor"]
    return result


@pytest.mark.parametrize(
    ("values", "days"),
    [
        ({"submitted_after": "2029-01-10", "submitted_before": "2029-01-12"}, [11, 10]),
        ({"submitted_after": "2029-01-10T12:00:00Z", "submitted_before": "2029-01-10T12:00:01Z"}, [10]),
        ({"submitted_after": "2029-01-10T13:00:00%2B01:00", "submitted_before": "2029-01-11"}, [10]),
        ({"submitted_after": "2029-01-27"}, [28, 27]),
        ({"submitted_before": "2029-01-03"}, [2, 1]),
        ({"submitted_before": "1999-01-01"}, []),
        ({"submitted_after": "2099-01-01"}, []),
        ({"ended_after": "2029-01-10", "ended_before": "2029-01-12"}, [10, 9]),
        ({"ended_before": "2029-01-03"}, [1]),
        ({"submitted_after": "2029-01-09", "ended_before": "2029-01-11", "limit": 1}, [9]),
    ],
)
def test_jobs_within_the_span_are_listed(member, jobs, values, days, monkeypatch):
    """Newest first; also where a page looks at few jobs only."""
    assert listed(member, **values) == days
    monkeypatch.setattr(job_list, "MAX_SEARCHED", 3)
    assert listed(member, **values) == days
    monkeypatch.setattr(job_list, "MAX_AT_ONCE", 0)  # as if too many had ended in the span
    assert listed(member, **values) == days


def test_pending_job_has_not_ended(member, tenant, jobs):
    submit(member, tenant)
    assert listed(member, ended_after="2000-01-01") == list(reversed(DAYS))


@pytest.mark.parametrize("name", job_list.FILTERS)
@pytest.mark.parametrize("text", ["yesterday", "2029-13-01", "0001-01-01", "9999-12-31T23:59:59Z", "12", "2029-01-01T"])
def test_invalid_time_is_named(member, name, text):
    """A55"""
    answer = call("GET", f"/api/v1/jobs?{name}={text}", make_token(member))
    assert (answer.status_code, [row["field"] for row in answer.json()["errors"]]) == (400, [name])
