"""The topics of a node, a tenant, health and a user, by viewer."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from frontend.live import feed
from frontend.pages.notices import activity
from frontend.pages.notices import rows as noticerows
from gpusched.protocol.agent_messages import Reading
from gpusched.protocol.reasons import EndReason
from gpusched.protocol.states import NodeIntent
from jobs.actions import job_actions
from jobs.lifecycle import states
from jobs.models import Job
from nodes.health import cordon, device_health
from nodes.models import Device, Node
from tenants.models import UsageEntry, UsageRefund
from tests.factories import identity_for, make_member, make_node, make_user, run_cycle, submit
from tests.jobs.arrays import submit_array

pytestmark = pytest.mark.django_db(transaction=True)
SECRETS = ("theirs", "zoe", "hidden")


@pytest.fixture
def admin():
    return make_user("root", admin=True)


def run(agent, user, tenant, **fields):
    """A job that runs, and the key of its rank."""
    job_id = submit(user, tenant, **{"gpu_count": 1, **fields})
    run_cycle()
    [key] = [key for key in agent.start_all() if key.startswith(f"{job_id}.")]
    return job_id, key


def notices(user, visible):
    rows = feed.rows("notices", visible, user.pk)
    return {key: row for key, row in rows.items() if key != "state"}, rows["state"]


def said(payload):
    return [row["sentence"] for row in sorted(payload.values(), key=lambda row: row["at"])]


class TestNode:
    def test_node_topic_has_jobs_devices_and_readings(self, anna, ours):
        agent = make_node(gpus=2)
        job_id, _ = run(agent, anna, ours, name="train")
        agent.sync(readings=[Reading(uuid=d.uuid, utilisation_percent=50) for d in agent.devices])
        rows = feed.rows(f"node:{agent.name}", [ours.pk])
        assert rows["node"]["name"] == agent.name
        assert {"joined_at", "isolation", "driver_version"} <= set(rows["node"])
        assert (rows[f"job:{job_id}"]["name"], rows[f"job:{job_id}"]["gpus"]) == ("train", 1)
        assert rows["others"] == {"jobs": 0, "gpus": 0}
        ids = [device.pk for device in Device.objects.all()]
        assert [rows[f"reading:{i}"]["utilisation_percent"] for i in ids] == [50, 50]
        assert sorted(rows[f"device:{i}"]["cell"] for i in ids) == ["busy", "free"]

    def test_node_topic_only_counts_other_tenants_jobs(self, ours, zoe, theirs):
        """A08"""
        agent = make_node(gpus=4)
        run(agent, zoe, theirs, gpu_count=3, name="hidden")
        text = json.dumps(rows := feed.rows(f"node:{agent.name}", [ours.pk]))
        assert rows["others"] == {"jobs": 1, "gpus": 3}
        assert not [key for key in rows if key.startswith("job:")]
        assert not [word for word in SECRETS if word in text]

    def test_node_incidents_show_causes_to_admins_and_cordon_notes_to_all(self, ours):
        agent = make_node(gpus=1)
        device_health.quarantine(Device.objects.get().pk, "smoke", "root")
        cordon.set_intent(agent.name, NodeIntent.CORDONED, "fans")
        cause_texts = [
            {row["kind"]: row["cause"] for key, row in rows.items() if key.startswith("incident:")}
            for rows in (feed.rows(f"node:{agent.name}", None), feed.rows(f"node:{agent.name}", [ours.pk]))
        ]
        assert cause_texts == [
            {"quarantined": "smoke (by root)", "cordoned": "fans"},
            {"quarantined": None, "cordoned": "fans"},
        ]

    def test_missing_node_topic_is_none(self):
        assert feed.load_for(["node:nowhere"], None) == {"node:nowhere": None}


class TestTenant:
    def test_tenant_topic_is_complete_for_members(self, anna, ours):
        rows = feed.rows("tenant:ours", [ours.pk])
        assert rows["tenant"]["name"] == "ours"
        assert rows["member:anna"]["role"] == "member"
        assert rows["preempted"] == {"received_in_a_day": 0}

    def test_tenant_topic_is_none_for_other_users(self, ours, theirs):
        """A08"""
        assert feed.load_for(["tenant:theirs", "tenant:nobody"], [ours.pk]) == {
            "tenant:theirs": None, "tenant:nobody": None
        }  # fmt: skip


class TestHealth:
    def test_health_topic_has_agents_incidents_and_activity(self, anna, ours):
        agent = make_node(gpus=1)
        job_id, _ = run(agent, anna, ours)
        states.stop([job_id], EndReason.PREEMPTED, {"by": "job 9", "why": "waits", "rule": "priority"}, "scheduler")
        Node.objects.update(state="lost")
        rows = feed.rows("health", None)
        assert (rows["agents"]["lost"], rows["agents"]["total"]) == (1, 1)
        assert [row["kind"] for key, row in rows.items() if key.startswith("incident:")] == ["node_lost"]
        did = {row["kind"]: row["sentence"] for key, row in rows.items() if key.startswith("did:")}
        assert did["node_lost"] == f"node {agent.name} stopped reporting"
        assert f"job {job_id}" in did["preempted"]

    def test_health_topic_shows_members_only_own_jobs(self, ours, zoe, theirs):
        """A08"""
        agent = make_node(gpus=1)
        job_id, _ = run(agent, zoe, theirs, name="hidden")
        states.stop([job_id], EndReason.PREEMPTED, {"by": "job 9", "why": "waits", "rule": "priority"}, "scheduler")
        device_health.quarantine(Device.objects.get().pk, "by zoe of theirs", "root")
        text = json.dumps(feed.rows("health", [ours.pk]))
        assert "quarantined" in text
        assert not [word for word in SECRETS if word in text]


class TestMine:
    def test_mine_topic_has_running_waiting_and_recent_jobs(self, anna, ours):
        agent = make_node(gpus=2)
        ended, key = run(agent, anna, ours, name="first")
        agent.end(key)
        running, _ = run(agent, anna, ours, gpu_count=2)
        waiting = submit(anna, ours, gpu_count=1)
        rows = feed.rows("mine", [ours.pk], anna.pk)
        parts = {row["id"]: row["part"] for key, row in rows.items() if key.startswith("job:")}
        assert parts == {ended: "recent", running: "running", waiting: "waiting"}
        assert rows["counts"] == {"running": 1, "waiting": 1}
        assert (rows["tenant:ours"]["own_gpus"], rows["tenant:ours"]["gpus_held"]) == (2, 2)

    def test_mine_topic_counts_elements_but_lists_array_once(self, anna, ours, client):
        agent = make_node(gpus=2)
        array = submit_array(anna, ours, 5)
        run_cycle()
        agent.end(agent.start_all()[0])
        rows = feed.rows("mine", [ours.pk], anna.pk)
        parts = sorted((row["part"], row["id"] == array) for key, row in rows.items() if key.startswith("job:"))
        assert parts == [("running", False), ("waiting", True)]
        assert rows["counts"] == {"running": 1, "waiting": 3}
        client.force_login(anna)
        assert "3 of 5 wait" in client.get("/mine/").content.decode()

    def test_mine_topic_excludes_colleagues(self, anna, ours):
        bert = make_member(ours, name="bert")
        submit(bert, ours)
        rows = feed.rows("mine", [ours.pk], anna.pk)
        assert [key for key in rows if key.startswith("job:")] == []
        assert feed.rows("mine", [ours.pk], None) == {}


class TestNotices:
    def test_notices_tell_how_own_jobs_ended(self, anna, ours):
        agent = make_node(gpus=1)
        for exit_code in (0, 3):
            _, key = run(agent, anna, ours, name="train")
            agent.end(key, exit_code=exit_code)
        payload, state = notices(anna, [ours.pk])
        assert [(row["kind"], row["severity"], row["is_mine"]) for row in payload.values()] == [
            ("ended", "red", True), ("completed", "info", True),
        ]  # fmt: skip
        assert [text.partition(": ")[2] for text in said(payload)] == ["completed", "exited with code 3"]
        assert state["unread"] == 2

    def test_array_end_is_one_notice_with_failures(self, anna, ours):
        agent = make_node(gpus=3)
        array = submit_array(anna, ours, 3)
        run_cycle()
        first, *other = agent.start_all()
        agent.end(first)
        agent.end(*other, exit_code=3)
        assert notices(anna, [ours.pk])[0] == {}
        run_cycle()
        payload, state = notices(anna, [ours.pk])
        assert [(row["severity"], row["href"]) for row in payload.values()] == [("red", f"/jobs/{array}/")]
        assert "2 failed" in said(payload)[0]
        assert state["unread"] == 1

    def test_read_notices_stay_read(self, anna, ours):
        agent = make_node(gpus=1)
        _, key = run(agent, anna, ours)
        agent.end(key)
        noticerows.mark_read(anna.pk)
        assert notices(anna, [ours.pk])[1]["unread"] == 0
        _, key = run(agent, anna, ours)
        agent.end(key)
        assert notices(anna, [ours.pk])[1]["unread"] == 1
        noticerows.mark_read(anna.pk)
        assert notices(anna, [ours.pk])[1]["unread"] == 0

    def test_notices_tell_actions_of_others_on_own_jobs(self, anna, ours, admin):
        job_id = submit(anna, ours, name="train")
        job_actions.hold(job_id, identity_for(admin))
        assert said(notices(anna, [ours.pk])[0]) == [f"job {job_id} train: held by root"]

    def test_own_actions_are_no_notice(self, anna, ours):
        job_actions.cancel(submit(anna, ours), identity_for(anna))
        assert notices(anna, [ours.pk])[0] == {}

    def test_long_wait_is_a_notice(self, anna, ours):
        job_id = submit(anna, ours, name="train")
        Job.objects.update(submitted_at=timezone.now() - timedelta(hours=2))
        payload, _ = notices(anna, [ours.pk])
        assert list(payload) == [f"notice:wait:{job_id}"]
        assert "has waited for more than an hour" in said(payload)[0]

    def test_long_wait_counts_waiting_elements(self, anna, ours):
        agent = make_node(gpus=2)
        waits = submit_array(anna, ours, 5)
        as_asked = submit_array(anna, ours, 5, max_parallel=1, gpu_count=0)
        allocated = submit_array(anna, ours, 5)
        run_cycle()
        agent.start_all()
        run_cycle()
        job_actions.hold(allocated, identity_for(anna))
        Job.objects.update(submitted_at=timezone.now() - timedelta(hours=2))
        assert Job.objects.get(pk=as_asked).reason == "max_parallel"
        payload = {key: row for key, row in notices(anna, [ours.pk])[0].items() if key.startswith("notice:wait:")}
        assert list(payload) == [f"notice:wait:{waits}"]
        assert said(payload)[0].startswith(f"3 elements of array {waits} sweep have waited for more than an hour: ")

    def test_start_is_a_notice_only_after_a_wait(self, anna, ours):
        agent = make_node(gpus=2)
        run(agent, anna, ours)
        late = submit(anna, ours, gpu_count=1)
        Job.objects.filter(pk=late).update(submitted_at=timezone.now() - timedelta(minutes=5))
        run_cycle()
        agent.start_all()
        assert [row["href"] for row in notices(anna, [ours.pk])[0].values()] == [f"/jobs/{late}/"]

    def test_preemption_notice_hides_invisible_job(self, anna, ours, zoe, theirs):
        """A08: the owner reads that it was for another tenant's job; an admin reads for which."""
        agent = make_node(gpus=1)
        job_id, _ = run(agent, anna, ours, name="train")
        other = submit(zoe, theirs, name="hidden")
        evidence = {"by": f"job {other} of tenant theirs", "by_job": other, "why": "has a priority", "rule": "priority"}
        states.preempt(other, [job_id], evidence)
        [sentence] = said(notices(anna, [ours.pk])[0])
        assert sentence == f"job {job_id} train: preempted for a job of another tenant, which has a priority"
        assert notices(zoe, [theirs.pk])[0] == {}

    def test_admins_get_system_notices(self, admin, ours):
        make_node(gpus=1)
        Device.objects.update(health="foreign", health_note="pid 17")
        [row] = notices(admin, None)[0].values()
        assert (row["kind"], row["is_mine"]) == ("foreign", False)
        assert row["sentence"].endswith("has a process that gpusched did not start: pid 17")
        assert notices(make_member(ours), [ours.pk])[0] == {}

    def test_page_marks_notices_read(self, client, anna, ours):
        submit(anna, ours)
        Job.objects.update(submitted_at=timezone.now() - timedelta(hours=2))
        client.force_login(anna)
        assert client.get("/notices/seen/").status_code == 405
        assert client.post("/notices/seen/").status_code == 204
        assert notices(anna, [ours.pk])[1]["unread"] == 0


def test_refund_is_a_notice_above_minimum(ours, anna):
    job_id = submit(anna, ours)
    then = timezone.now()
    for rank, seconds in ((0, 20), (1, 7)):
        entry = UsageEntry.objects.create(
            tenant=ours, user_id=anna.pk, job_id=job_id, attempt=1, rank=rank, node="n1", gpus=1,
            started_at=then - timedelta(seconds=seconds), ended_at=then, cause="node_lost",
        )  # fmt: skip
        UsageRefund.objects.create(entry=entry, reason="node_lost")
    assert [one for one in activity.load() if one.row["kind"] == "refunded"] == []
    longer = UsageEntry.objects.create(
        tenant=ours, user_id=anna.pk, job_id=job_id, attempt=2, rank=0, node="n1", gpus=1,
        started_at=then - timedelta(seconds=45), ended_at=then, cause="node_lost",
    )  # fmt: skip
    UsageRefund.objects.create(entry=longer, reason="node_lost")
    [payload] = [one for one in activity.load() if one.row["kind"] == "refunded"]
    assert payload.row["sentence"] == f"0.02 GPU-hours of job {job_id} were refunded because its node failed"
