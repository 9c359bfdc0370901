"""The submit page: simulation, all fields, equivalent command and JSON, and resubmission."""

import re
import shlex
from datetime import timedelta
from decimal import Decimal
from html import unescape

import msgspec
import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from frontend.pages.submit import equivalent
from frontend.pages.submit.form import typed
from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query
from gpusched.protocol.job_request import JobRequest
from jobs.listing import representation
from jobs.submit import submit as submit_service
from nodes.models import Node
from tenants import secrets
from tenants.billing import budgets, rates
from tenants.models import Budget, Quota
from tests.factories import make_node, run_cycle, submit
from tests.frontend.browsing import browser, form, text_of

pytestmark = pytest.mark.django_db

EVERYTHING = {
    "name": "all of it",
    "command": "python 'my file.py' --lr 0.1",
    "gpu_count": "2",
    "gpu_model": "A100|H100",
    "cpu_cores": "4",
    "memory_mb": "100",
    "priority": "700",
    "max_runtime_minutes": "30",
    "environment": "A=1\r\nB=x y",
    "secrets": "hf, wandb",
    "labels": "team=a",
    "node_selector": "zone=b",
    "affinity": "zone in (a, b)\r\n!slow",
    "prefer": "10:fast\r\nzone notin (c)",
    "tolerations": "dedicated=ml:NoSchedule\r\nspot",
    "not_before": "2099-01-31T08:00:00Z",
    "workdir": "/tmp",
    "gang_scheduling": "yes",
    "ranks": "2",
    "topology": "prefer_nvlink",
    "anti_affinity": "spread",
    "preemptible": "no",
    "requeue": "no",
    "max_retries": "3",
    "grace_seconds": "60",
    "array": "10%2",
}


@pytest.fixture
def everything(nlp, member):
    """Return all fields as typed, and create the objects that they name."""
    make_node(name="n1")
    Node.objects.update(admin_labels={"zone": "b"})
    for name in ("wandb", "hf"):
        secrets.set_secret(nlp, name, "value", actor="test")
    return form(**EVERYTHING, depends_on=f"after_any:{submit(member, nlp)}")


def shown_json(page):
    return msgspec.json.decode(unescape(re.findall(r'id="as-json"[^>]*>(.*?)</pre>', page, re.S)[0]))


def test_form_fields_round_trip_through_job(everything, member):
    client = browser(member)
    previewed = shown_json(text_of(client.post("/submit/preview/", everything)))
    response = client.post("/submit/", everything)
    assert response.status_code == 302, text_of(response)
    job_id = int(response["Location"].split("/")[-2])
    repeated = text_of(client.get(f"/submit/?again={job_id}"))
    folded = r'<details class="group more-fields"( open)?>'
    assert re.findall(folded, repeated) == [" open"]
    assert re.findall(folded, text_of(client.get("/submit/"))) == [""]
    assert shown_json(repeated) == previewed
    created = equivalent.request_of(representation.select("j.id = %s", [job_id])[0])
    assert {**created, "depends_on": previewed["depends_on"]} == previewed
    assert equivalent.command_line(created) == equivalent.command_line(previewed)
    assert msgspec.convert(created, JobRequest).dependencies == msgspec.convert(previewed, JobRequest).dependencies


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ["bash", "-c", "echo a\necho b"]},
        {"command": ["a"], "args": ["-x", "é 'q'", ""]},
        {"script": "#!/bin/sh\necho $1\n", "command": [], "args": ["a", "b c", "d\ne"]},
        {"environment": {"A": "", "B": " x "}},
        {"retry_on": ["cuda_oom", "signal"], "max_retries": 1},
        {"predicted_runtime_minutes": 12.5, "max_runtime_minutes": 123456.25},
        {"image": "a/b:1", "mounts": ["/my data:/x", "/b:/b:ro"]},
        {"gpu_count": 1, "gpu_memory_mb": "auto"},
    ],
)
def test_job_of_a_client_can_be_submitted_again_unchanged(nlp, member, fields):
    """As a browser does: it sends what it shows, with its own line breaks, and none of an input."""
    make_node(name="n1")
    job_id = submit(member, nlp, **fields)
    client = browser(member)
    page = text_of(client.get(f"/submit/?again={job_id}"))
    job = representation.select("j.id = %s", [job_id])[0]
    shown = {name: str(value) for name, value in typed(job).items() if value is not None}
    for name, value in shown.items():
        assert ("\n" in value) <= (f'<textarea id="id_{name}"' in page), name
    sent = {name: value.replace("\n", "\r\n") for name, value in shown.items()}
    previewed = msgspec.convert(shown_json(text_of(client.post("/submit/preview/", sent))), JobRequest)
    request = msgspec.convert(equivalent.request_of(job), JobRequest)
    assert words_of(previewed) == words_of(request)
    assert msgspec.structs.replace(previewed, command=[], args=[]) == msgspec.structs.replace(
        request, command=[], args=[]
    )


def words_of(request):
    """Return the words of a request; which of them are args does not matter."""
    return [*request.command, *request.args]


def test_variables_that_the_form_cannot_hold_are_named(nlp, member):
    """A second line would be another variable."""
    make_node(name="n1")
    job_id = submit(member, nlp, environment={"KEY": "a\nB=2", "LR": "1"})
    page = text_of(browser(member).get(f"/submit/?again={job_id}"))
    assert "Variables of several lines are missing here: KEY." in page
    assert shown_json(page)["environment"] == {"LR": "1"}
    plain = submit(member, nlp, environment={"LR": "1"})
    assert "are missing here" not in text_of(browser(member).get(f"/submit/?again={plain}"))


def test_equivalent_command_submits_same_job(everything, member):
    """Parse the displayed command: it is the same request."""
    import typer
    from typer.testing import CliRunner

    from gpusched.cli.flags import flags

    page = text_of(browser(member).post("/submit/preview/", everything))
    line = unescape(re.findall(r'id="as-command"[^>]*>(.*?)</pre>', page, re.S)[0])
    text = shlex.split(line.replace("\\\n", " "))
    found = []
    app = typer.Typer()

    @app.command(context_settings={"allow_interspersed_args": False})
    @flags.with_job_flags
    def run(*, jobs):
        found.extend(jobs)

    result = CliRunner().invoke(app, text[2:])
    assert result.exit_code == 0, result.output
    [job] = found
    assert msgspec.convert(job, JobRequest) == msgspec.convert(shown_json(page), JobRequest)


@pytest.mark.django_db(transaction=True)
def test_preview_shows_reason_and_alternatives(nlp, member):
    agent = make_node(name="n1", gpus=4)
    submit(member, nlp, gpu_count=3, max_runtime_minutes=60)
    run_cycle()
    agent.start_all()
    previous = query("SELECT count(*) AS n FROM jobs_job")
    page = text_of(browser(member).post("/submit/preview/", form(gpu_count="2", max_runtime_minutes="10")))
    assert "It would wait for 2 GPUs" in page
    assert "Starts between" in page or "Starts at about" in page
    assert query("SELECT count(*) AS n FROM jobs_job") == previous


def test_preview_shows_capacity_without_command(nlp, member):
    make_node(name="n1")
    page = text_of(browser(member).post("/submit/preview/", form(command="", gpu_count="1")))
    assert "Enter a command or a script. Then it would start now on n1." in page


def test_page_opens_before_the_scheduler_has_answered(nlp, member, monkeypatch):
    """In a queue of 13,000 jobs it takes seconds."""
    monkeypatch.setattr(submit_service, "simulate", lambda *_: pytest.fail("the page waits for the scheduler"))
    page = browser(member).get("/submit/").content.decode()
    assert re.search(r'hx-post="/submit/preview/" hx-trigger="load,', page)


@pytest.mark.parametrize(("status", "code"), [(503, "unanswered"), (429, "too_many_questions")])
def test_preview_without_an_answer_is_no_rejection(nlp, member, monkeypatch, status, code):
    def fail(*_: object) -> dict[str, object]:
        raise Problem(status, code, "it took longer than 20 s")

    monkeypatch.setattr(submit_service, "simulate", fail)
    page = text_of(browser(member).post("/submit/preview/", form(gpu_count="1")))
    assert "Whether it would start now is not known" in page and "rejected" not in page


def test_preview_shows_gpu_models(nlp, member):
    """`H100` means instances of one that is divided, too."""
    make_node(name="n1", gpus=1, model="NVIDIA H100 MIG 1g.10gb")
    page = text_of(browser(member).post("/submit/preview/", form(gpu_model="H100", gpu_count="1")))
    assert re.search(r'n1, GPU 0 <span class="muted">H100 MIG 1g\.10gb</span>', page)


def test_preview_refusal_names_its_field(nlp, member):
    page = text_of(browser(member).post("/submit/preview/", form(secrets="unknown")))
    assert "It would be rejected: Secrets:" in page and 'data-wrong="secrets"' in page
    checked = text_of(browser(member).post("/submit/", {**form(secrets="unknown"), "preview": "1"}))
    assert 'aria-describedby="e_secrets"' in checked


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"command": "python 'x"}, "Command: a quote is not closed: write it as in a shell."),
        ({"gpu_count": "many"}, "GPU count: Enter a whole number."),
    ],
)
def test_preview_with_invalid_field_has_no_equivalent(typed, message, nlp, member):
    """A command without what is wrong in it would be another job."""
    page = unescape(text_of(browser(member).post("/submit/preview/", form(**typed))))
    [name] = typed
    assert f"It would be rejected: {message}" in page and f'data-wrong="{name}"' in page
    assert 'id="as-command"' not in page and 'id="as-json"' not in page and "GPU-hours" not in page


def test_preview_shows_cost_and_remaining_budget(nlp, member):
    make_node(name="n1")
    rates.set_rate("*", Decimal(2), timezone.now() - timedelta(days=1), None, "test")
    requested = form(gpu_count="2", max_runtime_minutes="60")
    page = text_of(browser(member).post("/submit/preview/", requested))
    assert "At most 2 GPU-hours, 4 at current rates." in page
    Budget.objects.create(tenant=nlp, hard_gpu_hours=1)
    assert "More than the budget has left:</b> 1 GPU-hours in this month" in text_of(
        browser(member).post("/submit/preview/", requested)
    )
    unlimited = text_of(browser(member).post("/submit/preview/", form(gpu_count="2")))
    assert "No time limit, so no maximum: each hour uses 2 GPU-hours." in unlimited
    array = form(gpu_count="2", max_runtime_minutes="60", array="100%3")
    assert "At most 200 GPU-hours, 400 at current rates" in text_of(browser(member).post("/submit/preview/", array))
    array = form(gpu_count="2", array="100%3")
    assert "each hour uses 6 GPU-hours" in text_of(browser(member).post("/submit/preview/", array))


def test_preview_uses_the_default_time_limit_of_the_tenant(nlp, member):
    make_node(name="n1")
    rates.set_rate("*", Decimal(2), timezone.now() - timedelta(days=1), None, "test")
    Quota.objects.filter(tenant=nlp).update(default_runtime_minutes=90)
    page = unescape(text_of(browser(member).post("/submit/preview/", form(gpu_count="2"))))
    assert "At most 3 GPU-hours, 6 at current rates, by the tenant's default time limit of 90 min." in page
    own = text_of(browser(member).post("/submit/preview/", form(gpu_count="2", max_runtime_minutes="60")))
    assert "At most 2 GPU-hours, 4 at current rates." in own
    Budget.objects.create(tenant=nlp, hard_gpu_hours=1)
    assert "More than the budget has left:" in text_of(browser(member).post("/submit/preview/", form(gpu_count="2")))


def test_preview_does_not_read_ledger_per_key(nlp, member, monkeypatch):
    monkeypatch.setattr(budgets._recent, "seconds", 600.0)
    Budget.objects.create(tenant=nlp, soft_gpu_hours=9)
    client = browser(member)
    with CaptureQueriesContext(connection) as requested:
        for gpus in ("1", "2", "3"):
            assert "9 GPU-hours left" in text_of(client.post("/submit/preview/", form(gpu_count=gpus)))
    assert sum("tenants_usageentry" in entry["sql"] and "tenants_budget b" in entry["sql"] for entry in requested) == 1
    Budget.objects.update(soft_gpu_hours=5, version=F("version") + 1)
    assert "5 GPU-hours left" in text_of(client.post("/submit/preview/", form(gpu_count="1")))


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [("many", "must be a count like 100"), ("0", "must be between"), ("1%0", "must be a count like 100")],
)
def test_invalid_array_is_reported_beside_field(typed, sentence, nlp, member):
    page = text_of(browser(member).post("/submit/", form(array=typed)))
    assert sentence in page
    assert 'id="e_array"' in page
