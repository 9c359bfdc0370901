"""The list of nodes and the node page: problems, next steps, allocations and actions."""

import re

import pytest
from msgspec import structs

from gpusched.lib.db.sql import execute, query
from gpusched.protocol.agent_messages import Hint, Reading
from nodes.models import Node
from tests.factories import make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.frontend.browsing import HOSTILE, browser, found, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin():
    return browser(make_user(admin=True))


def set_health(health, note="", index=0):
    execute("UPDATE nodes_device SET health = %s, health_note = %s WHERE index = %s", [health, note, index])
    return query("SELECT id FROM nodes_device WHERE index = %s", [index])[0]["id"]


def lanes_of(client):
    """Return the markup of the holders of each GPU of n1 in the last hour."""
    return re.findall(r'(?s)<div class="lane" .*?</div></div>', text_of(client.get("/nodes/n1/?span=1h")))


class TestList:
    def test_node_page_shows_no_free_resources_of_lost_node(self, admin):
        make_node(name="n1", gpus=1)
        assert "the node is lost" not in text_of(admin.get("/nodes/n1/"))
        Node.objects.update(state="lost")
        page = text_of(admin.get("/nodes/n1/"))
        assert page.count('<span class="na" title="the node is lost: no job can start on it">n/a</span>') == 2

    def test_node_page_hides_stale_readings_of_lost_node(self, admin):
        agent = make_node(name="n1", gpus=2)
        agent.sync(readings=[Reading(uuid=d.uuid, utilisation_percent=86) for d in agent.devices])
        page = text_of(admin.get("/nodes/n1/"))
        assert "86 %" in page
        assert "state-ok" in page
        Node.objects.update(state="lost")
        set_health("quarantined", index=1)
        page = text_of(admin.get("/nodes/n1/"))
        assert "86 %" not in page
        assert "state-ok" not in page
        assert "state-quarantined" in page
        cell = found(r'data-label="Health">(.*?)</td>', page)
        assert cell == '<span class="na" title="its node is lost">n/a</span>'
        assert page.count('<span class="na" title="its node is lost">n/a</span>') == 2 * 6 + 1

    def test_node_list_explains_single_machine_without_gpus(self, member):
        make_node(name="n1", gpus=0)
        assert "This machine has no NVIDIA GPU, so it runs CPU jobs." in text_of(browser(member).get("/nodes/"))


class TestOneNode:
    @pytest.mark.parametrize(
        ("health", "way", "button"),
        [
            ("foreign", "It recovers when that process ends", False),
            ("dirty", "Kill the process that is named", False),
            ("dirty", "reboot the node", False),
            ("quarantined", "Clear it once the cause is fixed", True),
            ("degraded", "reset or replace it", True),
            ("lost", "retire it", False),
            ("hot", "10 °C below", False),
        ],
    )
    def test_node_problem_shows_next_step(self, health, way, button, admin):
        make_node(name="n1", gpus=1)
        device = set_health(health, "pid 42 of bob")
        page = text_of(admin.get("/nodes/n1/"))
        trouble = found(rf'(?s)<li id="trouble-{device}-{health}">(.*?)</li>', page)
        assert way in trouble and "pid 42 of bob" in trouble and "<time" in trouble
        assert ("Clear GPU" in trouble) == button

    def test_node_page_shows_gpu_of_mig_instance(self, admin):
        node = make_node(name="n1", gpus=1)
        full = node.devices[0]
        parts = [
            structs.replace(full, uuid=f"MIG-{slot}", index=100 + slot, model="NVIDIA H100 MIG 1g.10gb", mig_parent=full.uuid,
                    mig_slices=1)
            for slot in range(2)
        ]  # fmt: skip
        node.sync(facts=structs.replace(node.facts(), devices=parts))
        page = text_of(admin.get("/nodes/n1/"))
        assert f'title="MIG-1, an instance of {full.uuid}">H100 MIG 1g.10gb</span>' in page
        assert "slices" not in page

    @pytest.mark.parametrize(("verb", "intent"), [("cordon", "cordoned"), ("drain", "draining"), ("uncordon", "open")])
    def test_admin_cordons_and_uncordons_node(self, verb, intent, admin):
        make_node(name="n1")
        page = text_of(admin.post(f"/nodes/n1/{verb}/", {"note": "fan"}, follow=True))
        assert "Node n1 takes" in page
        assert Node.objects.get().intent == intent

    @pytest.mark.django_db(transaction=True)
    def test_drain_is_requested_confirmed_and_completed(self, nlp, member, admin):
        agent = make_node(name="n1")
        submit(member, nlp, gpu_count=1)
        run_cycle()
        [key] = agent.start_all()
        execute("UPDATE scheduling_beat SET at = now() - interval '1 hour'")
        admin.post("/nodes/n1/drain/", {"note": "new fan"})
        assert "requested</span>" in text_of(admin.get("/nodes/n1/"))
        run_cycle()
        page = text_of(admin.get("/nodes/n1/"))
        assert "confirmed, draining" in page and "1 job still runs there" in page
        agent.end(key)
        assert "confirmed, drained" in text_of(admin.get("/nodes/n1/"))

    def test_auto_cordoned_node_is_released(self, admin):
        make_node(name="n1")
        Node.objects.update(intent="cordoned", intent_note="held after 2 node faults: jobs 4, 9")
        page = text_of(admin.get("/nodes/n1/"))
        assert "its faults ended jobs of different users" in page
        assert 'action="/nodes/n1/release/"' in page
        admin.post("/nodes/n1/release/")
        assert Node.objects.get().intent == "open"

    def test_gpu_is_quarantined_and_cleared(self, admin):
        agent = make_node(name="n1", gpus=1)
        agent.sync(readings=[Reading(uuid="GPU-n1-0", utilisation_percent=0, occupancy="clear")])
        [device] = query("SELECT id FROM nodes_device")
        base = f"/nodes/n1/gpus/{device['id']}"
        admin.post(f"{base}/quarantine/", {"note": "smells"})
        assert query("SELECT health_note FROM nodes_device")[0]["health_note"].startswith("smells (by ")
        page = text_of(admin.post(f"{base}/clear/", follow=True))
        assert "GPU 0 of n1 takes jobs again" in page
        assert "is in service" in text_of(admin.post(f"{base}/clear/", follow=True))
        history = page[page.index('id="history"') :]
        assert "quarantined" in history and "smells" in history

    def test_lost_gpu_is_retired(self, admin):
        make_node(name="n1", gpus=2)
        [stays] = query("SELECT id FROM nodes_device WHERE index = 0")
        gone = set_health("lost", index=1)
        assert f'action="/nodes/n1/gpus/{gone}/retire/"' in text_of(admin.get("/nodes/n1/"))
        assert "is retired" in text_of(admin.post(f"/nodes/n1/gpus/{gone}/retire/", follow=True))
        assert query("SELECT id FROM nodes_device") == [stays]

    def test_gpu_action_rejects_gpu_of_another_node(self, admin):
        make_node(name="n1", gpus=1)
        make_node(name="n2", gpus=1)
        [other] = query("SELECT d.id FROM nodes_device d JOIN nodes_node n ON n.id = d.node_id WHERE n.name = 'n2'")
        assert admin.post(f"/nodes/n1/gpus/{other['id']}/quarantine/").status_code == 404
        assert admin.post("/nodes/n1/explode/").status_code == 404
        assert admin.get("/nodes/nowhere/").status_code == 404

    def test_node_page_is_read_only_for_members(self, member):
        make_node(name="n1", gpus=1)
        device = set_health("quarantined", "dust (by root)")
        client = browser(member)
        page = text_of(client.get("/nodes/n1/"))
        assert "Problems and what to do" in page
        assert 'method="post" action="/nodes/' not in page and "Health history" not in page
        for path in ("/nodes/n1/drain/", f"/nodes/n1/gpus/{device}/clear/"):
            client.post(path)
        assert (Node.objects.get().intent, query("SELECT health FROM nodes_device")[0]["health"]) == (
            "open",
            "quarantined",
        )

    @pytest.mark.django_db(transaction=True)
    def test_node_timeline_hides_jobs_of_other_tenants(self, nlp, member, admin):
        """A08."""
        agent = make_node(name="n1", gpus=4)
        other = make_tenant("other")
        own_rows = submit(member, nlp, gpu_count=1, name="mine")
        foreign = submit(make_member(other), other, gpu_count=2, name="secret-plan")
        run_cycle()
        agent.start_all()
        page = text_of(browser(member).get("/nodes/n1/"))
        assert f'href="/jobs/{own_rows}/"' in page
        assert "secret-plan" not in page and f"/jobs/{foreign}/" not in page
        assert "a job of another tenant" in page
        agent.end(f"{foreign}.1.0", exit_code=None, reason="node_fault")
        lanes, observed = (lanes_of(identity) for identity in (admin, browser(member)))
        assert len(lanes) == len(observed) == 4
        assert "a job of another tenant" in "".join(observed)
        assert "ended" not in "".join(observed) and "is-bad" not in "".join(observed), "how it ended is theirs to know"
        assert sum(f'title="job {foreign} ' in lane and "is-bad" in lane for lane in lanes) == 2
        assert f'href="/jobs/{foreign}/"' not in "".join(lanes), "seconds of an hour are too narrow for a finger"

    def test_node_notes_are_escaped(self, admin):
        make_node(name="n1", gpus=1)
        set_health("degraded", HOSTILE)
        admin.post("/nodes/n1/cordon/", {"note": HOSTILE})
        for path in ("/nodes/", "/nodes/n1/"):
            assert "<script>alert" not in text_of(admin.get(path))

    def test_agent_hints_are_shown_to_admins(self, admin, member):
        agent = make_node(name="n1", gpus=1)
        hints = [
            Hint(check="runtimes", level="warn", says="none of podman answers", next_step="install podman"),
            Hint(check="disk", level="fail", says="12 MiB free", next_step=HOSTILE),
        ]
        agent.sync(facts=structs.replace(agent.facts(), hints=hints))
        page = text_of(admin.get("/nodes/n1/"))
        assert page.index("12 MiB free") < page.index("none of podman answers") < page.index("Next: install podman")
        assert "<script>alert" not in page
        assert "12 MiB free" not in text_of(browser(member).get("/nodes/n1/"))
        seen = [client.get("/api/v1/nodes/n1").json()["hints"] for client in (admin, browser(member))]
        assert [[hint["check"] for hint in hints] for hints in seen] == [["disk", "runtimes"], []]
        agent.sync(facts=agent.facts())
        assert "What to do on the machine" not in text_of(admin.get("/nodes/n1/"))


class TestPanel:
    """Return the panel beside the fleet's map."""

    @pytest.mark.django_db(transaction=True)
    def test_fleet_panel_offers_all_to_admins_and_cancel_to_owners(self, nlp, member, admin):
        agent = make_node(name="n1", gpus=2)
        own_rows = submit(member, nlp, gpu_count=1)
        other = make_tenant("other")
        foreign = submit(make_member(other), other, gpu_count=1)
        run_cycle()
        agent.start_all()
        allocated = dict(
            (row["job_id"], row["device_id"])
            for row in query(
                "SELECT s.job_id, a.device_id FROM nodes_allocation a JOIN nodes_assignment s ON s.id = a.assignment_id"
            )
        )
        for job_id, device_id in allocated.items():
            actions = f"/nodes/n1/gpus/{device_id}/actions/"
            theirs = {"cordon": "/nodes/n1/cordon/", "gpu": f"/nodes/n1/gpus/{device_id}/quarantine/"}
            page = text_of(admin.get(actions))
            for address in (*theirs.values(), f"/jobs/{job_id}/cancel/"):
                assert f'action="{address}"' in page
            page = text_of(browser(member).get(actions))
            assert (f'action="/jobs/{own_rows}/cancel/"' in page) == (job_id == own_rows)
            assert page.count("<form") == (job_id == own_rows)
            assert f"/jobs/{foreign}/" not in page
        admin.post(f"/jobs/{own_rows}/cancel/")
        awaited = text_of(admin.get(f"/nodes/n1/gpus/{allocated[own_rows]}/actions/"))
        assert "data-awaited" in awaited and f"/jobs/{own_rows}/cancel/" not in awaited

    def test_fleet_panel_shows_request_status(self, admin, member):
        make_node(name="n1", gpus=1)
        device = set_health("ok")
        headers = {"Accept": "application/json"}
        payload = admin.post(f"/nodes/n1/gpus/{device}/quarantine/", {"note": "smells"}, headers=headers).json()
        assert payload == {
            "is_done": True,
            "sentence": "GPU 0 of n1 takes no new jobs until it is cleared; what runs there may end.",
        }
        assert f'action="/nodes/n1/gpus/{device}/clear/"' in text_of(admin.get(f"/nodes/n1/gpus/{device}/actions/"))
        refused = browser(member).post("/nodes/n1/cordon/", headers=headers).json()
        assert refused["is_done"] is False and "admin" in refused["sentence"]
        assert admin.get("/nodes/n1/gpus/999999/actions/").status_code == 404


class TestMarks:
    def test_admin_edits_labels_and_taints_visible_to_all(self, admin):
        make_node(name="n1", gpus=1)
        admin.post("/nodes/n1/marks/labels/", {"were": "", "typed": "zone=a\r\n\r\nrack=r1"})
        admin.post("/nodes/n1/marks/taints/", {"were": "", "typed": "dedicated=ml:NoSchedule"})
        node = Node.objects.get(name="n1")
        assert (node.admin_labels, len(node.taints)) == ({"zone": "a", "rack": "r1"}, 1)
        page = text_of(browser(make_user()).get("/nodes/n1/"))
        assert '<span class="tag">zone=a</span>' in page and ">dedicated=ml:NoSchedule</span>" in page
        assert "/marks/" not in page

    def test_edit_changes_only_the_lines_that_differ_from_those_shown(self, admin):
        """Another admin set a label and removed a taint while this page was open."""
        make_node(name="n1", gpus=1)
        Node.objects.update(admin_labels={"zone": "a", "new": "x"}, taints=[])
        admin.post("/nodes/n1/marks/labels/", {"were": "zone=a", "typed": "zone=b"})
        admin.post("/nodes/n1/marks/taints/", {"were": "gone:NoSchedule", "typed": "spot:PreferNoSchedule"})
        node = Node.objects.get(name="n1")
        assert node.admin_labels == {"zone": "b", "new": "x"}
        assert [entry["key"] for entry in node.taints] == ["spot"]

    def test_invalid_taint_is_rejected_with_sentence(self, admin):
        make_node(name="n1", gpus=1)
        answer = admin.post("/nodes/n1/marks/taints/", {"were": "", "typed": "spot:NoExecute"}, follow=True)
        assert "write KEY=VALUE:EFFECT" in text_of(answer)
        assert Node.objects.get(name="n1").taints == []

    def test_member_cannot_change_labels_or_taints(self):
        make_node(name="n1", gpus=1)
        browser(make_user()).post("/nodes/n1/marks/labels/", {"were": "", "typed": "zone=a"})
        assert Node.objects.get(name="n1").admin_labels == {}
