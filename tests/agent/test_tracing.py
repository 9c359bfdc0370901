"""Traces by OpenTelemetry's standard variables: off without them, and never an obstacle."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpusched import tracing
from tests.agent.control import eventually
from tests.collector import Collector, traced

ROOT = Path(__file__).resolve().parents[2]
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector():
    with Collector() as running:
        yield running


@pytest.fixture(autouse=True)
def _off(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    tracing.stop()
    yield
    tracing.stop()


def test_tracing_imports_nothing_of_opentelemetry_when_it_is_off():
    modules = "gpusched.asgi", "scheduling.worker.tasks", "gpusched.agent.main"
    code = (
        "import importlib, sys; import gpusched.asgi\n"
        f"for module in {modules}: importlib.import_module(module)\n"
        "from gpusched import tracing\n"
        "tracing.start('x'); tracing.load()\n"
        "assert not tracing.is_on()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry') or name == 'gpusched.otel']"
    )
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "gpusched.settings"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_SERVICE_NAME": "x"},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "otlp"},
    ],
)
def test_tracing_is_off_unless_the_variables_request_it(variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    tracing.start("x")
    assert not tracing.is_on()
    with tracing.span("anything") as is_traced:
        assert not is_traced
        assert tracing.traceparent() == ""


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin is not otlp, console or none"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "=grpc is not http/protobuf"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_BSP_MAX_QUEUE_SIZE": "0"}, "a variable OTEL_… is wrong"),
    ],
)
def test_tracing_stays_off_and_logs_why_when_a_variable_is_wrong(variables, sentence, monkeypatch, caplog):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    tracing.start("x")
    assert not tracing.is_on()
    assert sentence in caplog.text


@pytest.mark.parametrize(
    "variable",
    ["OTEL_PROPAGATORS=bogus", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=x", "OTEL_TRACES_SAMPLER=bogus", "OTEL_PYTHON_CONTEXT=bogus",
     "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER=bogus", "OTEL_EXPORTER_OTLP_CERTIFICATE=/nonexistent"],
)  # fmt: skip
def test_process_continues_whatever_the_variables_are(variable):
    """The SDK reads some variables when it is imported, so each needs its own process."""
    name, _, value = variable.partition("=")
    code = (
        "from gpusched import tracing; tracing.load(); tracing.start('x')\n"
        "with tracing.span('cycle', {'gpusched.trigger': 'tick'}): tracing.traceparent()\n"
        "print('went on')"
    )
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", name: value}
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "went on\n")


def test_malformed_headers_are_not_repeated_in_the_log(collector, monkeypatch, caplog):
    with traced(collector, monkeypatch, OTEL_EXPORTER_OTLP_HEADERS="Authorization: Bearer hunter2"):
        assert tracing.is_on()
    assert "Header format invalid" in caplog.text
    assert "hunter2" not in caplog.text


def test_tracing_names_the_extra_when_opentelemetry_is_not_installed():
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'opentelemetry': raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from gpusched import tracing\n"
        "tracing.load(); tracing.start('x'); assert not tracing.is_on()"
    )
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "otlp"}
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr.count("pip install 'gpusched[tracing]'")) == (0, 1)


def test_spans_reach_the_collector_with_their_service_and_attributes(collector, monkeypatch):
    with traced(collector, monkeypatch):
        with tracing.span("outer", {"gpusched.trigger": "tick"}), tracing.span("inner"):
            tracing.describe({"gpusched.placed": 3})
        with pytest.raises(KeyError), tracing.span("broken"):
            raise KeyError("a secret")
    [outer], [inner], [broken] = (collector.named(name) for name in ("outer", "inner", "broken"))
    assert (outer.service, outer.parent_id, outer.attributes) == ("gpusched-test", "", {"gpusched.trigger": "tick"})
    assert (inner.trace_id, inner.parent_id) == (outer.trace_id, outer.span_id)
    assert inner.attributes == {"gpusched.placed": 3}
    assert (broken.is_error, broken.attributes) == (True, {"error.type": "KeyError"})
    assert not any(b"a secret" in body for body in collector.bodies)


def test_standard_variables_name_the_service_and_choose_the_sample(collector, monkeypatch):
    with traced(collector, monkeypatch, OTEL_SERVICE_NAME="mine"), tracing.span("named"):
        pass
    with traced(collector, monkeypatch, OTEL_TRACES_SAMPLER="always_off"), tracing.span("unsampled"):
        assert int(tracing.traceparent()[-2:], 16) & 1 == 0
    assert [(span.service, span.name) for span in collector.spans] == [("mine", "named")]


def test_recorded_span_belongs_to_the_trace_of_its_traceparent(collector, monkeypatch):
    with traced(collector, monkeypatch):
        tracing.record("launch", 1000.0, 1000.5, {"gpusched.job_id": 7}, traceparent=TRACEPARENT)
        tracing.record("launch", 2000.0, 2000.5, {}, traceparent="", error="node_fault")
    first, second = collector.named("launch")
    assert (first.trace_id, first.parent_id) == (TRACEPARENT.split("-")[1], TRACEPARENT.split("-")[2])
    assert (first.began_at, first.ended_at, first.is_error) == (1000.0, 1000.5, False)
    assert (second.parent_id, second.is_error, second.attributes["error.type"]) == ("", True, "node_fault")


def test_unreachable_collector_is_logged_once_and_spans_are_dropped(collector, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    collector.status = 400
    with traced(collector, monkeypatch, OTEL_BSP_MAX_QUEUE_SIZE="8", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="4"):
        for number in range(100):
            with tracing.span(f"dropped {number}"):
                pass
        eventually(lambda: "accepts no traces" in caplog.text, 10, "the log line")
        for number in range(100):
            with tracing.span(f"dropped {number}"):
                pass
    lines = [record for record in caplog.records if record.name.startswith(("opentelemetry", "gpusched.otel"))]
    [logged] = [record.getMessage() for record in lines if record.name == "gpusched.otel"]
    assert "400" in logged, "the reason"
    assert len(lines) <= 2, "the second one says that the queue is full"
    assert collector.spans == []


def test_collector_that_is_back_gets_spans_again(collector, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    collector.status = 400
    with traced(collector, monkeypatch):
        with tracing.span("dropped"):
            pass
        eventually(lambda: "accepts no traces" in caplog.text, 10, "the log line")
        collector.status = 200
        with tracing.span("kept"):
            pass
        eventually(lambda: "accepts traces again" in caplog.text, 10, "the log line")
    assert [span.name for span in collector.spans] == ["kept"]


def test_collector_that_never_answers_does_not_block_spans_or_the_end(collector, monkeypatch):
    collector.release.clear()
    with traced(collector, monkeypatch, OTEL_BSP_MAX_QUEUE_SIZE="64", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="8"):
        began = time.monotonic()
        for number in range(1000):
            with tracing.span(f"span {number}"):
                pass
        assert time.monotonic() - began < 2
        began = time.monotonic()
        tracing.stop()
        assert time.monotonic() - began < 5
    assert collector.spans == []


def test_process_that_ends_sends_its_last_spans(collector):
    code = "from gpusched import tracing; tracing.start('short')\nwith tracing.span('last'): pass"
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "60000"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
    assert [(span.service, span.name) for span in collector.spans] == [("short", "last")]


def test_forked_process_sends_its_own_spans(collector):
    """The worker of cycles, which django-q2 forks, does the same."""
    code = (
        "import multiprocessing\n"
        "from gpusched import tracing\n"
        "def work():\n"
        "    tracing.start('forked')\n"
        "    with tracing.span('cycle'): pass\n"
        "tracing.load()\n"
        "for _ in range(2):\n"
        "    child = multiprocessing.get_context('fork').Process(target=work, daemon=True)\n"
        "    child.start(); child.join(); assert child.exitcode == 0\n"
    )
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "60000"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
    assert [(span.service, span.name) for span in collector.spans] == [("forked", "cycle")] * 2


@pytest.mark.parametrize(
    "text",
    ["", "x", TRACEPARENT[:-1], TRACEPARENT + "0", TRACEPARENT.upper(), TRACEPARENT.replace("00-", "ff-", 1),
     f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-{'a' * 32}-{'0' * 16}-01", f"{TRACEPARENT}\n"],
)  # fmt: skip
def test_invalid_traceparent_is_ignored(text):
    assert tracing.checked(text) == ""
    assert tracing.checked(TRACEPARENT) == TRACEPARENT


# --- the agent --------------------------------------------------------------------------------------------------------

SHOW = ("sh", "-c", "echo traced=$TRACEPARENT collector=$OTEL_EXPORTER_OTLP_ENDPOINT")


def test_launch_is_a_span_of_the_trace_of_the_submit(agent, control, collector):
    key = control.run(*SHOW, traceparent=TRACEPARENT, environment={"TOKEN": "hush"})
    began = time.time()
    agent.start(environment=collector.environment)
    control.end_of(key)
    eventually(lambda: collector.named("launch"), 10, "the span")
    [launch] = collector.named("launch")
    assert (launch.service, launch.is_error) == ("gpusched-agent", False)
    assert (launch.trace_id, launch.parent_id) == (TRACEPARENT.split("-")[1], TRACEPARENT.split("-")[2])
    assert launch.attributes == {
        "gpusched.job_id": 1, "gpusched.attempt": 1, "gpusched.rank": 0, "gpusched.node": "node-a"
    }  # fmt: skip
    assert began < launch.began_at < launch.ended_at < time.time()
    eventually(lambda: control.logs.get(key), 10, "the log")
    assert control.logs[key] == f"traced={TRACEPARENT} collector=\n".encode()
    assert not any(b"hush" in body or b"echo" in body for body in collector.bodies)


def test_launch_that_fails_is_an_error_with_its_reason(agent, control, collector):
    key = control.run("/nonexistent/program", traceparent=TRACEPARENT)
    agent.start(environment=collector.environment)
    reason = control.end_of(key).reason
    eventually(lambda: collector.named("launch"), 10, "the span")
    [launch] = collector.named("launch")
    assert (launch.is_error, launch.attributes["error.type"], reason) == (True, "launch_failed", "launch_failed")


def test_job_gets_the_trace_context_without_traces_of_the_agent_unless_it_sets_its_own(agent, control):
    traced_key = control.run(*SHOW, job=1, traceparent=TRACEPARENT)
    own_key = control.run(*SHOW, job=2, traceparent=TRACEPARENT, environment={"TRACEPARENT": "mine"})
    plain = control.run(*SHOW, job=3)
    agent.start()
    for key in (traced_key, own_key, plain):
        control.end_of(key)
    eventually(lambda: len(control.logs) == 3, 10, "the logs")
    traceparents = [control.logs[key].split()[0] for key in (traced_key, own_key, plain)]
    assert traceparents == [f"traced={TRACEPARENT}".encode(), b"traced=mine", b"traced="]


def test_agent_runs_jobs_and_ends_in_time_when_the_collector_never_answers(agent, control, collector):
    collector.release.clear()
    key = control.run("true")
    process = agent.start(environment=collector.environment)
    assert control.end_of(key).exit_code == 0
    process.terminate()
    assert process.wait(20) == 0
