"""Confirmation dialogs show losses and delays, and large losses must be typed."""

import re
from typing import Any

import pytest
from django.template.loader import render_to_string

from frontend.actions.confirmation import loss_sentence, required_confirmation
from gpusched.lib.db.sql import execute, query
from gpusched.protocol.states import Role
from tests.factories import make_member, make_node, make_user, run_cycle, submit
from tests.frontend.browsing import browser, text_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def running(nlp: Any, member: Any) -> int:
    node = make_node(name="n1", gpus=4)
    job_id = submit(member, nlp, gpu_count=4, max_runtime_minutes=60)
    run_cycle()
    node.start_all()
    return job_id


def ran(hours: float) -> None:
    execute("UPDATE jobs_job SET started_at = clock_timestamp() - make_interval(secs => %s)", [hours * 3600])


def state() -> str:
    return str(query("SELECT state FROM jobs_job ORDER BY id LIMIT 1")[0]["state"])


def test_job_page_explains_missing_actions(running: int, nlp: Any, member: Any) -> None:
    text = "Only the submitter or a tenant owner can"
    another, boss = browser(make_member(nlp)), browser(make_member(nlp, Role.OWNER))
    assert text in text_of(another.get(f"/jobs/{running}/"))
    assert text in text_of(another.get(f"/jobs/{running}/actions/"))
    assert text not in text_of(browser(member).get(f"/jobs/{running}/"))
    assert text not in text_of(boss.get(f"/jobs/{running}/"))
    execute("UPDATE jobs_job SET state = 'completed', reason = 'exited', ended_at = now() WHERE id = %s", [running])
    assert text not in text_of(another.get(f"/jobs/{running}/"))


def test_stop_dialog_shows_loss(running: int, member: Any) -> None:
    ran(0.5)
    page = text_of(browser(member).get(f"/jobs/{running}/"))
    assert page.count("It has run for 30") == 2, "of the cancel and of the requeue"
    assert "on 4 GPUs. Its processes are stopped" in page and 'name="typed"' not in page


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_large_stop_requires_typed_job_id(verb: str, running: int, member: Any) -> None:
    ran(6.1)
    client = browser(member)
    page = text_of(client.get(f"/jobs/{running}/"))
    assert f'pattern="{running}"' in page and "24.4 GPU-hours" in page
    for typed in ({}, {"typed": ""}, {"typed": f"{running}1"}):
        answer = client.post(f"/jobs/{running}/{verb}/", typed, headers={"accept": "application/json"}).json()
        assert (answer["is_done"], state()) == (False, "running")
        assert f"ype {running}" in answer["sentence"]
    client.post(f"/jobs/{running}/{verb}/", {"typed": f" {running} "})
    assert state() == "stopping"


def test_bulk_stop_requires_same_confirmation(running: int, nlp: Any, member: Any) -> None:
    """Of an array its elements count; hidden jobs are not mentioned."""
    waiting = submit(member, nlp, gpu_count=4)
    client, ids = browser(member), f"{running},{waiting},{running}"
    ran(0.5)
    message = client.get("/jobs/loss/", {"ids": ids}).json()
    assert message["typed"] == "" and message["sentence"].startswith("1 job runs on 4 GPUs, for 30 min")
    ran(6.1)
    message = client.get("/jobs/loss/", {"ids": ids}).json()
    assert message["typed"] == "2" and "at most 24.4 GPU-hours" in message["sentence"]
    assert client.get("/jobs/loss/", {"ids": str(running)}).json()["typed"] == str(running)
    for typed in ("", "3"):
        answer = client.post("/jobs/act/", {"verb": "cancel", "ids": ids, "typed": typed})
        assert (answer.status_code, state()) == (400, "running") and "ype 2, the number of jobs" in answer.json()[
            "sentence"
        ]
    stranger = browser(make_user())
    assert stranger.get("/jobs/loss/", {"ids": ids}).json()["sentence"] == "None of them is running."
    assert client.get("/jobs/loss/", {"ids": ",".join(map(str, range(1, 502)))}).status_code == 400
    only_waiting = {"verb": "cancel", "ids": ids, "if_state": "pending,held"}
    assert client.post("/jobs/act/", only_waiting).json()["done"] == [waiting]
    assert client.post("/jobs/act/", {"verb": "requeue", "ids": ids, "typed": "2"}).json()["done"] == [running]
    assert state() == "stopping"


def test_loss_counts_elements_and_many_jobs_require_their_number() -> None:
    loss = {"jobs": 21, "elements": 20, "gpus": 21, "seconds": 60.0, "gpu_hours": 0.3, "is_large": False}
    assert loss_sentence(loss).startswith("1 job and 20 elements run on 21 GPUs, the longest for 1 min. ")
    assert loss_sentence({**loss, "elements": 21}).startswith("21 elements run on 21 GPUs")
    assert [required_confirmation(range(1, n + 1), loss) for n in (1, 20, 21)] == ["", "", "21"]
    assert required_confirmation(range(30), {**loss, "jobs": 0}) == ""


def test_cancel_of_waiting_job_needs_no_confirmation(nlp: Any, member: Any) -> None:
    job_id = submit(member, nlp, gpu_count=4)
    execute("UPDATE jobs_job SET submitted_at = submitted_at - interval '9 days'")
    browser(member).post(f"/jobs/{job_id}/cancel/", {"if_state": "pending,held"})
    assert state() == "cancelled"


def test_extension_preview_names_delayed_jobs_without_change(running: int, nlp: Any, member: Any) -> None:
    next_one = submit(member, nlp, gpu_count=4, max_runtime_minutes=10)
    run_cycle()
    client = browser(member)

    def foreseen(minutes: str) -> str:
        return str(text_of(client.post(f"/jobs/{running}/extend/preview/", {"max_runtime_minutes": minutes})))

    assert f"Job {next_one} is promised a start" in foreseen("110")
    assert "No waiting job is expected to start later" in foreseen("50")
    assert ">Enter a number of minutes.<" in foreseen("x")
    assert foreseen("") == foreseen(" ") == "", "no message before any input"
    refused = foreseen("-1")
    assert ">Time limit (minutes): the limit must be" in refused and "fields named in errors" not in refused
    assert query("SELECT max_runtime_seconds AS s FROM jobs_job WHERE id = %s", [running]) == [{"s": 3600}]
    assert client.get(f"/jobs/{running}/extend/preview/").status_code == 405
    stranger = browser(make_user())
    assert stranger.post(f"/jobs/{running}/extend/preview/", {"max_runtime_minutes": "1"}).status_code == 404


@pytest.mark.parametrize(
    ("ids", "other", "message"),
    [([7], 0, "Job 7 would"), ([7, 9], 2, "Jobs 7, 9, and 2 of other tenants would"), ([], 1, "1 job of other tenants would")],
)  # fmt: skip
def test_extension_effect_lists_delayed_jobs(ids: list[int], other: int, message: str) -> None:
    effect = {"message": "x", "delays": [{"job_id": each} for each in ids], "others_delayed": other}
    page = re.sub("<[^>]*>", "", render_to_string("job/extend_effect.html", {"effect": effect}))
    assert page.strip().endswith(f".{message} probably start later.")


def test_only_admins_can_override_a_promise(running: int, nlp: Any, member: Any) -> None:
    submit(member, nlp, gpu_count=4, max_runtime_minutes=10)
    run_cycle()
    requested = {"max_runtime_minutes": "600", "force": "yes"}
    assert 'name="force"' not in text_of(browser(member).get(f"/jobs/{running}/"))
    browser(member).post(f"/jobs/{running}/extend/", requested)
    assert query("SELECT max_runtime_seconds AS s FROM jobs_job WHERE id = %s", [running]) == [{"s": 3600}]
    admin = browser(make_user(admin=True))
    assert 'name="force"' in text_of(admin.get(f"/jobs/{running}/"))
    admin.post(f"/jobs/{running}/extend/", {"max_runtime_minutes": "600"})
    assert query("SELECT max_runtime_seconds AS s FROM jobs_job WHERE id = %s", [running]) == [{"s": 3600}]
    admin.post(f"/jobs/{running}/extend/", requested)
    assert query("SELECT max_runtime_seconds AS s FROM jobs_job WHERE id = %s", [running]) == [{"s": 36_000}]
