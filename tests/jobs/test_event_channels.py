"""Events record the channel of their actor, and a bulk has one audit entry."""

import pytest
from django.test import Client

from gpusched.lib.db.sql import query
from jobs.lifecycle import states
from tests.api.calls import call
from tests.factories import make_member, make_node, make_tenant, make_token, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def member():
    return make_member(make_tenant("nlp"))


def events(job, token):
    return call("GET", f"/api/v1/jobs/{job}/events", token).json()["items"]


def test_each_event_has_the_channel_of_its_actor(member):
    token = make_token(member)
    via = f"token {token.partition('.')[0]}"
    node = make_node()
    job = call("POST", "/api/v1/jobs", token, {"command": ["true"], "gpu_count": 1}).json()["job_id"]
    call("POST", f"/api/v1/jobs/{job}/hold", token)
    page = Client()
    page.force_login(member)
    assert page.post(f"/jobs/{job}/release/").status_code < 400
    run_cycle()
    node.start_all()
    call("POST", f"/api/v1/jobs/{job}/extend", token, {"max_runtime_minutes": 60})
    node.end(*node.held)
    recorded = [(event["kind"], event["via"], event["actor"]) for event in events(job, token)]
    name = member.username
    assert recorded == [
        ("submitted", via, name),
        ("held", via, name),
        ("released", "page", name),
        ("scheduled", "scheduler", ""),
        ("started", "agent", ""),
        ("limit_changed", via, name),
        ("ended", "agent", ""),
    ]
    followed = call("GET", "/api/v1/events?since=0", token).json()["items"]
    assert [event["via"] for event in followed] == [channel for _, channel, _ in recorded]


def test_channel_does_not_leak_into_the_next_request(member):
    """One connection serves both requests."""
    first, second = submit(member, member.memberships.get().tenant), submit(member, member.memberships.get().tenant)
    call("POST", f"/api/v1/jobs/{first}/cancel", make_token(member))
    states.cancel_waiting([second], {}, "")
    assert events(second, make_token(member))[-1]["via"] == "scheduler"


def test_bulk_is_one_audit_entry(member):
    token = make_token(member)
    jobs = [{"command": ["true"]}] * 20
    ids = call("POST", "/api/v1/jobs/bulk", token, {"jobs": jobs}).json()["job_ids"]
    call("POST", "/api/v1/jobs/bulk?dry_run=true", token, {"jobs": jobs})
    [entry] = query("SELECT * FROM lib_auditentry WHERE action = 'jobs.submit.bulk'")
    assert entry["subject"] == f"jobs {ids[0]} to {ids[-1]}"
    assert entry["after"] == {"count": 20, "first_id": ids[0], "last_id": ids[-1]}
    assert (entry["actor"], entry["via"]) == (member.username, f"token {token.partition('.')[0]}")
    assert {events(job, token)[0]["via"] for job in ids} == {entry["via"]}
