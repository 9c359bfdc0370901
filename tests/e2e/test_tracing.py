"""Traces of the whole system, whose settings stand in a file."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.collector import Collector
from tests.system.stack import ROOT, Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.e2e
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("settings") / "server.toml"
    file.write_text('log_format = "json"\nlog_level = "INFO"\ntick_seconds = 0.5\n')
    return file


@pytest.fixture(scope="module")
def stack(collector: Collector, file: Path) -> Iterator[Stack]:
    """A system that traces and has its settings in a file, whose path is relative to the start."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in collector.environment.items():
            patched.setenv(name, value)
        with Stack(config=os.path.relpath(file, ROOT)) as running:
            running.fleet(1)
            yield running


def test_one_trace_spans_from_submit_to_process(stack, collector):
    """The spans of web process, worker and agent."""
    headers = {"Authorization": f"Bearer {stack.token()}", "traceparent": f"00-{TRACE}-{PARENT}-01"}
    body = {"command": ["sh", "-c", "echo $TRACEPARENT"], "gpu_count": 1, "tenant": "default"}
    answer = httpx.post(f"{stack.url}/api/v1/jobs", json=body, headers=headers, timeout=30)
    job = stack.client().get(answer.json()["job_id"])
    assert job.wait(timeout=60).exit_code == 0
    wait_for(lambda: collector.named("launch") and collector.named("cycle"), 30, "the spans")
    [submit] = collector.named("POST /api/v1/jobs")
    [launch] = collector.named("launch")
    assert (submit.service, submit.trace_id, submit.parent_id) == ("gpusched-web", TRACE, PARENT)
    assert (launch.service, launch.trace_id, launch.parent_id) == ("gpusched-agent", TRACE, submit.span_id)
    assert submit.ended_at <= launch.ended_at
    wait_for(lambda: submit.context in job.logs().text, 30, "the log")
    assert {span.service for span in collector.named("cycle")} == {"gpusched-worker"}
    assert {span.service for span in collector.named("agent.sync")} == {"gpusched-web"}
    assert not any(b"echo" in part or stack.token().encode() in part for part in collector.bodies)
    assert not [line for line in stack.output().splitlines() if "opentelemetry" in line]


def test_every_process_honours_the_settings_file(stack):
    for part, logger in (("web", "gpusched.lib.request_id"), ("cycles", "scheduling.worker.leadership")):
        lines = (stack.data_dir / "output" / f"{part}.log").read_text().splitlines()
        assert any(json.loads(line)["logger"] == logger for line in lines if line.startswith("{")), part
