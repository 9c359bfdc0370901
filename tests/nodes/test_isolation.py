"""Isolation facts of nodes, and the peak memory of ranks."""

import pytest
from msgspec.structs import replace

from gpusched.protocol.agent_messages import Isolation
from jobs.models import Attempt, Job
from nodes.inventory.representation import nodes
from nodes.models import Node
from tests.factories import FakeAgent, make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def represented_isolation(agent: FakeAgent, isolation: Isolation | None) -> object:
    agent.sync(facts=replace(agent.facts(), isolation=isolation))
    return nodes(None, agent.name)[0]["isolation"]


def test_node_shows_its_isolation_and_an_older_agent_shows_none() -> None:
    agent = make_node()
    assert represented_isolation(agent, Isolation(cgroup=True, limits=["memory", "cpu"], users="any")) == {
        "cgroup": True, "limits": ["memory", "cpu"], "users": "any", "why": "",
    }  # fmt: skip
    assert represented_isolation(agent, None) == {}


def test_isolation_from_a_hostile_agent_is_bounded() -> None:
    agent = make_node()
    represented_isolation(agent, Isolation(limits=["x" * 1000] * 1000, users="x" * 1000, why="x" * 1000))
    assert len(str(Node.objects.get().isolation)) < 1000


def test_peak_memory_is_stored_with_the_attempt(user, tenant) -> None:
    agent = make_node()
    job_id = submit(user, tenant)
    run_cycle()
    agent.end(*agent.start_all(), peak_memory_mb=1234, peak_memory_of="rank")
    outcome = Attempt.objects.get(job_id=job_id).outcomes["0"]
    assert (outcome["peak_memory_mb"], outcome["peak_memory_of"]) == (1234, "rank")


def test_missing_unix_user_is_a_node_fault_whose_sentence_reaches_the_owner(user, tenant) -> None:
    """The job goes back to the queue, and no retry is used up; without requeue the sentence names node and user."""
    agent = make_node()
    sentence = "there is no Unix user alice on the node"
    waiting, failing = submit(user, tenant), submit(user, tenant, requeue=False)
    run_cycle()
    keys = agent.start_all()
    agent.end(*keys, exit_code=None, reason="no_account", detail=sentence)
    job = Job.objects.get(pk=failing)
    assert (job.state, job.reason, job.evidence["detail"]) == ("failed", "no_account", sentence)
    assert (Job.objects.get(pk=waiting).state, Job.objects.get(pk=waiting).retries_used) == ("pending", 0)
    assert Node.objects.get().intent == "open", "what an admin wrote wrong is no defect of the machine"
