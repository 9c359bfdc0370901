"""GPU memory that the server chooses (`gpu_memory_mb: "auto"`): the amount, its source, and the retry with more (A70)."""

from dataclasses import replace

import pytest
from django.test import Client
from django.utils import timezone

from gpusched.protocol.arrays import ArrayRequest
from jobs.events.log import frontier
from jobs.lifecycle.attempt_end import AttemptOutcome, next_state
from jobs.lifecycle.memory_retry import raised_mb
from jobs.lifecycle.states import finish
from jobs.listing import representation
from jobs.models import Job, JobEvent
from nodes.models import Node
from scheduling.history import learning
from tests.factories import make_member, make_node, make_token, run_cycle, submit
from tests.scheduling.history import ran
from tests.scheduling.test_prediction_history import peaks
from tests.waiting import wait_for

TRAIN = ["python", "train.py", "--lr", "1"]
WHOLE = "earlier runs of train.py are too few, so it gets whole GPUs of any size"
database = pytest.mark.django_db(transaction=True)
ROW = {
    "retries_used": 0, "max_retries": 0, "stop_reason": "", "stop_evidence": {}, "requeue": True, "retry_on": [],
    "is_memory_auto": True, "memory_retries": 0, "now": timezone.now(),
}  # fmt: skip
EVIDENCE = {"class": "cuda_oom", "had_gpu_memory_mb": 16_000}
OUT_OF_MEMORY = AttemptOutcome(1, 1, "exited", timezone.now(), 1, None, EVIDENCE)


# --- the pure rule ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("had", "largest", "expected"),
    [(16_000, 80_000, 24_000), (60_000, 80_000, 80_000), (80_000, 80_000, None), (80_000, 40_000, None),
     (10_001, None, 15_002)],
)  # fmt: skip
def test_raised_amount_is_half_as_much_again_within_the_largest_gpu(had, largest, expected):
    assert raised_mb(had, largest) == expected


def test_job_that_ran_out_of_chosen_memory_is_retried_with_more_and_keeps_its_retries():
    result = next_state({**ROW, "max_retries": 2}, OUT_OF_MEMORY, raised_mb=24_000)
    assert (result.state, result.retries_used, result.gpu_memory_mb) == ("pending", 0, 24_000)
    assert result.eligible_at is None
    assert result.evidence == {"had_gpu_memory_mb": 16_000, "gpu_memory_mb": 24_000}


@pytest.mark.parametrize(
    ("changes", "raised", "why"), [({"memory_retries": 1}, 36_000, "used"), ({}, None, "no_larger_gpu")]
)
def test_job_fails_with_the_cause_when_more_memory_is_used_up_or_does_not_exist(changes, raised, why):
    result = next_state({**ROW, **changes, "max_retries": 2}, OUT_OF_MEMORY, raised_mb=raised)
    assert (result.state, result.reason, result.gpu_memory_mb) == ("failed", "exited", None)
    assert result.evidence == {**EVIDENCE, "memory_retry": why}


def test_explicit_retry_on_out_of_memory_applies_after_the_retry_with_more():
    row = {**ROW, "memory_retries": 1, "max_retries": 2, "retry_on": ["cuda_oom"]}
    result = next_state(row, OUT_OF_MEMORY, raised_mb=36_000)
    assert (result.state, result.retries_used, result.gpu_memory_mb) == ("pending", 1, None)


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        ({"is_memory_auto": False}, OUT_OF_MEMORY),
        ({}, replace(OUT_OF_MEMORY, evidence={"class": "host_oom"})),
        ({}, replace(OUT_OF_MEMORY, evidence={})),
    ],
)
def test_other_jobs_and_other_ends_get_no_retry_with_more(row, outcome):
    result = next_state({**ROW, **row}, outcome, raised_mb=24_000)
    assert (result.state, result.gpu_memory_mb) == ("failed", None)
    assert "memory_retry" not in result.evidence


def test_cancelled_job_is_not_retried_with_more():
    row = {**ROW, "stop_reason": "cancelled", "stop_evidence": {"by": "ann"}}
    assert next_state(row, OUT_OF_MEMORY, raised_mb=24_000).state == "cancelled"


# --- the choice at the submit -----------------------------------------------------------------------------------------


def shown(job_id):
    [job] = representation.select("j.id = %s", [job_id])
    return job


def auto(user, tenant, **fields):
    return submit(user, tenant, **{"command": TRAIN, "gpu_memory_mb": "auto", **fields})


@pytest.fixture
def history(user, tenant):
    make_node(gpus=1)
    peaks(ran(user, tenant, [600] * 3, command=TRAIN), 20_000, 5_000)
    learning.learn()


@database
@pytest.mark.parametrize("sharing", ["exclusive", "shared"])
def test_amount_is_the_highest_peak_with_a_margin_and_shows_its_source(user, tenant, history, sharing):
    job = shown(auto(user, tenant, gpu_sharing=sharing))
    assert (job["gpu_memory_mb"], job["gpu_sharing"]) == (22_016, sharing)
    source = f"{user.username}'s last 3 runs of train.py used at most 20,000 MiB of each GPU"
    assert job["gpu_memory_auto"] == {"gpu_memory_mb": 22_016, "n": 3, "source": source, "retries": 0}


@database
def test_amount_is_at_most_what_a_suitable_gpu_can_give(user, tenant, history):
    make_node(gpus=1, model="NVIDIA L4", memory_mb=20_480)
    job = shown(auto(user, tenant, gpu_model="L4"))
    assert job["gpu_memory_mb"] == 20_480
    assert job["gpu_memory_auto"]["source"].endswith("; no suitable GPU has more")
    assert shown(auto(user, tenant, gpu_model="L4", gpu_sharing="shared"))["gpu_memory_mb"] == 17_408  # load ceiling


@database
def test_amount_is_not_that_of_a_removed_gpu(user, tenant, history):
    node = make_node(gpus=1, model="NVIDIA L4", memory_mb=20_480)
    make_node(gpus=1, model="NVIDIA L4", memory_mb=18_432)
    Node.objects.filter(pk=node.id).update(removed_at=timezone.now())
    assert shown(auto(user, tenant, gpu_model="L4"))["gpu_memory_mb"] == 18_432


@database
def test_job_gets_whole_gpus_without_history_of_its_user(user, tenant, history, settings):
    make_node(gpus=2)
    other = make_member(tenant)
    job = shown(auto(other, tenant, gpu_sharing="shared"))
    assert job["gpu_memory_mb"] is None
    assert job["gpu_memory_auto"]["source"] == f"{other.username}'s {WHOLE}"
    settings.ENV = replace(settings.ENV, predictions=False)
    assert (
        shown(auto(user, tenant))["gpu_memory_auto"]["source"]
        == "predictions are off, so it gets whole GPUs of any size"
    )


@database
def test_jobs_of_a_bulk_get_the_amount_of_their_own_program_and_elements_that_of_their_array(user, tenant, history):
    headers = {"Authorization": f"Bearer {make_token(user)}"}
    common = {"tenant": tenant.name, "command": ["python"], "gpu_count": 1, "gpu_memory_mb": "auto"}
    jobs = [{**common, "args": args} for args in (TRAIN[1:], ["train.py", "--lr", "7"], ["other.py"])]
    answer = Client().post("/api/v1/jobs/bulk", {"jobs": jobs}, content_type="application/json", headers=headers)
    assert answer.status_code == 201, answer.content
    assert [shown(job_id)["gpu_memory_mb"] for job_id in answer.json()["job_ids"]] == [22_016, 22_016, None]
    array_id = auto(user, tenant, array=ArrayRequest(count=1), priority=900)
    run_cycle()
    element = shown(Job.objects.get(array_id=array_id).pk)
    assert (element["gpu_memory_mb"], element["gpu_memory_auto"]["n"]) == (22_016, 3)


@database
@pytest.mark.parametrize("sharing", ["exclusive", "shared"])
def test_simulated_submit_assumes_the_amount_of_a_real_one_and_shows_it(user, tenant, history, sharing):
    """Of two GPUs of which only the larger has the chosen amount, both use the larger one."""
    make_node(gpus=1, name="small", model="NVIDIA L4", memory_mb=20_480)
    body = {"tenant": tenant.name, "command": TRAIN, "gpu_count": 1, "gpu_memory_mb": "auto", "gpu_sharing": sharing}
    headers = {"Authorization": f"Bearer {make_token(user)}"}
    answers = [
        Client().post(f"/api/v1/{path}", body, content_type="application/json", headers=headers).json()
        for path in ("jobs/simulate", "jobs?dry_run=true", "jobs")
    ]
    simulated, dry, submitted = answers[0], answers[1]["simulation"], answers[2]["job"]
    assert simulated["gpu_memory_auto"]["gpu_memory_mb"] == 22_016
    names = ("gpu_memory_mb", "n", "source")
    for answer in (simulated, dry):
        assert {name: answer["gpu_memory_auto"][name] for name in names} == {
            name: submitted["gpu_memory_auto"][name] for name in names
        }
        assert [rank["models"] for rank in answer["placement"]] == [["NVIDIA A100-SXM4-80GB"]]
        assert "gpu_memory_mb" not in {item["field"] for item in answer["advice"]}


@database
@pytest.mark.parametrize(
    "body",
    [{"gpu_memory_mb": "much", "gpu_count": 1}, {"gpu_memory_mb": 0, "gpu_count": 1}, {"gpu_memory_mb": "auto"}],
)
def test_other_words_and_jobs_without_gpus_are_refused_by_field(user, tenant, body):
    headers = {"Authorization": f"Bearer {make_token(user)}"}
    request = {"tenant": tenant.name, "command": ["x"], **body}
    answer = Client().post("/api/v1/jobs", request, content_type="application/json", headers=headers)
    assert answer.status_code == 400
    field = "gpu_memory_mb" if "gpu_count" in body else "gpu_count"
    assert [error["field"] for error in answer.json()["errors"]] == [field]


# --- the retry --------------------------------------------------------------------------------------------------------


def run_out(node, job_id):
    """Run the job's next attempt until it runs out of GPU memory; return the job."""
    run_cycle()
    node.end(*node.start_all(), exit_code=1, exit_class="cuda_oom")
    return shown(job_id)


@pytest.fixture
def fleet():
    """A node with a small GPU."""
    return make_node(gpus=1, model="NVIDIA L4", memory_mb=24_576)


@database
def test_out_of_memory_end_is_retried_once_on_a_larger_gpu_and_then_fails_with_the_cause(user, tenant, fleet):
    job_id = auto(user, tenant, max_retries=3)
    run_cycle()
    [key] = fleet.start_all()
    large = make_node(gpus=1, memory_mb=81_920)
    fleet.end(key, exit_code=1, exit_class="cuda_oom")
    job = shown(job_id)
    assert (job["state"], job["gpu_memory_mb"], job["retries_used"]) == ("pending", 36_864, 0)
    assert job["gpu_memory_auto"]["gpu_memory_mb"] is None
    assert job["gpu_memory_auto"]["retries"] == 1
    data = JobEvent.objects.get(job_id=job_id, kind="requeued").data
    assert (data["had_gpu_memory_mb"], data["gpu_memory_mb"]) == (24_576, 36_864)
    job = run_out(large, job_id)
    assert (job["state"], job["retries_used"], job["attempt"]) == ("failed", 0, 2)
    assert job["reason"]["sentence"] == (
        "exited with code 1: CUDA ran out of GPU memory, again with 81920 MiB after one retry with more"
    )


@database
def test_job_is_not_retried_when_it_had_the_largest_suitable_gpu(user, tenant, fleet):
    make_node(gpus=1, memory_mb=81_920)
    job_id = auto(user, tenant, gpu_model="L4")
    job = run_out(fleet, job_id)
    assert job["state"] == "failed"
    assert job["reason"]["sentence"].endswith(
        "CUDA ran out of GPU memory, and no suitable GPU has more than the 24576 MiB that it had"
    )


@database
def test_part_of_a_shared_gpu_grows_within_its_gpu(user, tenant, history):
    job_id = auto(user, tenant, gpu_sharing="shared")
    run_cycle()
    finish([AttemptOutcome(job_id, 1, "exited", timezone.now(), 1, None, {"class": "cuda_oom"})])
    job = shown(job_id)
    assert (job["gpu_memory_mb"], job["gpu_memory_auto"]["gpu_memory_mb"]) == (33_024, 22_016)


@database
def test_repeated_report_of_the_end_raises_the_memory_once(user, tenant, fleet):
    job_id = auto(user, tenant)
    run_cycle()
    [key] = fleet.start_all()
    make_node(gpus=1, memory_mb=81_920)
    for _ in range(3):
        fleet.end(key, exit_code=1, exit_class="cuda_oom")
    job = shown(job_id)
    assert (job["gpu_memory_mb"], job["gpu_memory_auto"]["retries"]) == (36_864, 1)
    run_cycle()
    fleet.end(key, exit_code=1, exit_class="cuda_oom")  # of an older attempt now
    assert (shown(job_id)["state"], shown(job_id)["gpu_memory_auto"]["retries"]) == ("scheduled", 1)


@database
def test_manual_retry_allows_another_raise_and_a_replayed_submit_shows_the_first_choice(user, tenant, fleet):
    headers = {"Authorization": f"Bearer {make_token(user)}", "Idempotency-Key": "once"}
    body = {"tenant": tenant.name, "command": TRAIN, "gpu_count": 1, "gpu_memory_mb": "auto"}
    first = Client().post("/api/v1/jobs", body, content_type="application/json", headers=headers)
    job_id = first.json()["job_id"]
    run_cycle()
    [key] = fleet.start_all()
    large = make_node(gpus=1, memory_mb=81_920)
    fleet.end(key, exit_code=1, exit_class="cuda_oom")
    assert (
        Client().post("/api/v1/jobs", body, content_type="application/json", headers=headers).content == first.content
    )
    run_out(large, job_id)
    retried = {"Authorization": headers["Authorization"]}
    Client().post(f"/api/v1/jobs/{job_id}/retry", {}, content_type="application/json", headers=retried)
    job = shown(job_id)
    assert (job["state"], job["gpu_memory_auto"]["retries"]) == ("pending", 0)


@database
def test_next_choice_is_never_lower_than_what_failed_times_a_factor(user, tenant, fleet):
    """A70: one run that ran out of memory is enough, though its peak fell between two samples."""
    run_out(fleet, auto(user, tenant, gpu_model="L4"))
    make_node(gpus=1, memory_mb=81_920)
    newest = JobEvent.objects.order_by("-id").values_list("id", flat=True)[0]
    wait_for(lambda: frontier.advance() >= newest, 10, "all events to be settled")
    learning.learn()
    job = shown(auto(user, tenant))
    assert job["gpu_memory_mb"] == 40_704  # 24,576 x 1.5, and the margin
    source = f"{user.username}'s last run of train.py used at most 24,576 MiB of each GPU and ran out of it"
    assert job["gpu_memory_auto"]["source"] == source


@database
def test_page_accepts_auto_and_repeats_it_for_the_same_job(user, tenant, history):
    browser = Client()
    browser.force_login(user)
    form = {
        "tenant": tenant.name,
        "command": "python train.py --lr 1",
        "gpu_count": "1",
        "gpu_memory_mb": "auto",
        "key": "k" * 32,
    }
    answer = browser.post("/submit/", form)
    assert answer.status_code == 302, answer.content.decode()
    page = browser.get(answer.headers["Location"] + "?tab=spec").content.decode()
    assert "--gpu-memory-mb auto" in page
    assert "used at most 20,000 MiB of each GPU" in page
    assert (
        "Enter a whole number, or auto." in browser.post("/submit/", {**form, "gpu_memory_mb": "12x"}).content.decode()
    )
