"""No topic, page or route names another tenant, its users or its jobs to a member."""

import json

import pytest

from frontend.live import feed, topics
from frontend.pages.fleet import rows as fleet
from gpusched.lib.db.sql import execute, rows
from gpusched.protocol.agent_messages import Reading
from nodes.models import Node
from tests.factories import make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.frontend.browsing import PAGES
from tests.serving.requests import make_endpoint

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def agent():
    """With a node on which a job of others runs and is named in all texts."""
    agent = make_node(gpus=1)
    agent.sync(readings=[Reading(uuid=d.uuid, utilisation_percent=50) for d in agent.devices])
    theirs = make_tenant("theirs")
    name_them_everywhere(agent, make_member(theirs, name="zoe"), theirs)
    return agent


def name_them_everywhere(agent, user, tenant):
    """A job of theirs, and texts of the fleet that name them and it."""
    make_endpoint(tenant, user, name="zebra")
    job_id = submit(user, tenant, name="zebra")
    run_cycle()
    agent.start_all()
    Node.objects.update(
        intent="cordoned", intent_note=f"held after 2 node faults: jobs {job_id}, zebra",
        hints=[{"check": "users", "level": "fail", "says": "zoe has no account", "next_step": "make zoe"}],
    )  # fmt: skip
    execute("UPDATE nodes_device SET health = 'foreign', health_note = 'pid 7 of zoe (zebra)'")
    execute("UPDATE nodes_reading SET occupancy = 'foreign', occupant = 'pid 7 of zoe (zebra)'")
    execute(
        "INSERT INTO nodes_missinguser (node_id, unix_user, detail, since) SELECT id, 'zoe', 'of theirs', now() FROM nodes_node"
    )


def topics_of(job_id, agent):
    """One topic of each kind."""
    [[endpoint]] = rows("SELECT id FROM serving_endpoint")
    named = {"job": f"job:{job_id}", "node": f"node:{agent.name}", "tenant": "tenant:theirs"}
    named |= {kind: f"{kind}:{endpoint}" for kind in ("endpoint", "endpoint-settings")}
    return {kind: named.get(kind, kind) for kind in topics.topics() if kind != "activity"}


def addresses_of(job_id, agent, device_id):
    """Pages that tell of the fleet, and the same by REST."""
    node = f"/nodes/{agent.name}/"
    return (*PAGES, node, f"{node}gpus/{device_id}/actions/", "/overview/?wall=1", "/api/v1/nodes", f"/api/v1{node[:-1]}",
            "/api/v1/gpus", "/api/v1/queue", "/api/v1/jobs", "/api/v1/events", "/api/v1/cluster/status")  # fmt: skip


class TestHiddenTenants:
    """A08: another tenant appears as a number of GPUs in every text, topic, page and route."""

    def test_pages_and_feed_never_name_other_tenants(self, anna, ours, agent, client):
        [[job_id]] = rows("SELECT id FROM jobs_job")
        requested = topics_of(job_id, agent)
        observed = {kind: json.dumps(feed.rows(topic, [ours.pk], anna.pk)) for kind, topic in requested.items()}
        client.force_login(anna)
        [[device_id]] = rows("SELECT id FROM nodes_device")
        for address in addresses_of(job_id, agent, device_id):
            answer = client.get(address)
            assert answer.status_code == 200, address
            observed[address] = answer.content.decode()
        assert {
            place: word
            for place, text in observed.items()
            for word in ("theirs", "zoe", "zebra", "pid 7")
            if word in text
        } == {}

    def test_member_sees_problem_and_admin_sees_cause(self, anna, ours, agent, client):
        [[job_id]] = rows("SELECT id FROM jobs_job")
        client.force_login(anna)
        page = client.get(f"/nodes/{agent.name}/").content.decode()
        assert "a process that gpusched did not start uses it" in page and "the system holds it, because" in page
        [row] = feed.rows("nodes", [ours.pk]).values()
        assert (row["intent_note"], row["devices"][0]["health"]) == ("held after 2 node faults", "foreign")
        [row] = feed.rows("nodes", None).values()
        assert row["intent_note"].endswith(f"jobs {job_id}, zebra")
        assert row["devices"][0]["health_note"] == "pid 7 of zoe (zebra)"
        client.force_login(make_user("root", admin=True))
        payload = client.get(f"/api/v1/nodes/{agent.name}").json()
        assert (payload["devices"][0]["health_note"], payload["missing_users"]) == (
            "pid 7 of zoe (zebra)",
            {"zoe": "of theirs"},
        )

    def test_admin_rows_do_not_leak_to_members(self, ours, agent):
        """Rows are cached for viewers of the same tenants, also after a load without changes."""
        existing = fleet.load()
        for repeated in (existing, fleet.reload(existing, None, ())):
            for visible in (None, [ours.pk], None, []):
                payload = json.dumps(fleet.restrict(repeated, visible))
                assert all((word in payload) == (visible is None) for word in ("theirs", "zoe", "zebra"))
