"""Job arrays: one record whose elements become jobs as they are placed, with max_parallel, cancel and retry of a part."""

from collections import Counter

import msgspec
import pytest
from django.test import Client

from gpusched.lib.problems import Problem
from gpusched.lib.sql import query
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.jobs import JobRequest
from gpusched.protocol.messages import Run
from jobs import representation, services
from jobs.models import Job, JobEvent
from scheduling.why import explain
from tests.factories import identity_for, make_member, make_node, make_tenant, make_token, run_cycle, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant():
    return make_tenant("nlp")


@pytest.fixture
def user(tenant):
    return make_member(tenant, name="ada")


@pytest.fixture
def who(user):
    return identity_for(user)


def submit_array(user, tenant, count, max_parallel=None, **fields):
    return submit(user, tenant, array=ArrayRequest(count=count, max_parallel=max_parallel), name="sweep", **fields)


def shown(job_id):
    return representation.select("j.id = %s", [job_id])[0]


def states(array_id):
    """{index: state} of the elements that are jobs."""
    return dict(Job.objects.filter(array_id=array_id).order_by("array_index").values_list("array_index", "state"))


def ends(node, keys, code=0):
    node.end(*keys, exit_code=code)
    run_cycle()


def test_an_array_is_one_record_until_its_elements_are_placed(user, tenant):
    array = submit_array(user, tenant, 10_000)
    assert Job.objects.count() == 1
    assert shown(array)["array"] == {
        "count": 10_000, "max_parallel": None, "remaining": 10_000, "by_state": {"pending": 10_000},
    }  # fmt: skip
    node = make_node(gpus=4)
    run_cycle()
    job = shown(array)
    assert (job["state"], job["attempt"], job["nodes"]) == ("running", 0, [])
    assert job["array"]["by_state"] == {"scheduled": 4, "pending": 9_996}
    assert states(array) == dict.fromkeys(range(4), "scheduled")
    assert [one["name"] for one in representation.select("j.array_id = %s", [array], "ORDER BY j.id")][3] == "sweep[3]"
    node.start_all()
    assert shown(array)["array"]["by_state"] == {"running": 4, "pending": 9_996}
    assert Job.objects.get(pk=array).started_at is not None


def test_each_element_is_told_its_number_and_what_the_array_runs(user, tenant):
    node = make_node(gpus=2)
    array = submit_array(user, tenant, 3, command=["python", "x.py"], environment={"LR": "1"})
    run_cycle()
    specs = {order.spec.job_id: order.spec for order in node.sync().assignments if isinstance(order, Run)}
    numbers = {job.pk: job.array_index for job in Job.objects.filter(array_id=array)}
    assert {numbers[job]: spec.environment["GPUSCHED_ARRAY_INDEX"] for job, spec in specs.items()} == {0: "0", 1: "1"}
    assert {(tuple(spec.argv), spec.environment["LR"]) for spec in specs.values()} == {(("python", "x.py"), "1")}


def test_what_ends_makes_room_for_the_next_until_all_have_completed(user, tenant):
    node, array = make_node(gpus=2), submit_array(user, tenant, 5)
    after = submit(user, tenant, depends_on=[array], gpu_count=0)
    for _ in range(3):
        run_cycle()
        ends(node, node.start_all())
    assert states(array) == dict.fromkeys(range(5), "completed")
    job = shown(array)
    assert (job["state"], job["reason"]["code"], job["array"]["remaining"]) == ("completed", "array_ended", 0)
    assert job["reason"]["sentence"].startswith("of its elements 5 completed, 0 failed")
    kinds = list(JobEvent.objects.filter(job_id=array).values_list("kind", flat=True))
    assert kinds == ["submitted", "started", "ended"]
    assert Job.objects.get(pk=after).state != "pending" or Job.objects.get(pk=after).open_dependencies == 0


def test_never_more_than_max_parallel_are_live(user, tenant, who):
    node, array = make_node(gpus=8), submit_array(user, tenant, 6, 2)
    run_cycle()
    run_cycle()
    assert Counter(states(array).values()) == {"scheduled": 2}
    reason = shown(array)["reason"]
    assert (reason["code"], reason["sentence"]) == ("max_parallel", "max_parallel 2 of this array are placed or run: 2")
    told = explain(array, who)
    assert told["counterfactual"] == {
        "change": "max_parallel", "to": 3, "starts": True, "sentence": "with max_parallel 3 it would start",
    }  # fmt: skip
    ends(node, node.start_all()[:1])
    assert Counter(states(array).values()) == {"running": 1, "completed": 1, "scheduled": 1}


def test_an_element_that_waits_again_comes_before_the_next(user, tenant, who):
    node, array = make_node(gpus=8), submit_array(user, tenant, 4, 1, max_retries=1)
    run_cycle()
    [key] = node.start_all()
    services.requeue(Job.objects.get(array_id=array).pk, who)
    node.end(key, reason="requeued", exit_code=None, signal=15)
    run_cycle()
    assert states(array) == {0: "scheduled"}
    assert Job.objects.get(array_id=array).attempt == 2


def test_a_part_is_cancelled_whatever_it_does(user, tenant, who):
    node, array = make_node(gpus=2), submit_array(user, tenant, 6)
    run_cycle()
    keys = node.start_all()
    message = services.cancel(array, who, "1-2,5")
    assert message == f"array {array}: 2 elements are cancelled, 1 element is being stopped"
    assert shown(array)["array"]["by_state"] == {"pending": 2, "running": 1, "stopping": 1, "cancelled": 2}
    node.end(keys[1], reason="cancelled", exit_code=None, signal=15)
    node.end(keys[0])
    run_cycle()
    assert states(array) == {0: "completed", 1: "cancelled", 3: "scheduled", 4: "scheduled"}
    ends(node, node.start_all())
    job = shown(array)
    assert (job["state"], job["array"]["by_state"]) == ("cancelled", {"completed": 3, "cancelled": 3})


def test_a_cancelled_array_ends_when_its_last_element_has(user, tenant, who):
    node, array = make_node(gpus=2), submit_array(user, tenant, 6)
    after = submit(user, tenant, depends_on=[array])
    run_cycle()
    keys = node.start_all()
    services.cancel(array, who)
    services.cancel(array, who)
    assert (shown(array)["state"], shown(array)["reason"]["sentence"]) == ("stopping", "cancelled by ada")
    for key in keys:
        ends(node, [key])
    assert Counter(states(array).values()) == {"completed": 2}
    assert (shown(array)["state"], shown(array)["array"]["by_state"]) == ("cancelled", {"completed": 2, "cancelled": 4})
    assert Job.objects.get(pk=after).reason == "dependency_failed"
    assert services.cancel(array, who) == f"array {array} had already ended: cancelled"


def test_a_waiting_array_is_cancelled_at_once(user, tenant, who):
    array = submit_array(user, tenant, 6)
    services.cancel(array, who)
    job = shown(array)
    assert (job["state"], job["array"]["by_state"], job["array"]["remaining"]) == ("cancelled", {"cancelled": 6}, 0)


def test_an_array_whose_dependency_failed_can_never_start(user, tenant, who):
    first = submit(user, tenant)
    array = submit_array(user, tenant, 6, depends_on=[first])
    assert shown(array)["reason"]["code"] == "dependency"
    services.cancel(first, who)
    assert (shown(array)["state"], shown(array)["array"]["by_state"]) == ("cancelled", {"cancelled": 6})


def test_those_that_failed_are_retried_and_the_array_is_open_again(user, tenant, who):
    node, array = make_node(gpus=4), submit_array(user, tenant, 4)
    run_cycle()
    keys = node.start_all()
    node.end(*keys[2:], exit_code=3)
    ends(node, keys[:2])
    assert shown(array)["state"] == "failed"
    assert services.retry(array, who, "failed") == f"array {array}: 2 elements are to run again"
    assert (shown(array)["state"], shown(array)["ended_at"]) == ("running", None)
    run_cycle()
    assert Counter(states(array).values()) == {"completed": 2, "scheduled": 2}
    ends(node, node.start_all())
    assert (shown(array)["state"], Job.objects.filter(array_id=array, attempt=2).count()) == ("completed", 2)
    with pytest.raises(Problem, match="none of these elements"):
        services.retry(array, who, "failed")


def test_elements_are_retried_by_their_numbers_also_those_that_never_were_jobs(user, tenant, who):
    node, array = make_node(gpus=1), submit_array(user, tenant, 4)
    run_cycle()
    [key] = node.start_all()
    services.cancel(array, who, "1-3")
    ends(node, [key])
    assert shown(array)["state"] == "cancelled"
    services.retry(array, who, "0,2")
    assert shown(array)["array"]["by_state"] == {"pending": 2, "cancelled": 2}
    for _ in range(2):
        run_cycle()
        ends(node, node.start_all())
    assert states(array) == {0: "completed", 2: "completed"}
    assert shown(array)["state"] == "cancelled"


def test_a_hold_keeps_what_remains_and_lets_go_on_what_runs(user, tenant, who):
    node, array = make_node(gpus=2), submit_array(user, tenant, 5)
    run_cycle()
    keys = node.start_all()
    assert services.hold(array, who) == f"array {array}: 3 elements are held"
    ends(node, keys)
    assert shown(array)["array"]["by_state"] == {"held": 3, "completed": 2}
    assert (shown(array)["state"], shown(array)["reason"]["code"]) == ("held", "held_by_user")
    services.release(array, who)
    run_cycle()
    assert shown(array)["array"]["by_state"] == {"pending": 1, "scheduled": 2, "completed": 2}


def test_an_array_waits_as_its_next_element_would(user, tenant, who):
    make_node(gpus=2)
    submit(user, tenant, gpu_count=2)
    run_cycle()
    array = submit_array(user, tenant, 100)
    behind = submit(user, tenant, gpu_count=2, priority=300)
    run_cycle()
    assert shown(array)["reason"]["code"] == "capacity"
    ahead = shown(behind)["reason"]["evidence"]
    assert (ahead["jobs_ahead"], ahead["gpus_ahead"]) == (100, 100)
    assert explain(behind, who)["position"] == {"jobs": 100, "gpus": 100}
    assert explain(array, who)["counterfactual"]["starts"] is True


def test_an_array_whose_elements_can_never_run_is_refused(user, tenant):
    """A04"""
    make_node(gpus=2)
    with pytest.raises(Problem, match="can never start"):
        submit_array(user, tenant, 10, gpu_count=3)


def test_elements_count_as_the_jobs_that_they_are_at_limits(user, tenant):
    """A02"""
    small = make_tenant("small", quota={"max_gpus": 3})
    member = make_member(small)
    make_node(gpus=8)
    array = submit_array(member, small, 10)
    run_cycle()
    run_cycle()
    assert Counter(states(array).values()) == {"scheduled": 3}
    assert shown(array)["reason"]["code"] == "quota_wait"


def test_an_element_that_others_are_stopped_for_becomes_a_job_and_starts_there(user, tenant):
    """A14"""
    node = make_node(gpus=2)
    for _ in range(2):
        submit(user, tenant, priority=100)
    run_cycle()
    node.start_all()
    array = submit_array(user, tenant, 3, priority=3000)
    query("UPDATE jobs_job SET submitted_at = submitted_at - interval '1 hour' RETURNING id")
    query("UPDATE jobs_attempt SET started_at = started_at - interval '1 hour' RETURNING id")
    query("UPDATE jobs_job SET started_at = started_at - interval '1 hour' WHERE started_at IS NOT NULL RETURNING id")
    for _ in range(3):
        run_cycle()
    stopping = list(Job.objects.filter(state="stopping"))
    assert len(stopping) == 2
    assert {job.stop_evidence["by_job"] for job in stopping} == set(
        Job.objects.filter(array_id=array).values_list("pk", flat=True)
    )
    assert shown(array)["array"]["by_state"] == {"pending": 3}
    node.end(*node.held, reason="preempted", exit_code=None, signal=15)
    run_cycle()
    assert states(array) == {0: "scheduled", 1: "scheduled"}


class TestRest:
    @pytest.fixture
    def call(self, user):
        token = make_token(user)

        def call(method, path, body=None):
            raw = b"" if body is None else msgspec.json.encode(body)
            headers = {"Authorization": f"Bearer {token}"}
            response = Client().generic(method, f"/api/v1{path}", raw, content_type="application/json", headers=headers)
            return response.status_code, response.json()

        return call

    def test_an_array_is_submitted_and_read_as_one(self, call, tenant):
        status, answer = call("POST", "/jobs", {"command": ["x"], "array": {"count": 100, "max_parallel": 3}})
        assert status == 201
        read = call("GET", f"/jobs/{answer['job_id']}")[1]
        assert (
            read["array"]
            == answer["job"]["array"]
            == {"count": 100, "max_parallel": 3, "remaining": 100, "by_state": {"pending": 100}}
        )
        assert [job["id"] for job in call("GET", "/jobs")[1]["items"]] == [answer["job_id"]]

    def test_lists_show_an_array_once_and_its_elements_by_its_id(self, call, user, tenant):
        make_node(gpus=2)
        array = submit_array(user, tenant, 5)
        run_cycle()
        assert [job["id"] for job in call("GET", "/jobs")[1]["items"]] == [array]
        items = call("GET", f"/jobs?array={array}")[1]["items"]
        assert [(job["array_id"], job["array_index"], job["command"]) for job in items] == [
            (array, 1, ["true"]),
            (array, 0, ["true"]),
        ]

    def test_elements_are_listed_by_number_in_pages_whether_they_are_jobs_or_not(self, call, user, tenant, who):
        make_node(gpus=2)
        array = submit_array(user, tenant, 7)
        run_cycle()
        services.cancel(array, who, "5")
        seen: list[tuple[int, str, bool]] = []
        cursor: str | None = ""
        while cursor is not None:
            page = call("GET", f"/jobs/{array}/elements?limit=3{cursor and '&cursor=' + cursor}")[1]
            seen += [(one["index"], one["state"], one["job_id"] is None) for one in page["items"]]
            cursor = page["next_cursor"]
        assert seen == [
            (0, "scheduled", False), (1, "scheduled", False), (2, "pending", True), (3, "pending", True),
            (4, "pending", True), (5, "cancelled", True), (6, "pending", True),
        ]  # fmt: skip
        only = call("GET", f"/jobs/{array}/elements?state=waiting&index=1-3,6")[1]["items"]
        assert [one["index"] for one in only] == [2, 3, 6]

    def test_a_part_is_cancelled_and_retried(self, call, user, tenant):
        array = submit_array(user, tenant, 4)
        assert call("POST", f"/jobs/{array}/cancel", {"elements": "1,3"})[1]["job"]["array"]["remaining"] == 2
        assert call("POST", f"/jobs/{array}/retry", {"elements": "3"})[1]["job"]["array"]["remaining"] == 3
        assert call("POST", f"/jobs/{array}/cancel")[1]["status"] == "cancelled"
        assert call("DELETE", f"/jobs/{array}")[0] == 200

    @pytest.mark.parametrize("array", [{"count": 0}, {"count": 100_001}, {"count": 5, "max_parallel": 0}, {}, 5, []])
    def test_a_wrong_array_is_named(self, call, tenant, array):
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
    def test_what_cannot_be_done_to_an_array_is_said(self, call, user, tenant, path, body, status, field):
        answer = call("POST", f"/jobs/{submit_array(user, tenant, 4)}/{path}", body)
        assert (answer[0], answer[1]["errors"][0]["field"] if field else None) == (status, field)

    def test_a_job_that_is_no_array_has_no_elements(self, call, user, tenant):
        job = submit(user, tenant)
        assert call("GET", f"/jobs/{job}/elements") == (200, {"items": [], "next_cursor": None})
        assert call("POST", f"/jobs/{job}/cancel", {"elements": "1"})[1]["errors"][0]["field"] == "elements"
        assert call("POST", f"/jobs/{job}/retry")[0] == 400

    @pytest.mark.django_db(transaction=True)
    def test_a_submit_that_is_repeated_makes_one_array_and_is_answered_alike(self, user, tenant):
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

    def test_arrays_are_in_a_bulk_and_others_wait_for_them(self, call, tenant):
        jobs = [{"command": ["x"], "array": {"count": 3}, "ref": "a"}, {"command": ["y"], "depends_on": ["a"]}]
        status, answer = call("POST", "/jobs/bulk", {"jobs": jobs})
        assert status == 201
        assert call("GET", f"/jobs/{answer['job_ids'][0]}")[1]["array"]["remaining"] == 3
        assert call("GET", f"/jobs/{answer['job_ids'][1]}")[1]["reason"]["code"] == "dependency"


def test_a_simulation_says_how_many_elements_would_start(user, tenant, who):
    make_node(gpus=3)
    request = JobRequest(command=["x"], gpu_count=1, tenant="nlp", array=ArrayRequest(count=10))
    found = services.simulate(request, who)
    assert (found["starts_now"], found["sentence"].split(", the first on ")[0]) == (
        True, "3 of its 10 elements would start now",
    )  # fmt: skip
    submit(user, tenant, gpu_count=3, max_runtime_minutes=60)
    run_cycle()
    found = services.simulate(request, who)
    assert (found["starts_now"], found["reason"]["code"]) == (False, "capacity")
    assert found["estimate"]["p90_at"] is not None
    assert not Job.objects.filter(array_count__isnull=False).exists()


def test_the_queue_counts_the_elements_that_wait(user, tenant, who):
    from scheduling import metrics
    from scheduling import services as scheduling

    node = make_node(gpus=2)
    array = submit_array(user, tenant, 10, gpu_count=2)
    after = submit(user, tenant, gpu_count=2)
    run_cycle()
    node.start_all()
    queue = scheduling.queue(who, None, 100)
    assert (queue["total"], queue["total_gpus"]) == (10, 20)
    assert [(one["job_id"], one["position"], one["gpus_ahead"], one["elements"]) for one in queue["items"]] == [
        (array, 1, 0, 9), (after, 10, 18, None),
    ]  # fmt: skip
    assert queue["items"][0]["state"] == "running"
    status = scheduling.cluster_status()
    assert (status["total_jobs"], status["running_jobs"], status["pending_jobs"]) == (11, 1, 10)
    services.cancel(array, who, "5-9")
    assert scheduling.cluster_status()["jobs_by_state"] == {"running": 1, "pending": 5, "cancelled": 5}
    sizes = next(one for one in metrics._jobs() if one.name == "gpu_scheduler_queue_size")
    assert sum(sample.value for sample in sizes.samples) == 5


def test_the_time_limit_of_an_array_is_that_of_elements_to_come(user, tenant, who):
    from gpusched.client.extension import Extension
    from scheduling import extending

    node = make_node(gpus=1)
    array = submit_array(user, tenant, 3, max_runtime_minutes=10)
    extending.extend(array, Extension(max_runtime_minutes=20), who, is_dry_run=False)
    run_cycle()
    assert Job.objects.get(array_id=array).max_runtime_seconds == 1200
    node.start_all()
    run_cycle()
    first = Job.objects.get(array_id=array)
    with pytest.raises(Problem, match=f"job {array} is promised a start"):
        extending.extend(first.pk, Extension(max_runtime_minutes=60), who, is_dry_run=True)


def test_the_page_offers_what_can_be_done_to_an_array(user, tenant):
    make_node(gpus=1)
    array = submit_array(user, tenant, 3)
    run_cycle()
    browser = Client()
    browser.force_login(user)
    page = browser.get(f"/jobs/{array}/").content.decode()
    assert (f"/jobs/{array}/hold" in page, f"/jobs/{array}/requeue" in page) == (True, False)
    assert "of 3 elements" in page
    assert "3 elements" not in browser.get("/jobs/").content.decode()
