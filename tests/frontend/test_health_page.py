"""Health and My work: incidents with next steps, agents, the control plane, and results of jobs."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from gpusched import __version__
from gpusched.lib.db.sql import execute, query
from gpusched.lib.models import AuditEntry
from gpusched.protocol.states import NodeIntent
from nodes.health import cordon
from nodes.models import Node
from nodes.redaction import AUTO_CORDON_NOTE
from tests.factories import make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.frontend.browsing import browser, found, text_of

pytestmark = pytest.mark.django_db
PATH = "/cluster/health/"


@pytest.fixture
def admin():
    return browser(make_user("root", admin=True))


def causes(client):
    """Return node and cause of the listed incidents."""
    page = text_of(client.get(PATH))
    cells = re.findall(r'(?s)<tr data-key="incident.*?/nodes/(n\d)/.*?data-label="Cause" class="wide">(.*?)</td>', page)
    return {(node, re.sub(r"<.*?>", "", cause).strip()) for node, cause in cells}


class TestHealth:
    def test_health_page_says_when_nothing_is_wrong(self, admin):
        make_node(name="n1")
        run_cycle()
        Node.objects.update(agent_version=__version__)
        page = text_of(admin.get(PATH))
        assert "No open incidents." in page and "1 / 1</b><span>agents online" in page
        assert "All agents run this version" in page

    def test_health_page_claims_no_health_without_nodes(self, admin):
        run_cycle()
        page = text_of(admin.get(PATH))
        assert "No open incidents." not in page and 'No node has joined yet.</b> <a href="/join/"' in page

    def test_health_page_alerts_when_scheduler_stopped(self, admin):
        make_node(name="n1")
        assert "The scheduler is not running" in text_of(admin.get(PATH))
        run_cycle()
        page = text_of(admin.get(PATH))
        assert "The scheduler is not running" not in page and "PostgreSQL " in page

    def test_incidents_show_cause_and_next_step_then_history(self, admin):
        make_node(name="n1", gpus=2)
        execute("UPDATE nodes_device SET health = 'degraded', health_note = 'Xid 48' WHERE index = 1")
        page = text_of(admin.get(PATH))
        row = found(r'(?s)id="open".*?<tbody>(.*?)</tbody>', page)
        assert "GPU 1" in row and "Xid 48" in row and "repair the hardware" in row and 'href="/nodes/n1/"' in row
        execute("UPDATE nodes_device SET health = 'ok', health_note = '' WHERE index = 1")
        page = text_of(admin.get(PATH))
        assert "No open incidents." in page
        assert "Xid 48" in page[page.index('id="history"') :]

    def test_deviating_agents_are_listed_with_notes(self, admin):
        make_node(name="n1").sync(at=(timezone.now() + timedelta(seconds=90)).isoformat())
        make_node(name="n2")
        Node.objects.filter(name="n2").update(agent_version="0.0.1")
        page = text_of(admin.get(PATH))
        assert re.search(r"its clock is (89|90) s ahead", page)
        assert f"agent 0.0.1, server {__version__}" in page

    def test_health_page_hides_causes_and_control_plane_from_members(self, nlp, member):
        """A08."""
        make_node(name="n1", gpus=1)
        execute("UPDATE nodes_device SET health = 'foreign', health_note = 'pid 7 of eve'")
        page = text_of(browser(member).get(PATH))
        assert "foreign" in page and "only admins see this" in page
        assert "pid 7" not in page and "PostgreSQL" not in page and "All agents" not in page

    def test_node_activity_is_public_but_causes_are_for_admins(self, member, admin):
        """A08."""
        make_node(name="n1", gpus=1)
        for client in (admin, browser(member)):
            assert "no node failed" in text_of(client.get(PATH))
        execute(
            "UPDATE nodes_node SET state = 'lost', intent = 'cordoned', intent_note = 'held after 2 node faults: 7'"
        )
        execute("UPDATE nodes_device SET health = 'quarantined', health_note = 'dirty for 10 minutes: pid 7 of eve'")
        payload = {
            "node n1 stopped reporting": "node n1 stopped reporting",
            "node n1 is held after 2 node faults: 7": "node n1 is held after 2 node faults",
            "GPU 0 of n1 was quarantined: dirty for 10 minutes: pid 7 of eve": "GPU 0 of n1 was quarantined",
        }
        for client, sentences in ((admin, set(payload)), (browser(member), set(payload.values()))):
            did = found(r'(?s)id="did">.*?<ul class="list did">(.*?)</ul>', text_of(client.get(PATH)))
            assert set(re.findall(r'<a href="/nodes/n1/">(.*?)</a>', did)) == sentences

    @pytest.mark.django_db(transaction=True)
    def test_cordon_note_is_public_but_its_author_is_for_admins(self, member, admin):
        for name in ("n1", "n2", "n3"):
            make_node(name=name)
        admin.post("/nodes/n1/cordon/", {"note": "new fans"})
        admin.post("/nodes/n2/drain/")
        cordon.set_intent("n3", NodeIntent.CORDONED, f"{AUTO_CORDON_NOTE}2 node faults: jobs 770001")

        assert causes(browser(member)) == {("n1", "new fans"), ("n2", "\u2013"), ("n3", "held after 2 node faults")}
        expected = {
            ("n1", "new fans (by root)"),
            ("n2", "by root"),
            ("n3", f"{AUTO_CORDON_NOTE}2 node faults: jobs 770001"),
        }
        assert causes(admin) == expected
        assert "new fans" in text_of(admin.get("/nodes/n1/")) and "(by root)" in text_of(admin.get("/nodes/n1/"))
        admin.post("/nodes/n1/uncordon/")
        browser(make_user("other", admin=True)).post("/nodes/n1/cordon/")
        assert causes(admin) == {*expected, ("n1", "by other")}, "each time has its own"

    @pytest.mark.django_db(transaction=True)
    def test_second_cordon_note_keeps_the_first_with_authors(self, admin):
        make_node(name="n1")
        other = browser(make_user("other", admin=True))
        admin.post("/nodes/n1/cordon/", {"note": "new fans"})
        since = query("SELECT since FROM nodes_incident")[0]["since"]
        other.post("/nodes/n1/cordon/", {"note": "waits for a part"})
        admin.post("/nodes/n1/cordon/", {"note": "waits for a part"})
        assert causes(admin) == {("n1", "waits for a part (by other)")}
        assert query("SELECT since FROM nodes_incident")[0]["since"] == since, "it lasts since it was closed"
        admin.post("/nodes/n1/uncordon/")
        admin.post("/nodes/n1/cordon/", {"note": "again"})
        assert causes(admin) == {("n1", "waits for a part (by other)"), ("n1", "again (by root)")}
        kept = AuditEntry.objects.filter(action="node.intent", actor="other")
        assert [(row.before, row.after) for row in kept] == [({"note": "new fans"}, {"note": "waits for a part"})]

    @pytest.mark.django_db(transaction=True)
    def test_auto_cordon_taken_over_by_admin_stays_automatic(self, admin):
        make_node(name="n1")
        cordon.set_intent("n1", NodeIntent.CORDONED, f"{AUTO_CORDON_NOTE}2 node faults: jobs 770001")
        admin.post("/nodes/n1/cordon/", {"note": "new fans"})
        assert causes(admin) == {("n1", "held after 2 node faults: jobs 770001"), ("n1", "new fans (by root)")}
        assert "node n1 is held after 2 node faults" in text_of(admin.get(PATH))

    @pytest.mark.django_db(transaction=True)
    def test_automatic_actions_are_listed(self, nlp, member, admin):
        agent = make_node(name="n1")
        job = submit(member, nlp, name="train")
        run_cycle()
        [key] = agent.start_all()
        agent.end(key, exit_code=None, reason="node_fault")
        for client in (admin, browser(member)):
            did = found(r'(?s)id="did">.*?<ul class="list did">(.*?)</ul>', text_of(client.get(PATH)))
            assert f'href="/jobs/{job}/"' in did and "failed under it" in did
        stranger = browser(make_member(make_tenant("other")))
        assert "failed under it" not in text_of(stranger.get(PATH))


class TestMyWork:
    def test_home_redirects_users_to_my_work(self, member, admin):
        assert browser(member).get("/")["Location"] == "/mine/"
        assert "<h1>Overview</h1>" in text_of(admin.get("/"))

    def test_my_work_teaches_first_job_to_new_users(self, nlp, member):
        page = text_of(browser(member).get("/mine/"))
        assert "Your first job" in page and "gpusched run --tenant nlp --gpus 1 -- nvidia-smi" in page
        assert "gpusched login http://testserver" in page
        submit(member, nlp, gpu_count=0)
        assert "Your first job" not in text_of(browser(member).get("/mine/"))

    @pytest.mark.django_db(transaction=True)
    def test_my_work_lists_only_own_jobs(self, nlp, member):
        agent = make_node(name="n1", gpus=2)
        done = submit(member, nlp, gpu_count=1, name="done")
        run_cycle()
        agent.start_all()
        agent.end(f"{done}.1.0", exit_code=3)
        submit(member, nlp, gpu_count=2, name="runs")
        run_cycle()
        agent.start_all()
        submit(member, nlp, gpu_count=2, name="waits")
        submit(make_member(nlp), nlp, gpu_count=1, name="of-somebody-else")
        run_cycle()
        page = text_of(browser(member).get("/mine/"))
        parts = {
            part: found(rf'(?s)<h2 id="{part}">(.*?)</section>', page) for part in ("running", "waiting", "recent")
        }
        assert "runs" in parts["running"] and "waits for 2 GPUs" in parts["waiting"]
        assert "exited with code 3" in parts["recent"]
        assert "of-somebody-else" not in page
        assert "2 GPUs, 2 of them yours" in page

    def test_my_work_shows_remaining_limits(self, member):
        tenant = make_tenant("capped", quota={"max_gpus": 4, "max_gpus_per_user": 2})
        page = text_of(browser(make_member(tenant)).get("/mine/"))
        assert "<b>4</b> GPUs of the tenant" in page and "<b>2</b> GPUs of your own" in page

    @pytest.mark.django_db(transaction=True)
    def test_my_work_shows_results_of_own_jobs(self, nlp, member, admin):
        make_node(name="n1")
        job = submit(member, nlp, name="train")
        run_cycle()
        admin.post(f"/jobs/{job}/cancel/")
        assert "train" in found(r'(?s)<h2 id="notices">(.*?)</section>', text_of(browser(member).get("/mine/")))
        assert query("SELECT 1 FROM jobs_jobevent WHERE actor = 'root'")
