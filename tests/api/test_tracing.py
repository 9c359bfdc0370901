"""The server's traces: requests, cycles, agents' messages, and the context of a submit on its way to the job."""

import json

import msgspec
import pytest
from django.test import Client

from gpusched.protocol.agent_messages import Run, Sync
from jobs.models import Job
from scheduling.cycle import run as cycles
from tests.collector import Collector, traced
from tests.factories import make_member, make_node, make_tenant, make_token, now, run_cycle

pytestmark = pytest.mark.django_db(transaction=True)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SERVER, INTERNAL = 2, 1


@pytest.fixture
def collector():
    with Collector() as running:
        yield running


@pytest.fixture
def headers():
    tenant = make_tenant("nlp")
    return {"Authorization": f"Bearer {make_token(make_member(tenant))}"}


def post(path, body, headers):
    return Client().post(f"/api/v1/{path}", json.dumps(body), content_type="application/json", headers=headers)


def submit(headers, path="jobs", **fields) -> int:
    answer = post(path, {"command": ["true"], "gpu_count": 1, **fields}, headers)
    assert answer.status_code == 201, answer.content
    return int(answer.json()["job_id"])


def test_request_is_a_span_by_route_and_status_of_the_callers_trace(collector, monkeypatch, headers):
    job = submit(headers)
    with traced(collector, monkeypatch):
        answer = Client().get(f"/api/v1/jobs/{job}", headers={**headers, "traceparent": TRACEPARENT})
    [span] = collector.spans
    assert (span.name, span.kind) == ("GET /api/v1/jobs/<id:job_id>", SERVER)
    assert (span.trace_id, span.parent_id) == (TRACEPARENT.split("-")[1], TRACEPARENT.split("-")[2])
    assert span.attributes == {
        "http.request.method": "GET", "http.route": "/api/v1/jobs/<id:job_id>", "http.response.status_code": 200,
        "gpusched.request_id": answer["X-Request-Id"], "gpusched.job_id": job,
    }  # fmt: skip
    assert not span.is_error


def test_request_without_route_or_with_an_unknown_method_has_a_plain_name(collector, monkeypatch):
    with traced(collector, monkeypatch):
        Client().get("/nowhere/of/secret-4711")
        Client().generic("BREW", "/api/v1/health")
    assert [span.name for span in collector.spans] == ["GET", "HTTP /api/v1/health"]
    assert collector.spans[1].attributes["http.request.method"] == "_OTHER"
    assert not any(b"4711" in body or b"BREW" in body for body in collector.bodies)


def test_request_that_fails_is_an_error(collector, monkeypatch):
    monkeypatch.setattr("scheduling.api.queue.Health.get", lambda *_: 1 / 0)
    with traced(collector, monkeypatch):
        answer = Client(raise_request_exception=False).get("/api/v1/health")
    [span] = collector.spans
    assert (answer.status_code, span.is_error, span.attributes["http.response.status_code"]) == (500, True, 500)


def test_submit_stores_its_span_as_the_trace_context_of_the_job(collector, monkeypatch, headers):
    with traced(collector, monkeypatch):
        operation = submit({**headers, "traceparent": TRACEPARENT})
        answer = post("jobs/bulk", {"jobs": [{"command": ["true"]}, {"command": ["false"]}]}, headers)
    [single, bulk] = collector.spans
    assert Job.objects.get(pk=operation).traceparent.rpartition("-")[0] == single.context
    assert single.trace_id == TRACEPARENT.split("-")[1]
    stored = Job.objects.filter(pk__in=answer.json()["job_ids"]).values_list("traceparent", flat=True)
    assert [operation.rpartition("-")[0] for operation in stored] == [bulk.context] * 2


@pytest.mark.parametrize("sent", [TRACEPARENT, "00-zz", "x" * 5000, None])
def test_submit_keeps_the_callers_context_when_the_server_does_not_trace(sent, headers):
    job = submit({**headers, **({"traceparent": sent} if sent else {})})
    assert Job.objects.get(pk=job).traceparent == (TRACEPARENT if sent == TRACEPARENT else "")
    assert Job.objects.get(pk=submit(headers)).traceparent == "", "nothing of an earlier request in this thread is left"


def test_trace_context_of_the_submit_reaches_the_node_also_for_array_elements(headers):
    node = make_node()
    sent = {**headers, "traceparent": TRACEPARENT}
    submit(sent)
    submit(sent, array={"count": 2})
    submit(headers)
    run_cycle()
    runs = [order for order in node.sync().assignments if isinstance(order, Run)]
    assert sorted(run.spec.traceparent for run in runs) == ["", *[TRACEPARENT] * 3]


def test_cycle_is_a_span_with_its_phases(collector, monkeypatch, headers):
    make_node()
    submit(headers)
    with traced(collector, monkeypatch):
        cycles.run("event")
    [cycle] = collector.named("cycle")
    assert cycle.attributes == {
        "gpusched.trigger": "event", "gpusched.pending": 1, "gpusched.placed": 1, "gpusched.preempted": 0, "gpusched.stale": 0,
    }  # fmt: skip
    phases = sorted(
        (span for span in collector.spans if span.parent_id == cycle.span_id), key=lambda span: span.began_at
    )
    assert [span.name for span in phases] == ["cycle.sweep", "cycle.snapshot", "cycle.plan", "cycle.commit"]
    assert {span.trace_id for span in phases} == {cycle.trace_id}
    assert all(cycle.began_at <= span.began_at <= span.ended_at <= cycle.ended_at for span in phases)


def test_cycle_that_fails_is_an_error_of_its_phase(collector, monkeypatch):
    def broken(*_):
        raise RuntimeError("hush")

    monkeypatch.setattr(cycles, "plan", broken)
    with traced(collector, monkeypatch), pytest.raises(RuntimeError):
        cycles.run("tick")
    assert {span.name for span in collector.spans if span.is_error} == {"cycle", "cycle.plan"}
    assert not any(b"hush" in body for body in collector.bodies)


def test_agent_messages_are_a_span_also_below_their_request(collector, monkeypatch):
    node = make_node()
    message = msgspec.json.encode(Sync(seq=9, at=now(), boot_id="boot-1"))
    with traced(collector, monkeypatch):
        node.sync()
        headers = {"Authorization": f"Bearer {node.credential}"}
        answer = Client().post("/agent/sync", message, content_type="application/json", headers=headers)
    assert answer.status_code == 200
    alone, below = collector.named("agent.sync")
    [request] = collector.named("POST /agent/sync")
    assert (alone.parent_id, below.parent_id) == ("", request.span_id)
    assert alone.attributes == {"gpusched.messages": 1}


def test_traces_contain_no_command_environment_secret_or_token(collector, monkeypatch, headers):
    secret = {
        "command": ["hush-1"],
        "args": ["hush-2"],
        "environment": {"TOKEN": "hush-3"},
        "workdir": "/hush-4",
        "name": "hush-5",
    }
    with traced(collector, monkeypatch):
        submit(headers, **secret)
        post("jobs?x=hush-6", {"command": ["hush-7"], "gpu_count": "hush-8"}, {**headers, "X-Secret": "hush-9"})
        make_node()
        run_cycle()
    assert len(collector.spans) > 5
    token = headers["Authorization"].removeprefix("Bearer ").encode()
    assert not any(b"hush" in body or token in body for body in collector.bodies)
