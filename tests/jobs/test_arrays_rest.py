"""REST of arrays: submit, list, read, cancel and retry elements."""

import msgspec
import pytest
from django.test import Client

from jobs.actions import job_actions
from jobs.models import Job
from tests.factories import make_node, make_token, run_cycle, submit
from tests.jobs.arrays import submit_array

pytestmark = pytest.mark.django_db


@pytest.fixture
def call(user):
    token = make_token(user)

    def call(method, path, body=None):
        raw = b"" if body is None else msgspec.json.encode(body)
        headers = {"Authorization": f"Bearer {token}"}
        response = Client().generic(method, f"/api/v1{path}", raw, content_type="application/json", headers=headers)
        return response.status_code, response.json()

    return call


def test_array_is_submitted_and_read_as_one_job(call, tenant):
    status, answer = call("POST", "/jobs", {"command": ["x"], "array": {"count": 100, "max_parallel": 3}})
    assert status == 201
    read = call("GET", f"/jobs/{answer['job_id']}")[1]
    assert (
        read["array"]
        == answer["job"]["array"]
        == {"count": 100, "max_parallel": 3, "remaining": 100, "by_state": {"pending": 100}}
    )
    assert [job["id"] for job in call("GET", "/jobs")[1]["items"]] == [answer["job_id"]]


def test_lists_show_an_array_once_and_elements_by_array_id(call, user, tenant):
    make_node(gpus=2)
    array = submit_array(user, tenant, 5)
    run_cycle()
    assert [job["id"] for job in call("GET", "/jobs")[1]["items"]] == [array]
    items = call("GET", f"/jobs?array={array}")[1]["items"]
    assert [(job["array_id"], job["array_index"], job["command"]) for job in items] == [
        (array, 1, ["true"]),
        (array, 0, ["true"]),
    ]


def test_elements_are_listed_in_pages_whether_they_are_jobs_or_not(call, user, tenant, identity):
    make_node(gpus=2)
    array = submit_array(user, tenant, 7)
    run_cycle()
    job_actions.cancel(array, identity, "5")
    listed: list[tuple[int, str, bool]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = call("GET", f"/jobs/{array}/elements?limit=3{cursor and '&cursor=' + cursor}")[1]
        listed += [(item["index"], item["state"], item["job_id"] is None) for item in page["items"]]
        cursor = page["next_cursor"]
    assert listed == [
        (0, "scheduled", False), (1, "scheduled", False), (2, "pending", True), (3, "pending", True),
        (4, "pending", True), (5, "cancelled", True), (6, "pending", True),
    ]  # fmt: skip
    only = call("GET", f"/jobs/{array}/elements?state=waiting&index=1-3,6")[1]["items"]
    assert [item["index"] for item in only] == [2, 3, 6]


def test_elements_are_cancelled_and_retried_by_number(call, user, tenant):
    array = submit_array(user, tenant, 4)
    assert call("POST", f"/jobs/{array}/cancel", {"elements": "1,3"})[1]["job"]["array"]["remaining"] == 2
    assert call("POST", f"/jobs/{array}/retry", {"elements": "3"})[1]["job"]["array"]["remaining"] == 3
    assert call("POST", f"/jobs/{array}/cancel")[1]["status"] == "cancelled"
    assert call("DELETE", f"/jobs/{array}")[0] == 200


@pytest.mark.parametrize("array", [{"count": 0}, {"count": 100_001}, {"count": 5, "max_parallel": 0}, {}, 5, []])
def test_invalid_array_names_the_field(call, tenant, array):
    status, answer = call("POST", "/jobs", {"command": ["x"], "array": array})
    assert (status, answer["errors"][0]["field"].partition(".")[0]) == (400, "array" if array != {} else "count")


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("cancel", {"elements": "9"}, 400, "elements"),
        ("cancel", {"elements": "x"}, 400, "elements"),
        ("cancel", {"elemens": "1"}, 400, "elemens"),
        ("retry", {"elements": "3-1"}, 400, "elements"),
        ("retry", None, 409, None),
        ("requeue", None, 409, None),
    ],
)
def test_invalid_array_action_is_refused(call, user, tenant, path, body, status, field):
    answer = call("POST", f"/jobs/{submit_array(user, tenant, 4)}/{path}", body)
    assert (answer[0], answer[1]["errors"][0]["field"] if field else None) == (status, field)


def test_job_that_is_not_an_array_has_no_elements(call, user, tenant):
    job = submit(user, tenant)
    assert call("GET", f"/jobs/{job}/elements") == (200, {"items": [], "next_cursor": None})
    assert call("POST", f"/jobs/{job}/cancel", {"elements": "1"})[1]["errors"][0]["field"] == "elements"
    assert call("POST", f"/jobs/{job}/retry", {"elements": "1"})[1]["errors"][0]["field"] == "elements"


@pytest.mark.django_db(transaction=True)
def test_repeated_submit_makes_one_array_and_returns_the_same_answer(user, tenant):
    """A03"""
    headers = {"Authorization": f"Bearer {make_token(user)}", "Idempotency-Key": "k"}
    raw = msgspec.json.encode({"command": ["x"], "array": {"count": 9}})
    make_node(gpus=2)
    answers = []
    for _ in range(2):
        response = Client().post("/api/v1/jobs", raw, content_type="application/json", headers=headers)
        answers.append(response.content)
        run_cycle()
    assert (answers[0] == answers[1], Job.objects.filter(array_count=9).count()) == (True, 1)


def test_bulk_accepts_arrays_and_dependencies_on_them(call, tenant):
    jobs = [{"command": ["x"], "array": {"count": 3}, "ref": "a"}, {"command": ["y"], "depends_on": ["a"]}]
    status, answer = call("POST", "/jobs/bulk", {"jobs": jobs})
    assert status == 201
    assert call("GET", f"/jobs/{answer['job_ids'][0]}")[1]["array"]["remaining"] == 3
    assert call("GET", f"/jobs/{answer['job_ids'][1]}")[1]["reason"]["code"] == "dependency"
