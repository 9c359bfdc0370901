"""A Unix user that a node does not have: the job runs elsewhere, or waits and says for whom, and not for ever."""

import pytest

from gpusched.lib.db.sql import execute, query
from gpusched.protocol.agent_messages import Run
from gpusched.protocol.states import NodeIntent
from jobs.models import Attempt, Job
from nodes.health import cordon, missing_users
from nodes.inventory.representation import nodes
from tests.factories import FakeAgent, make_member, make_node, make_tenant, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)
SENTENCE = "there is no Unix user alice on the node; create it there, or change unix_user of the tenant"


@pytest.fixture
def alices():
    return make_tenant("alices", unix_user="alice")


def orders(agent: FakeAgent) -> list[str]:
    return [node.key for node in agent.sync().assignments if isinstance(node, Run)]


def refuse(agent: FakeAgent) -> None:
    agent.end(*agent.start_all(), exit_code=None, reason="no_account", detail=SENTENCE)


def let_pass(minutes: int) -> None:
    execute("UPDATE nodes_missinguser SET since = since - make_interval(mins => %s)", [minutes])


def test_job_goes_to_a_node_with_its_user_and_the_other_node_shows_the_missing_one(alices) -> None:
    user = make_member(alices)
    agents = {agent.name: agent for agent in (make_node(), make_node())}
    job_id = submit(user, alices)
    run_cycle()
    [first] = [agent for agent in agents.values() if orders(agent)]
    refuse(first)
    run_cycle()
    [second] = [agent for agent in agents.values() if orders(agent)]
    assert second is not first, "at once, and not on the node that has just refused it"
    assert nodes(None, first.name)[0]["missing_users"] == {"alice": SENTENCE}
    assert nodes(None, second.name)[0]["missing_users"] == {}
    second.start_all()
    assert Job.objects.get(pk=job_id).state == "running"


def test_jobs_of_other_users_still_start_on_the_node(alices, user, tenant) -> None:
    agent = make_node(gpus=2)
    submit(make_member(alices), alices)
    run_cycle()
    refuse(agent)
    other = submit(user, tenant)
    run_cycle()
    assert [key.split(".")[0] for key in orders(agent)] == [str(other)]


def test_job_without_a_node_for_its_user_waits_with_that_reason_until_the_retry(alices) -> None:
    agent = make_node()
    job_id = submit(make_member(alices), alices)
    run_cycle()
    refuse(agent)
    run_cycle()
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.reason, job.evidence) == ("pending", "constraint", {"constraint": "Unix user alice"})
    assert orders(agent) == []
    let_pass(missing_users.RETRY_MINUTES + 1)
    run_cycle()
    assert len(orders(agent)) == 1


def test_uncordon_retries_a_node_at_once(alices) -> None:
    agent = make_node()
    submit(make_member(alices), alices)
    run_cycle()
    refuse(agent)
    cordon.set_intent(agent.name, NodeIntent.OPEN)
    run_cycle()
    assert len(orders(agent)) == 1 and nodes(None, agent.name)[0]["missing_users"] == {}


def test_retries_for_a_missing_user_are_bounded_and_not_charged(alices) -> None:
    agent = make_node()
    job_id = submit(make_member(alices), alices)
    for _ in range(10):
        assert Job.objects.get(pk=job_id).state == "pending"
        run_cycle()
        refuse(agent)
        let_pass(missing_users.RETRY_MINUTES + 1)
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.reason, job.retries_used) == ("failed", "no_account", 0)
    assert (job.evidence["detail"], job.evidence["in_a_row"]) == (SENTENCE, 10)
    assert Attempt.objects.filter(job_id=job_id).count() == 10
    [charged] = query(
        "SELECT count(*) AS entries FROM tenants_usageentry e LEFT JOIN tenants_usagerefund r ON r.entry_id = e.id"
        " WHERE r.entry_id IS NULL"
    )
    assert charged["entries"] == 0


def test_tenant_without_a_user_goes_to_nodes_with_a_default_user(user, tenant) -> None:
    agents = {agent.name: agent for agent in (make_node(), make_node())}
    submit(user, tenant)
    run_cycle()
    [first] = [agent for agent in agents.values() if orders(agent)]
    refuse(first)
    run_cycle()
    assert not orders(first)
    let_pass(60 * 25)
    assert missing_users.drop_old() == 1
