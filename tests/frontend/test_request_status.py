"""Status of requests on jobs, nodes and GPUs on pages: requested, confirmed, or what is missing."""

import re
from typing import Any

import pytest

from gpusched.lib.db.sql import execute, query
from tests.factories import FakeAgent, make_node, make_user, run_cycle, submit
from tests.frontend.browsing import browser, text_of
from tests.jobs.arrays import submit_array

pytestmark = pytest.mark.django_db(transaction=True)
LATE = "interval '2 minutes 20 seconds'"


@pytest.fixture
def node() -> FakeAgent:
    return make_node(name="n1", gpus=4)


@pytest.fixture
def running(nlp: Any, member: Any, node: FakeAgent) -> int:
    job_id = submit(member, nlp, gpu_count=1, max_runtime_minutes=60)
    run_cycle()
    node.start_all()
    return job_id


def asked_of(job_id: int, member: Any) -> str:
    """Return the status beside the buttons as text; the fragment equals the page."""
    message = []
    for path in (f"/jobs/{job_id}/", f"/jobs/{job_id}/actions/"):
        result = re.findall(r'<p class="confirmation.*?</p>', text_of(browser(member).get(path)), re.S)
        message.append(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", result[0])) + _awaited(result[0]) if result else "")
    assert message[0] == message[1]
    return message[0]


def _awaited(html: str) -> str:
    return " AWAITED" if "data-awaited" in html else ""


def wait_two_minutes() -> None:
    execute("SET session_replication_role = replica")
    execute(f"UPDATE jobs_jobevent SET at = at - {LATE}")
    execute("SET session_replication_role = DEFAULT")


def silence(name: str) -> None:
    execute(f"UPDATE nodes_node SET last_seen_at = clock_timestamp() - {LATE} WHERE name = %s", [name])


@pytest.mark.parametrize(("verb", "word"), [("cancel", "Cancel"), ("requeue", "Requeue")])
def test_stop_is_confirmed_when_no_process_is_left(
    verb: str, word: str, running: int, node: FakeAgent, member: Any
) -> None:
    browser(member).post(f"/jobs/{running}/{verb}/")
    message = asked_of(running, member)
    assert f"{word}: ○ requested node n1 is ending its processes" in message and "AWAITED" in message
    wait_two_minutes()
    assert "▲ not confirmed yet node n1 is ending its processes" in asked_of(running, member)
    silence("n1")
    assert "▲ not confirmed yet node n1 silent for 2 min" in asked_of(running, member)
    node.end(*node.held, reason="cancelled" if verb == "cancel" else "requeued")
    message = asked_of(running, member)
    assert f"{word}: ✓ confirmed by n1" in message and "AWAITED" not in message


def test_lost_node_confirms_nothing(running: int, node: FakeAgent, member: Any) -> None:
    """A37: the job has ended for us; its processes may live until the node is online again, which it is without them."""
    browser(member).post(f"/jobs/{running}/cancel/")
    key = node.held[0]
    execute("UPDATE nodes_assignment SET state = 'ended', ended_at = clock_timestamp(), reason = 'node_lost'")
    execute(
        "UPDATE jobs_job SET state = 'cancelled', stop_reason = '', stop_evidence = '{}', ended_at = clock_timestamp()"
    )
    execute("UPDATE nodes_node SET state = 'lost'")
    wait_two_minutes()
    silence("n1")
    assert "not confirmed yet node n1 silent for 2 min" in asked_of(running, member)
    node.sync(held=[key], running=[key])
    assert "not confirmed yet node n1 is ending its processes" in asked_of(running, member)
    node.sync(held=[], running=[])
    assert "confirmed by n1" in asked_of(running, member)


def test_gang_is_confirmed_by_all_ranks(nlp: Any, member: Any) -> None:
    nodes = {name: make_node(name=name, gpus=2) for name in ("n1", "n2")}
    job_id = submit(member, nlp, gpu_count=4, gang_scheduling=True, ranks=2)
    run_cycle()
    for node in nodes.values():
        node.start_all()
    browser(member).post(f"/jobs/{job_id}/cancel/")
    assert "requested node n1, n2 is ending" in asked_of(job_id, member)
    nodes["n2"].end(*nodes["n2"].held, reason="cancelled")
    assert "requested node n1 is ending" in asked_of(job_id, member)
    nodes["n1"].end(*nodes["n1"].held, reason="cancelled")
    assert "confirmed by n1, n2" in asked_of(job_id, member)


def test_new_time_limit_is_confirmed_when_in_force(running: int, node: FakeAgent, member: Any) -> None:
    browser(member).post(f"/jobs/{running}/extend/", {"max_runtime_minutes": "90"})
    assert "Time limit: ○ requested node n1 has not applied it" in asked_of(running, member)
    wait_two_minutes()
    silence("n1")
    assert "not confirmed yet node n1 silent for 2 min" in asked_of(running, member)
    node.sync(limits={node.held[0]: 1})
    assert "confirmed by n1" in asked_of(running, member)
    browser(member).post(f"/jobs/{running}/extend/", {"max_runtime_minutes": "80"})
    assert "requested" in asked_of(running, member)


def test_request_on_waiting_job_is_confirmed_at_once(nlp: Any, member: Any) -> None:
    job_id = submit(member, nlp, max_runtime_minutes=60)
    assert asked_of(job_id, member) == ""
    for verb, word in (
        ("hold", "Hold"),
        ("release", "Release"),
        ("extend", "Time limit"),
        ("cancel", "Cancel"),
        ("retry", "Retry"),
    ):
        browser(member).post(f"/jobs/{job_id}/{verb}/", {"max_runtime_minutes": "90"})
        message = asked_of(job_id, member)
        assert f"{word}: ✓ confirmed" in message and "AWAITED" not in message


def test_array_stop_is_confirmed_when_all_elements_stopped(nlp: Any, member: Any, node: FakeAgent) -> None:
    array_id = submit_array(member, nlp, 3)
    run_cycle()
    node.start_all()
    browser(member).post(f"/jobs/{array_id}/cancel/")
    assert "requested node n1 is ending its processes" in asked_of(array_id, member)
    node.end(*node.held, reason="cancelled")
    assert "Cancel: ✓ confirmed" in asked_of(array_id, member)


def test_old_confirmed_request_is_hidden(running: int, node: FakeAgent, member: Any) -> None:
    browser(member).post(f"/jobs/{running}/cancel/")
    node.end(*node.held, reason="cancelled")
    for _ in range(20):
        wait_two_minutes()
    assert asked_of(running, member) == ""


def test_fleet_panel_shows_same_request_status(running: int, node: FakeAgent, member: Any) -> None:
    [allocated] = query("SELECT device_id FROM nodes_allocation")
    admin = browser(make_user(admin=True))
    panel = f"/nodes/n1/gpus/{allocated['device_id']}/actions/"
    execute("UPDATE scheduling_beat SET at = now() - interval '1 hour'")
    admin.post(f"/jobs/{running}/cancel/")
    admin.post(f"/nodes/n1/gpus/{allocated['device_id']}/quarantine/", {"note": "smells"})
    admin.post("/nodes/n1/cordon/")
    page = text_of(admin.get(panel))
    assert [word in page for word in ("Cancel:", "Quarantine:", "Cordon:")] == [True] * 3
    assert page.count("data-awaited") == 3
    run_cycle()
    node.end(*node.held, reason="cancelled")
    assert "data-awaited" not in text_of(admin.get(panel))
    admin.post(f"/nodes/n1/gpus/{allocated['device_id']}/clear/")
    admin.post("/nodes/n1/uncordon/")
    run_cycle()
    page = text_of(admin.get(panel))
    assert ["Clear:" in page, "it accepts jobs again" in page, "data-awaited" in page] == [True, True, False]


def test_action_returns_to_the_same_tab(nlp: Any, member: Any) -> None:
    """Without the page's script; only to the same page of this site."""
    job_id = submit(member, nlp)
    client = browser(member)

    def leads_to(referer: str) -> str:
        verb = "hold" if "held" not in query("SELECT state FROM jobs_job")[0]["state"] else "release"
        return str(client.post(f"/jobs/{job_id}/{verb}/", headers={"referer": referer})["Location"])

    bare = f"/jobs/{job_id}/"
    assert leads_to(f"http://testserver{bare}?tab=log&log=1.0") == f"{bare}?tab=log&log=1.0"
    for other in (f"http://evil.example{bare}?tab=log", "http://testserver/queue/?q=x", "", "http://[", "garbage"):
        assert leads_to(other) == bare


def test_action_answers_json_to_scripts(nlp: Any, member: Any) -> None:
    job_id = submit(member, nlp)
    client = browser(member)
    answer = client.post(f"/jobs/{job_id}/hold/", headers={"accept": "application/json"})
    assert answer.json() == {"is_done": True, "sentence": f"Job {job_id} is held."}
    assert "is held." not in text_of(client.get(f"/jobs/{job_id}/")), "it is not repeated"
