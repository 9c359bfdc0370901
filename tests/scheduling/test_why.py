"""The explanation of a waiting job beside its reason: other causes, what-ifs, estimates, and past reasons."""

from datetime import timedelta

import pytest
from django.utils import timezone

from gpusched.protocol.arrays import ArrayRequest
from jobs.models import Job, JobReason
from scheduling.whatif import current
from tenants.models import Quota as TenantQuota
from tests.api.calls import call
from tests.factories import make_member, make_node, make_tenant, make_token, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def explain(job_id, user):
    answer = call("GET", f"/api/v1/jobs/{job_id}/explain", make_token(user))
    assert answer.status_code == 200, answer.content
    return answer.json()


@pytest.fixture
def full(user, tenant):
    """A node of 8 GPUs, 6 of them held for an hour at most."""
    node = make_node(gpus=8)
    submit(user, tenant, gpu_count=6, max_runtime_minutes=60)
    run_cycle()
    node.start_all()
    return node


def test_job_without_capacity_learns_what_would_help_and_when(user, tenant, full):
    """A20"""
    job = submit(user, tenant, gpu_count=4)
    run_cycle()
    answer = explain(job, user)
    assert answer["code"] == "capacity"
    assert answer["counterfactual"] == {
        "change": "gpu_count",
        "to": 2,
        "starts": True,
        "sentence": "with 2 GPUs it would start",
    }
    assert answer["also"] == []
    assert answer["position"] == {"jobs": 0, "gpus": 0}
    estimate = answer["estimate"]
    assert estimate["p50_at"] < estimate["p90_at"]
    assert estimate["waits_for"] == {"jobs_ending": 1, "jobs_starting": 0}
    assert estimate["sentence"].startswith("starts between ")
    holder = Job.objects.exclude(pk=job).get().pk
    assert (estimate["blockers"], estimate["more_blockers"]) == ([holder], 0)
    assert estimate["sentence"].endswith(f", after the end of job {holder}")


def test_blocking_jobs_of_other_tenants_are_counted_but_not_named(user, tenant, full):
    """A60"""
    other = make_tenant("other")
    stranger = make_member(other)
    job = submit(stranger, other, gpu_count=4)
    run_cycle()
    estimate = explain(job, stranger)["estimate"]
    assert (estimate["blockers"], estimate["more_blockers"]) == ([], 1)
    assert estimate["sentence"].endswith(", after the end of the 1 job in its way")


def test_explanation_lists_further_obstacles(user, tenant, full):
    """A20: its node selector is the nearest remedy; behind it there is no room."""
    job = submit(user, tenant, gpu_count=8, node_selector={"zone": "b"})
    run_cycle()
    answer = explain(job, user)
    assert answer["code"] == "constraint"
    assert answer["counterfactual"]["change"] in ("node_selector", "node_added")
    assert [row["code"] for row in answer["also"]] in ([], ["capacity"])


def test_estimate_is_missing_without_time_limits(user, tenant):
    node = make_node(gpus=2)
    for _ in range(2):
        submit(user, tenant, gpu_count=1)
    run_cycle()
    node.start_all()
    job = submit(user, tenant, gpu_count=2)
    run_cycle()
    estimate = explain(job, user)["estimate"]
    assert estimate["p90_at"] is None
    assert estimate["sentence"] == "no estimate: 2 running jobs have no time limit"


def test_held_job_learns_what_follows_its_release(user, tenant, full):
    job = submit(user, tenant, gpu_count=4)
    call("POST", f"/api/v1/jobs/{job}/hold", make_token(user))
    answer = explain(job, user)
    assert (answer["code"], answer["counterfactual"]["change"]) == ("held_by_user", "released")
    assert [row["code"] for row in answer["also"]] == ["capacity"]
    assert answer["counterfactual"]["starts"] is False
    assert "it would wait for another reason: waits for 4 GPUs" in answer["counterfactual"]["sentence"]


def test_held_job_that_depends_on_others_waits_for_them_after_its_release(user, tenant, full):
    first = submit(user, tenant, max_runtime_minutes=60)
    job = submit(user, tenant, depends_on=[first])
    call("POST", f"/api/v1/jobs/{job}/hold", make_token(user))
    answer = explain(job, user)
    assert answer["counterfactual"]["starts"] is False
    sentence = f"once it is released it would wait for another reason: waits for job {first} to end"
    assert answer["counterfactual"]["sentence"] == sentence
    assert [row["code"] for row in answer["also"]] == ["dependency"]
    call("POST", f"/api/v1/jobs/{job}/release", make_token(user))
    run_cycle()
    assert explain(job, user)["code"] == "dependency"


def test_held_array_waits_for_its_own_elements_after_its_release(user, tenant):
    node = make_node(gpus=8)
    array = submit(user, tenant, array=ArrayRequest(count=3, max_parallel=1))
    run_cycle()
    [key] = node.start_all()
    call("POST", f"/api/v1/jobs/{array}/hold", make_token(user))
    answer = explain(array, user)
    assert (answer["code"], answer["counterfactual"]["starts"]) == ("held_by_user", False)
    assert [row["code"] for row in answer["also"]] == ["max_parallel"]
    node.end(key)
    assert explain(array, user)["counterfactual"]["starts"] is True


def test_array_behind_an_element_that_waits_again_counts_it(user, tenant):
    """A60: one runs and at most two may, but the element that waits for a GPU comes first."""
    node = make_node(gpus=2)
    array = submit(user, tenant, array=ArrayRequest(count=4, max_parallel=2))
    run_cycle()
    first, _ = node.start_all()
    submit(user, tenant, priority=900)
    node.end(first, exit_code=1)
    run_cycle()
    call("POST", f"/api/v1/jobs/{array}/retry", make_token(user))
    run_cycle()
    answer = explain(array, user)
    assert answer["sentence"] == "of this array, 1 placed or running and 1 waiting before it; at most 2 may be at once"
    assert explain(int(first.split(".")[0]), user)["code"] == "capacity"


def test_max_parallel_of_an_element_counts_those_that_start_before_it(user, tenant):
    """A60: three elements wait again; room for one more would start the first of them."""
    node = make_node(gpus=2)
    array = submit(user, tenant, array=ArrayRequest(count=5, max_parallel=1))
    keys = []
    for _ in range(3):
        run_cycle()
        keys += node.start_all()
        node.end(keys[-1], exit_code=1)
    run_cycle()
    node.start_all()
    call("POST", f"/api/v1/jobs/{array}/retry", make_token(user))
    run_cycle()
    answers = [explain(job, user) for job in (*[int(key.split(".")[0]) for key in keys], array)]
    assert {answer["code"] for answer in answers} == {"max_parallel"}
    changes = [answer["counterfactual"] for answer in answers]
    assert [(change["to"], change["starts"]) for change in changes] == [(2, True), (3, False), (4, False), (2, True)]
    assert changes[1]["sentence"].startswith("with max_parallel 3 it would wait for another reason: ")


def test_limit_behind_a_limit_is_named(user):
    """A60: with a higher limit the job would wait for the next one."""
    make_node(gpus=8)
    tenant = make_tenant("small", quota={"max_gpus": 4})
    member = make_member(tenant)
    job = submit(member, tenant, gpu_count=4)
    TenantQuota.objects.filter(tenant=tenant).update(max_gpus=2, max_gpus_by_model={"A100": 1})
    run_cycle()
    answer = explain(job, member)
    assert (answer["code"], answer["counterfactual"]["starts"]) == ("tenant_limit", False)
    then = "it would wait for another reason: requests 2 A100 GPUs, more than the limit of 1 of tenant small"
    assert answer["counterfactual"]["sentence"] == f"with 2 GPUs {then}"


def test_other_tenants_appear_only_as_numbers(user, tenant):
    other = make_tenant("secret")
    node = make_node(gpus=8)
    foreign = submit(make_member(other, name="mallory"), other, gpu_count=8, max_runtime_minutes=10, name="hidden")
    run_cycle()
    node.start_all()
    job = submit(user, tenant, gpu_count=1)
    run_cycle()
    text = str(explain(job, user))
    for word in ("secret", "mallory", "hidden", f"job {foreign}"):
        assert word not in text


def test_reasons_are_stored_with_their_durations(user, tenant, full):
    """Only when the code changes, not with the evidence; the present one has no end."""
    job = submit(user, tenant, gpu_count=4)
    run_cycle()
    _pretend_since(job, 300)
    call("POST", f"/api/v1/jobs/{job}/hold", make_token(user))
    _pretend_since(job, 100)
    call("POST", f"/api/v1/jobs/{job}/release", make_token(user))
    run_cycle()
    history = explain(job, user)["history"]
    assert [row["code"] for row in history] == ["capacity", "held_by_user", "capacity"]
    assert [round(row["seconds"], -2) for row in history[:2]] == [300, 100]
    assert [row["until_at"] is None for row in history] == [False, False, True]


def test_changed_evidence_alone_makes_no_history(user, tenant, full):
    job = submit(user, tenant, gpu_count=4)
    run_cycle()
    _pretend_since(job, 60)
    Job.objects.filter(pk=job).update(evidence={"free": 1})
    assert not JobReason.objects.filter(job_id=job).exists()


def test_reason_shorter_than_a_second_is_not_stored(user, tenant, full):
    job = submit(user, tenant, gpu_count=4)
    run_cycle()
    assert not JobReason.objects.filter(job_id=job).exists()


def test_overtaken_job_keeps_that_reason_while_others_are_ahead(user, tenant):
    """Else the reasons of the whole queue would turn with each job that ends and is followed by another."""
    node = make_node(gpus=8)
    submit(user, tenant, gpu_count=8)
    for _ in range(2):
        job = submit(user, tenant, gpu_count=8)
    run_cycle()
    assert Job.objects.get(pk=job).reason == "priority"
    node.start_all()
    run_cycle()
    assert Job.objects.get(pk=job).reason == "priority"


def test_queue_shows_when_its_first_jobs_start(user, tenant, full, monkeypatch):
    job = submit(user, tenant, gpu_count=4)
    run_cycle()
    [item] = call("GET", "/api/v1/queue", make_token(user)).json()["items"]
    assert item["job_id"] == job
    assert item["estimate"]["sentence"].startswith("starts between ")


def test_held_job_is_ahead_of_no_other(user, tenant, full):
    """In the queue as in an explanation: 32 held GPUs before a job looked like a long wait."""
    jobs = [submit(user, tenant, gpu_count=4) for _ in range(4)]
    for held in (jobs[0], jobs[2]):
        call("POST", f"/api/v1/jobs/{held}/hold", make_token(user))
    run_cycle()
    items = call("GET", "/api/v1/queue", make_token(user)).json()["items"]
    places = [(item["position"] - 1, item["gpus_ahead"]) for item in items]
    assert places == [(0, 0), (0, 0), (1, 4), (1, 4)]
    explained = [explain(item["job_id"], user)["position"] for item in items]
    assert [(position["jobs"], position["gpus"]) for position in explained] == places


def _pretend_since(job_id, seconds):
    Job.objects.filter(pk=job_id).update(reason_since=timezone.now() - timedelta(seconds=seconds))


def test_missing_estimate_has_a_reason(user, tenant, full, monkeypatch):
    """A08: in the queue and in an explanation, never both and never neither."""
    waiting = submit(user, tenant, gpu_count=4)
    held = submit(user, tenant, gpu_count=4)
    after = submit(user, tenant, gpu_count=4, depends_on=[waiting])
    call("POST", f"/api/v1/jobs/{held}/hold", make_token(user))
    assert explain(waiting, user)["estimate_reason"] == "no estimate: the scheduler has not looked at it yet"
    run_cycle()
    reason = {
        waiting: None,
        held: "no estimate: it is held",
        after: "no estimate: it waits for other jobs to end first",
    }
    items = call("GET", "/api/v1/queue", make_token(user)).json()["items"]
    assert {item["job_id"]: item["estimate_reason"] for item in items} == reason
    assert [item["job_id"] for item in items if item["estimate"]] == [waiting]
    assert {job: explain(job, user)["estimate_reason"] for job in reason} == reason
    assert [job for job in reason if explain(job, user)["estimate"]] == [waiting]
    monkeypatch.setattr(current, "MAX_JOBS", 0)
    assert explain(waiting, user)["estimate_reason"] == "no estimate while more than 0 jobs wait"
    running = Job.objects.get(state="running").pk
    assert [explain(running, user)[name] for name in ("estimate", "estimate_reason")] == [None, None]
