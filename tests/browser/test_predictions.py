"""Predicted run times on the page of a job and in the form, with the runs they come from (A70)."""

import re
import subprocess
import sys

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_work_pages import AXE, SERIOUS
from tests.system.stack import ROOT, Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that no other test runs, as all share one control plane."""
    path = tmp_path_factory.mktemp("predictions") / "forecast.py"
    path.write_text("import time\ntime.sleep(0.2)\n")
    return str(path)


# Without cgroups an agent measures no memory, so the peaks are written; what housekeeping has learned, is learned again.
_LEARN = """
from gpusched.lib.db.sql import execute
from jobs.models import Attempt
from scheduling.history.learning import learn

Attempt.objects.filter(job_id__in={jobs}).update(outcomes={{"0": {{"peak_memory_mb": 5000, "peak_memory_of": "rank"}}}})
execute("DELETE FROM scheduling_runhistory")
execute("UPDATE scheduling_learningprogress SET event_id = 0")
learn()
"""


@pytest.fixture(scope="module")
def learned(stack: Stack, script: str) -> list[str]:
    """Run a command three times, and learn from the ends without waiting for housekeeping. Return the command."""
    command = ["python3", script, "--seed", "1"]
    with stack.client() as client:
        jobs = [client.submit(command, gpus=1) for _ in range(3)]
        for job in jobs:
            client.wait(job.id, timeout=60)

        def is_learned() -> bool:
            learn = _LEARN.format(jobs=[job.id for job in jobs])
            subprocess.run(
                [sys.executable, "manage.py", "shell", "-v0", "-c", learn],
                cwd=ROOT,
                env=stack.environment(),
                check=True,
            )
            return "forecast.py" in getattr(client.simulate(command, gpus=1).predicted, "source", "")

        wait_for(is_learned, seconds=60)
    return command


def test_job_page_shows_the_predicted_run_time_with_its_runs(page: Page, stack: Stack, learned: list[str]) -> None:
    with stack.client() as client:
        waiting = client.submit(learned, gpus=1, not_before="2099-01-01T00:00:00Z")
        try:
            for width in (1440, 390):
                page.set_viewport_size({"width": width, "height": 900})
                page.goto(f"/jobs/{waiting.id}/?tab=why")
                shown = page.locator("dd.predicted")
                expect(shown).to_contain_text("Median of your last 3 runs of forecast.py: ")
                expect(shown).to_be_in_viewport(ratio=1)
            page.evaluate(AXE.read_text())
            assert page.evaluate(SERIOUS) == []
        finally:
            client.cancel(waiting.id)


def test_submit_form_shows_the_predicted_run_time_and_advice_on_memory(
    page: Page, script: str, learned: list[str]
) -> None:
    page.goto("/submit/")
    page.locator("[name=tenant]").select_option("default")  # other tests add tenants
    page.locator("[name=command]").fill(f"python3 {script} --seed 7")
    expect(page.locator(".verdict")).to_contain_text("Median of your last 3 runs of forecast.py: ")
    advice = page.locator("dd.advice")
    expect(advice).to_contain_text(re.compile(r"Your last 3 runs of forecast.py used at most 5,000 MiB of the node"))
    expect(advice).to_contain_text("request memory_mb ")
    page.locator("[name=command]").fill("python other.py")
    expect(page.locator(".verdict")).to_contain_text(re.compile(r"Median of your last \d+ runs with "))
