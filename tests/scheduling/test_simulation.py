"""Simulated submits: answers of the same engine, without writes."""

import pytest

from gpusched.lib.db.sql import query
from jobs.models import Job
from scheduling import policy
from tests.api.calls import call
from tests.factories import make_member, make_node, make_tenant, make_token, run_cycle, submit
from tests.scheduling.reservations.booking import reserve

pytestmark = pytest.mark.django_db(transaction=True)


def simulate(user, path="/api/v1/jobs/simulate", status=200, **fields):
    answer = call("POST", path, make_token(user), {"command": ["true"], "gpu_count": 1, **fields})
    assert answer.status_code == status, answer.content
    return answer.json()


def test_fitting_request_shows_where_it_would_start(user, tenant):
    node = make_node(gpus=4, name="n1")
    answer = simulate(user, gpu_count=2)
    assert (answer["starts_now"], answer["sentence"], answer["tenant"]) == (True, "it would start now on n1", "nlp")
    [rank] = answer["placement"]
    assert (rank["node"], rank["gpus"]) == (node.name, [0, 1])


def test_cluster_without_pending_jobs_answers(user, tenant):
    """A snapshot of the cycle knows nothing then."""
    assert simulate(user, gpu_count=1)["reason"]["code"] == "constraint"


def test_nothing_is_written(user, tenant):
    make_node(gpus=4)
    previous = query("SELECT last_value FROM jobs_job_id_seq")
    simulate(user, gpu_count=2)
    simulate(user, path="/api/v1/jobs?dry_run=true", gpu_count=2)
    assert not Job.objects.exists()
    assert query("SELECT last_value FROM jobs_job_id_seq") == previous


def test_waiting_request_shows_why_when_and_what_would_start_it(user, tenant):
    node = make_node(gpus=8)
    submit(user, tenant, gpu_count=5, max_runtime_minutes=60)
    run_cycle()
    node.start_all()
    answer = simulate(user, gpu_count=4)
    assert (answer["starts_now"], answer["placement"], answer["victims"]) == (False, [], None)
    assert answer["reason"]["code"] == "capacity"
    assert answer["estimate"]["p90_at"] is not None
    assert answer["alternatives"][0] == {
        "change": "gpu_count",
        "to": 3,
        "starts": True,
        "sentence": "with 3 GPUs it would start",
    }
    assert simulate(user, gpu_count=answer["alternatives"][0]["to"])["starts_now"] is True


def test_victims_are_counted_and_only_own_jobs_named(user, tenant):
    other = make_tenant("other")
    node = make_node(gpus=8)
    own = submit(user, tenant, gpu_count=4, priority=300)
    submit(make_member(other), other, gpu_count=4, priority=300)
    run_cycle()
    node.start_all()
    _have_run_for_an_hour()
    waiting = simulate(user, gpu_count=8, priority=2000)
    assert (waiting["reason"]["code"], waiting["reason"]["evidence"]["victims"]) == ("preempt_delay", 2)
    policy.change({"preemption_delay_seconds": 0}, actor="test")
    answer = simulate(user, gpu_count=8, priority=2000)
    assert answer["reason"]["code"] == "reclaim_pending"
    victims = answer["victims"]
    assert (victims["jobs"], victims["gpus"], victims["rule"]) == (2, 8, "priority")
    assert victims["own_jobs"] == [own]
    assert abs(victims["lost_gpu_seconds"] - 8 * 3600) < 60
    assert not Job.objects.filter(state="stopping").exists()


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [({"gpu_count": -1}, 400, "invalid"), ({"gpu_count": 9}, 422, "never_fits"), ({"tenant": "x"}, 404, "not_found")],
)
def test_simulation_is_refused_like_the_submit(user, tenant, fields, status, code):
    """A04: and both doors refuse alike."""
    make_node(gpus=8)
    refusals = [simulate(user, path, status, **fields) for path in ("/api/v1/jobs/simulate", "/api/v1/jobs")]
    assert [refusal["code"] for refusal in refusals] == [code, code]
    assert refusals[0]["detail"] == refusals[1]["detail"]


def test_dry_run_of_a_submit_has_the_same_answer(user, tenant):
    make_node(gpus=8, name="n1")
    dry = simulate(user, path="/api/v1/jobs?dry_run=true", gpu_count=2)
    assert dry["simulation"] == simulate(user, gpu_count=2)
    assert dry["message"] == "nothing was submitted; in the queue of tenant nlp it would start now on n1"


def _have_run_for_an_hour():
    from gpusched.lib.db.sql import execute

    execute(
        "UPDATE jobs_attempt SET started_at = started_at - interval '1 hour', scheduled_at = now() - interval '2 hours'"
    )
    execute("UPDATE jobs_job SET started_at = started_at - interval '1 hour'")


def test_request_for_a_reservation_waits_for_its_start(user, tenant):
    make_node(gpus=4)
    reservation = reserve(user, tenant, start=30)
    answer = simulate(user, reservation=reservation.pk)
    assert (answer["starts_now"], answer["reason"]["code"]) == (False, "reservation_pending")
    assert answer["reason"]["evidence"]["reservation"] == reservation.pk


def test_grace_period_counts_before_a_reservation_of_others(user, tenant):
    make_node(gpus=1)
    other = make_tenant("other")
    reserve(make_member(other), other, start=10)
    answer = simulate(user, max_runtime_minutes=8, grace_seconds=180)
    assert (answer["starts_now"], answer["reason"]["code"]) == (False, "reserved_soon")
    assert simulate(user, max_runtime_minutes=8, grace_seconds=60)["starts_now"] is True


def test_request_does_not_start_on_a_node_without_the_unix_user_of_its_tenant(user, tenant):
    node = make_node(gpus=1)
    submit(user, tenant)
    run_cycle()
    node.end(*node.start_all(), exit_code=None, reason="no_account", detail="no such user")
    answer = simulate(user)
    assert (answer["starts_now"], answer["reason"]["code"]) == (False, "constraint")
    assert "Unix user" in answer["sentence"]
