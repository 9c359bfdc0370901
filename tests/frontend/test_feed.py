"""The rows of the live feed by viewer."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from frontend.live import feed
from frontend.live.topics import MAX_NAME, kind_of
from frontend.viewer import Viewer
from gpusched.protocol.agent_messages import Reading
from gpusched.protocol.states import NodeIntent
from jobs.actions import job_actions
from jobs.logs import store
from nodes.health import cordon
from nodes.models import Allocation, Device, Node
from nodes.models import Reading as Kept
from tests.factories import identity_for, make_member, make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)
ALL = ("overview", "nodes", "strip", "queue", "jobs", "tenants")


@pytest.fixture
def user(ours):
    return make_member(ours, name="anna")


@pytest.fixture
def stranger(theirs):
    return make_member(theirs, name="strange-zoe")


def cells(visible=None):
    return [device["cell"] for node in feed.rows("nodes", visible).values() for device in node["devices"]]


def read(agent, utilisation, *, ago=0):
    agent.sync(readings=[Reading(uuid=d.uuid, utilisation_percent=utilisation) for d in agent.devices])
    if ago:
        Kept.objects.filter(idle_since__isnull=False).update(idle_since=timezone.now() - timedelta(seconds=ago))


def words(text):
    return set(text.split())


class TestVisibility:
    """A08: what other tenants run never leaves the server; that a device is busy does."""

    @pytest.fixture
    def secret(self, theirs, stranger):
        agent = make_node(gpus=2)
        running = submit(stranger, theirs, name="top-secret", gpu_count=2)
        run_cycle()
        agent.start_all()
        waiting = submit(stranger, theirs, name="top-secret", gpu_count=1)
        run_cycle()
        return running, waiting

    def test_feed_hides_names_of_other_tenants(self, secret, ours, user):
        text = json.dumps({topic: feed.rows(topic, [ours.pk]) for topic in (*ALL, *(f"job:{i}" for i in secret))})
        assert "top-secret" not in text
        assert "theirs" not in text
        assert "strange-zoe" not in text

    def test_feed_hides_job_ids_of_other_tenants(self, secret, ours):
        [node] = feed.rows("nodes", [ours.pk]).values()
        assert node["jobs"] == []
        assert [(d["jobs"], d["tenants"]) for d in node["devices"]] == [([], []), ([], [])]
        assert set(feed.rows("queue", [ours.pk])) == {"total"}
        assert feed.rows("jobs", [ours.pk]) == {}
        overview = feed.rows("overview", [ours.pk])
        [waiting] = [row for key, row in overview.items() if key.startswith("waiting:")]
        assert (waiting["jobs"], waiting["example_id"], waiting["example_sentence"]) == (1, None, None)

    def test_feed_shows_busy_devices_to_all(self, secret, ours):
        assert cells([ours.pk]) == ["busy", "busy"]
        assert feed.rows("overview", [])["status"]["busy_gpus"] == 2

    def test_feed_shows_jobs_to_own_tenant_and_admins(self, secret, theirs):
        running, waiting = secret
        for visible in (None, [theirs.pk]):
            [node] = feed.rows("nodes", visible).values()
            assert node["jobs"] == node["devices"][0]["jobs"] == [running]
            assert node["devices"][0]["tenants"] == ["theirs"]
            assert set(feed.rows("queue", visible)) == {str(waiting), "total"}
            assert set(feed.rows("jobs", visible)) == {str(running), str(waiting)}
            assert feed.rows(f"job:{running}", visible)["job"]["name"] == "top-secret"


class TestCells:
    def test_cell_is_free_busy_or_unavailable(self, user, ours):
        agent = make_node(gpus=3)
        submit(user, ours, gpu_count=1)
        run_cycle()
        Device.objects.filter(held_whole=0, index=2).update(health="quarantined")
        assert sorted(cells()) == ["busy", "free", "unavailable"]
        cordon.set_intent(agent.name, NodeIntent.CORDONED)
        assert sorted(cells()) == ["busy", "unavailable", "unavailable"]

    def test_slowed_device_is_free_but_not_startable(self):
        make_node(gpus=2)
        Device.objects.filter(index=0).update(health="hot", is_slowed=True)
        assert cells() == ["free", "free"]
        [largest] = [row for key, row in feed.rows("overview", None).items() if key.startswith("largest:")]
        assert (largest["gpus"], largest["on_one_node"]) == (1, 1)

    def test_hot_device_is_startable(self):
        make_node(gpus=2)
        Device.objects.filter(index=0).update(health="hot")
        [largest] = [row for key, row in feed.rows("overview", None).items() if key.startswith("largest:")]
        assert (largest["gpus"], largest["on_one_node"]) == (2, 2)

    def test_cell_is_held_idle_after_a_minute_at_zero(self, user, ours):
        agent = make_node(gpus=1)
        submit(user, ours, gpu_count=1)
        run_cycle()
        agent.start_all()
        read(agent, 0)
        assert cells() == ["busy"]
        self.hold_since(61)
        read(agent, 0, ago=61)
        assert cells() == ["held_idle"]
        idle = feed.rows("overview", None)["attention:held_idle"]
        assert (idle["severity"], idle["count"]) == ("amber", 1)
        read(agent, 3)
        assert cells() == ["busy"]

    def test_cell_ignores_idle_time_before_the_job(self, user, ours):
        agent = make_node(gpus=1)
        read(agent, 0, ago=600)
        assert cells() == ["free"]
        submit(user, ours, gpu_count=1)
        run_cycle()
        read(agent, 0)
        assert cells() == ["busy"]

    def test_cell_is_not_idle_with_unknown_utilisation(self, user, ours):
        agent = make_node(gpus=1)
        submit(user, ours, gpu_count=1)
        run_cycle()
        self.hold_since(600)
        read(agent, 0, ago=600)
        assert cells() == ["held_idle"]
        read(agent, None)
        assert cells() == ["busy"]

    def test_old_reading_is_ignored(self, user, ours):
        agent = make_node(gpus=1)
        submit(user, ours, gpu_count=1)
        run_cycle()
        self.hold_since(600)
        read(agent, 0, ago=600)
        Kept.objects.update(read_at=timezone.now() - timedelta(seconds=40))
        assert cells() == ["busy"]

    def hold_since(self, seconds):
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE nodes_allocation DISABLE TRIGGER USER")
            cursor.execute("UPDATE nodes_allocation SET since = now() - make_interval(secs => %s)", [seconds])
            cursor.execute("ALTER TABLE nodes_allocation ENABLE TRIGGER USER")
        assert Allocation.objects.exists()


class TestRows:
    def test_rows_have_documented_keys(self, user, ours):
        agent = make_node(gpus=1)
        job_id = submit(user, ours, gpu_count=1)
        run_cycle()
        agent.start_all()
        waiting = submit(user, ours, gpu_count=1)
        read(agent, 50)
        node = feed.rows("nodes", None)[agent.name]
        assert " ".join(sorted(node)) == (
            "agent_version cpu_cores cpu_cores_free devices driver_version holders hostname intent intent_note jobs labels"
            " memory_mb memory_mb_free name pretend runtimes state taints"
        )
        assert " ".join(sorted(node["devices"][0])) == (
            "cell health health_note held id idle_since index is_slowed jobs memory_mb model shared_mb tenants uuid"
        )
        assert feed.rows("readings", [])[agent.name]["utilisation_percent"] == [50]
        assert feed.rows("readings", [])[agent.name]["last_seen_at"] is not None
        assert set(feed.rows("overview", None)["status"]) == words(
            "total_nodes online_nodes total_gpus busy_gpus held_idle_gpus free_gpus unavailable_gpus running_jobs"
            " pending_jobs pretend_nodes oldest_wait_seconds p90_wait_seconds cycle_is_alive"
        )
        queue = feed.rows("queue", None)
        assert queue["total"] == {
            "jobs": 1, "gpus": 1, "shown": 1, "rows": 1, "matching": 1, "order": [waiting],
            "groups": [{"group": "next", "rows": 1, "jobs": 1, "gpus": 1}],
        }  # fmt: skip
        assert set(queue[str(waiting)]) == words(
            "id name tenant user state gpu_count gpu_model gpu_memory_mb priority position gpus_ahead group"
            " elements submitted_at reason"
        )
        assert set(queue[str(waiting)]["reason"]) == {"code", "sentence", "next_step", "since"}
        assert set(feed.rows("jobs", None)[str(job_id)]) == words(
            "id name tenant user state reason gpu_count nodes submitted_at started_at ended_at exit_code attempt array"
        )
        assert set(feed.rows("tenants", None)["ours"]) == words(
            "name weight tier gpus_held jobs_live jobs_waiting jobs_asking guaranteed_gpus max_gpus share usage_gpu_hours"
        )

    def test_pending_reason_updates_when_it_changes(self, user, ours):
        make_node(gpus=1)
        submit(user, ours, gpu_count=1)
        job_id = submit(user, ours, gpu_count=1)
        run_cycle()
        job_actions.hold(job_id, identity_for(user))
        periods = feed.rows(f"job:{job_id}", [ours.pk])["waits"]["periods"]
        assert [period["code"] for period in periods][-2:] == ["priority", "held_by_user"]
        assert (periods[-2]["until_at"], periods[-1]["until_at"]) == (periods[-1]["since_at"], None)
        job_actions.cancel(job_id, identity_for(user))
        assert feed.rows(f"job:{job_id}", [ours.pk])["waits"]["periods"][-1]["until_at"] is not None

    def test_job_topic_has_events_and_attempts(self, user, ours):
        agent = make_node(gpus=1)
        job_id = submit(user, ours, gpu_count=1)
        run_cycle()
        [key] = agent.start_all()
        store.append(job_id, 1, 0, 0, b"hello")
        agent.end(key)
        rows = feed.rows(f"job:{job_id}", [ours.pk])
        assert rows["job"]["state"] == "completed"
        assert rows["attempt:1"]["state"] == "ended"
        assert rows["log:1.0"] == {"attempt": 1, "rank": 0, "size": 5}
        payload = [row["sentence"] for key, row in rows.items() if key.startswith("event:")]
        assert payload == ["submitted by anna", f"placed on {agent.name}", "started", "exited with code 0"]

    def test_lost_node_needs_attention(self):
        agent = make_node(gpus=1)
        Node.objects.update(state="lost")
        rows = feed.rows("overview", None)
        lost = rows["attention:lost"]
        assert (lost["severity"], lost["count"], lost["parts"][0]["node"]) == ("red", 1, agent.name)
        assert rows["status"]["unavailable_gpus"] == 1

    def test_jobs_topic_has_latest_jobs_of_each_viewer(self, monkeypatch, user, ours, stranger, theirs):
        monkeypatch.setattr("frontend.pages.jobs.rows.JOBS_ROWS", 2)
        own_rows = [submit(user, ours) for _ in range(3)]
        other = [submit(stranger, theirs) for _ in range(3)]
        assert set(feed.rows("jobs", [ours.pk])) == {*map(str, own_rows[1:])}
        assert set(feed.rows("jobs", None)) == {*map(str, other[1:])}

    def test_topic_is_loaded_once_for_all_viewers(self, user, ours, stranger, theirs, django_assert_max_num_queries):
        for agent in [make_node() for _ in range(3)]:
            submit(user, ours)
            submit(stranger, theirs)
            run_cycle()
            agent.start_all()
        ids = [submit(user, ours), submit(stranger, theirs)]
        job_actions.cancel(ids[0], identity_for(user))
        viewers = [Viewer(observed) for observed in (None, (ours.pk,), (theirs.pk,), (ours.pk, theirs.pk), ())]
        topics = [*ALL, *(f"job:{i}" for i in ids)]
        with django_assert_max_num_queries(26 + len(viewers)):  # of the queue each audience has its own windows
            loaded = feed.load([(topic, viewer) for topic in topics for viewer in viewers])
        with django_assert_max_num_queries(0):
            for viewer in viewers:
                for topic in ALL:
                    assert feed.restrict(loaded, topic, viewer) is not None

    @pytest.mark.parametrize(
        "topic",
        [
            "",
            "job:",
            "job:0",
            "job:x",
            "job:1 ",
            "job:²",
            "job:" + "9" * 30,
            "nodes:1",
            "queue:",
            "queue:5-5",
            "queue:9-1",
            "queue:0-501",
            "queue?x=1",
            "queue?sort=x",
            "queue?q=" + "q" * MAX_NAME,
        ],
    )
    def test_unknown_topic_raises_key_error(self, topic):
        assert kind_of(topic) is None
        with pytest.raises(KeyError):
            feed.rows(topic, None)
