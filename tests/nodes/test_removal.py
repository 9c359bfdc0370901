"""A node is removed: no list has it, its agent is refused, its history stays, and its name is free (A42)."""

import json

import pytest
from django.test import Client

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import execute, query
from gpusched.lib.models import AuditEntry
from gpusched.protocol.agent_messages import Join
from jobs.models import Attempt
from nodes.health.incidents import of_nodes
from nodes.inventory import join
from nodes.inventory.removal import REFUSAL
from nodes.models import Device, Incident, Node
from scheduling.status.cluster import agents, cluster_status
from tenants.models import UsageEntry
from tests.factories import FakeAgent, make_node, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def root():
    return make_token(make_user("root", admin=True))


def ask(token, method, path, body=""):
    answer = Client().generic(
        method, f"/api/v1/{path}", body, content_type="application/json",
        headers={"authorization": f"Bearer {token}"},
    )  # fmt: skip
    return answer.status_code, json.loads(answer.content)


def lose(name):
    execute("UPDATE nodes_node SET state = 'lost' WHERE name = %s", [name])


def join_token():
    return join.create_join_token(1.0, "root")[0].prefix


@pytest.fixture
def used(user, tenant):
    """A node on which a job has run."""
    agent = make_node(name="n1", gpus=2)
    job_id = submit(user, tenant)
    run_cycle()
    agent.end(*agent.start_all())
    return agent, job_id


def test_lost_node_with_past_jobs_is_removed_and_its_history_stays(root, used):
    """A42."""
    _, job_id = used
    lose("n1")
    status, answer = ask(root, "DELETE", "nodes/n1")
    assert (status, answer["status"]) == (200, "removed")
    assert answer["message"] == "node n1 is removed; its history stays, and the name can be joined again"
    assert Attempt.objects.get(job_id=job_id).placement[0]["node"] == "n1"
    assert UsageEntry.objects.get(job_id=job_id).node == "n1"
    [incident] = Incident.objects.filter(kind="node_lost")
    assert incident.until is not None
    assert incident.node.name == "n1"
    assert [row["node"] for row in ask(root, "GET", "incidents")[1]["items"]] == ["n1"]
    entry = AuditEntry.objects.get(action="node.remove")
    assert (entry.actor, entry.subject) == ("root", "node n1")


def test_removed_node_is_in_no_list(root, used):
    """A42: gone from every list but history."""
    lose("n1")
    make_node(name="n2", gpus=1)
    ask(root, "DELETE", "nodes/n1")
    assert [node["name"] for node in ask(root, "GET", "nodes")[1]["items"]] == ["n2"]
    assert {gpu["node"] for gpu in ask(root, "GET", "gpus")[1]["items"]} == {"n2"}
    assert ask(root, "GET", "nodes/n1")[0] == 404
    assert ask(root, "DELETE", "nodes/n1")[0] == 404
    assert ask(root, "POST", "nodes/n1/drain")[0] == 404
    assert (agents()["total"], agents()["lost"]) == (1, 0)
    assert cluster_status()["total_nodes"] == 1
    assert Device.objects.count() == 1


def test_pages_and_metrics_exclude_a_removed_node(client, root, used):
    lose("n1")
    ask(root, "DELETE", "nodes/n1")
    client.force_login(make_user("boss", admin=True))
    for page in ("/", "/nodes/", "/fleet/", "/search/?q=n1"):
        answer = client.get(page)
        assert answer.status_code == 200, page
        assert 'href="/nodes/n1/"' not in answer.content.decode(), page
    assert client.get("/nodes/n1/").status_code == 404
    metrics = Client().get("/metrics", headers={"authorization": f"Bearer {root}"}).content.decode()
    assert 'gpu_scheduler_agents{state="lost"} 1' not in metrics


def test_open_node_that_reports_cannot_be_removed(root):
    make_node(name="n1", gpus=1)
    status, answer = ask(root, "DELETE", "nodes/n1")
    assert (status, answer["code"]) == (409, "wrong_state")
    assert "drain it first" in answer["next_step"]
    ask(root, "POST", "nodes/n1/drain")
    assert ask(root, "DELETE", "nodes/n1")[0] == 200


def test_node_with_a_job_cannot_be_removed(root, user, tenant):
    agent = make_node(name="n1", gpus=1)
    submit(user, tenant)
    run_cycle()
    agent.start_all()
    ask(root, "POST", "nodes/n1/drain")
    status, answer = ask(root, "DELETE", "nodes/n1")
    assert (status, answer["code"], answer["detail"]) == (409, "in_use", "1 job on node n1 has not ended")
    assert Node.objects.get().removed_at is None


def test_member_cannot_remove_a_node(user):
    make_node(name="n1", gpus=1)
    lose("n1")
    assert ask(make_token(user), "DELETE", "nodes/n1")[0] == 403


class TestItsAgent:
    def test_credential_of_a_removed_node_is_refused_with_the_reason(self, root, used):
        agent, _ = used
        lose("n1")
        ask(root, "DELETE", "nodes/n1")
        answer = Client().post(
            "/agent/sync", "{}", content_type="application/json",
            headers={"authorization": f"Bearer {agent.credential}"},
        )  # fmt: skip
        assert (answer.status_code, answer.json()["code"]) == (401, "node_removed")
        assert answer.json()["detail"] == REFUSAL

    def test_message_over_an_open_connection_is_refused_and_restores_nothing(self, root, used):
        agent, _ = used
        lose("n1")
        ask(root, "DELETE", "nodes/n1")
        assert agent.sync(facts=agent.facts()).error == REFUSAL
        assert Device.objects.count() == 0
        assert Node.objects.get().state == "lost"

    def test_agent_cannot_rejoin_with_its_old_token(self, root, used):
        agent, _ = used
        old = join_token()
        lose("n1")
        ask(root, "DELETE", "nodes/n1")
        message = Join(name="n1", node_key=agent.key, facts=agent.facts())
        with pytest.raises(Problem, match="node 'n1' was removed by an admin") as caught:
            join.join_node(message, 2.0, old)
        assert (caught.value.status, caught.value.code) == (401, "node_removed")

    def test_machine_rejoins_as_a_new_node_with_a_new_token(self, root, used, user, tenant):
        agent, _ = used
        lose("n1")
        ask(root, "DELETE", "nodes/n1")
        execute("UPDATE nodes_node SET removed_at = removed_at - interval '1 second'")
        joined = join.join_node(Join(name="n1", node_key=agent.key, facts=agent.facts()), 2.0, join_token())
        assert joined.node_id != agent.id
        agent.id = joined.node_id
        agent.sync(facts=agent.facts())
        submit(user, tenant)
        run_cycle()
        assert len(agent.start_all()) == 1
        assert [node["name"] for node in ask(root, "GET", "nodes")[1]["items"]] == ["n1"]

    def test_another_machine_takes_the_name(self, root, used):
        lose("n1")
        ask(root, "DELETE", "nodes/n1")
        other = FakeAgent("n1", gpus=1)
        assert other.sync().error is None


def test_job_that_fits_only_the_removed_node_is_rejected(root, user, tenant, monkeypatch):
    """A42."""
    monkeypatch.setattr("scheduling.admission._clusters.seconds", 0.0)
    make_node(name="big", gpus=8)
    make_node(name="small", gpus=2)
    submit(user, tenant, gpu_count=8)
    lose("big")
    ask(root, "DELETE", "nodes/big")
    with pytest.raises(Problem) as caught:
        submit(user, tenant, gpu_count=8)
    assert caught.value.code == "never_fits"


@pytest.mark.parametrize("gpus", [0, 1])
def test_plan_for_a_node_removed_meanwhile_is_void(root, user, tenant, gpus):
    from scheduling.cycle import commit, snapshot
    from scheduling.engine.planner import plan

    make_node(name="n1", gpus=gpus)
    job_id = submit(user, tenant, gpu_count=gpus, cpu_cores=1)
    present, listed = snapshot.load()
    decided = plan(present, listed.policy, listed.now)
    assert decided.placements
    ask(root, "POST", "nodes/n1/drain")
    assert ask(root, "DELETE", "nodes/n1")[0] == 200
    assert commit.commit(decided, present, listed).placed == 0
    assert query("SELECT state FROM jobs_job WHERE id = %s", [job_id]) == [{"state": "pending"}]


class TestCapacity:
    """A42: a node that has been lost for longer than GPUSCHED_LOST_NODE_CAPACITY_SECONDS."""

    @pytest.fixture
    def big_is_lost(self):
        make_node(name="big", gpus=8)
        make_node(name="small", gpus=2)
        lose("big")

    def age(self, hours):
        execute("UPDATE nodes_incident SET since = since - make_interval(hours => %s)", [hours])

    def test_recently_lost_node_counts_as_capacity(self, big_is_lost, user, tenant):
        self.age(23)
        submit(user, tenant, gpu_count=8)

    def test_job_that_fits_only_a_long_lost_node_is_rejected(self, big_is_lost, user, tenant):
        self.age(25)
        with pytest.raises(Problem) as caught:
            submit(user, tenant, gpu_count=8)
        assert caught.value.code == "never_fits"

    def test_pending_job_reports_that_no_node_is_left_for_it(self, big_is_lost, user, tenant):
        job_id = submit(user, tenant, gpu_count=8)
        self.age(25)
        run_cycle()
        assert query("SELECT state, reason FROM jobs_job WHERE id = %s", [job_id]) == [
            {"state": "pending", "reason": "never_fits"}
        ]

    def test_node_that_reports_again_counts_as_capacity(self, user, tenant):
        big = make_node(name="big", gpus=8)
        make_node(name="small", gpus=2)
        lose("big")
        self.age(25)
        with pytest.raises(Problem):
            submit(user, tenant, gpu_count=8)
        big.sync()
        submit(user, tenant, gpu_count=8)
        run_cycle()
        assert len(big.start_all()) == 1


def test_history_of_a_removed_node_is_separate_from_the_next_of_its_name(root, used):
    """A42: the incidents and jobs of a node are of its own machine."""
    lose("n1")
    ask(root, "DELETE", "nodes/n1")
    make_node(name="n1", gpus=2)
    assert of_nodes(["n1"]) == {"n1": []}
    assert [row["node"] for row in ask(root, "GET", "incidents")[1]["items"]] == ["n1"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "nodes/n1", ""),
        ("DELETE", "nodes/n1", ""),
        ("POST", "nodes/n1/cordon", "{}"),
        ("GET", "nodes/n1/labels", ""),
    ],
)
def test_removed_node_is_refused_with_the_time_of_its_removal(root, used, method, path, body):
    lose("n1")
    ask(root, "DELETE", "nodes/n1")
    execute("UPDATE nodes_node SET removed_at = '2030-01-31 08:00:00+00' WHERE name = 'n1'")
    status, answer = ask(root, method, path, body)
    assert (status, answer["code"]) == (404, "not_found")
    assert answer["detail"] == "node 'n1' was removed by an admin at 2030-01-31 08:00:00 UTC; its history stays"


def test_page_of_a_removed_node_shows_when_it_was_removed(root, used, client):
    lose("n1")
    ask(root, "DELETE", "nodes/n1")
    execute("UPDATE nodes_node SET removed_at = '2030-01-31 08:00:00+00' WHERE name = 'n1'")
    client.force_login(make_user("ann"))
    answer = client.get("/nodes/n1/")
    assert answer.status_code == 404
    assert "was removed by an admin at 2030-01-31 08:00:00 UTC" in answer.content.decode()
