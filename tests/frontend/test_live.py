"""The live feed through the real WebSocket stack and the real database."""

import asyncio
import json
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.contrib.sessions.models import Session
from django.db import connections
from django.utils import timezone

from frontend.live import hub as hubs
from frontend.live import invalidation, loader, outbox
from gpusched.lib.bus import events
from gpusched.protocol.agent_messages import Reading
from gpusched.protocol.states import NodeIntent
from jobs.actions import job_actions
from jobs.logs import store
from nodes.health import cordon
from nodes.models import ListenerLease, Node
from tenants.models import Membership
from tests.factories import identity_for, make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.frontend.page import Page, cookie_of, live_hub

pytestmark = pytest.mark.django_db(transaction=True)
ALL = ["overview", "nodes", "readings", "queue", "jobs", "tenants", "health"]
db = sync_to_async


@pytest.fixture
async def hub(monkeypatch):
    async with live_hub(monkeypatch) as created:
        yield created
    await db(connections.close_all)()


@pytest.fixture
def tenant():
    return make_tenant("ours")


@pytest.fixture
def user(tenant):
    return make_member(tenant, name="anna")


@pytest.fixture
def cookie(user):
    return cookie_of(user)


@pytest.fixture
def admin():
    return make_user("root", admin=True)


@pytest.fixture
async def open_page(hub):
    pages = []

    async def opened(cookie, *topics):
        page = await Page(cookie, list(topics)).connect()
        pages.append(page)
        if page.close_code is None:
            await page.until(lambda: page.close_code or set(topics) <= {*page.rows, *page.errors})
        return page

    yield opened
    for page in pages:
        await page.leave()


async def test_page_receives_snapshot_then_deltas(open_page, cookie, user, tenant):
    page = await open_page(cookie, "queue", "jobs")
    nothing = {"jobs": 0, "gpus": 0, "shown": 0, "rows": 0, "matching": 0, "groups": [], "order": []}
    assert page.rows == {"queue": {"total": nothing}, "jobs": {}}
    job_id = await db(submit)(user, tenant, name="first")
    await page.until(lambda: str(job_id) in page.rows["queue"] and str(job_id) in page.rows["jobs"])
    await db(job_actions.cancel)(job_id, await db(identity_for)(user))
    await page.until(lambda: page.rows["jobs"][str(job_id)]["state"] == "cancelled")
    await page.until(lambda: str(job_id) not in page.rows["queue"])
    assert page.kinds.count("snapshot") == 2
    assert page.kinds.count("delta") >= 3


async def test_change_is_sent_before_the_next_poll(open_page, cookie, user, tenant, monkeypatch):
    """The bell does it, not the clock."""
    monkeypatch.setattr(invalidation, "LOAD_ANYWAY_SECONDS", 3600.0)
    page = await open_page(cookie, "jobs")
    job_id = await db(submit)(user, tenant)
    await page.until(lambda: str(job_id) in page.rows["jobs"])


async def test_lost_events_only_delay_updates(open_page, cookie, user, tenant, hub, monkeypatch):
    monkeypatch.setattr(invalidation, "LOAD_ANYWAY_SECONDS", 0.2)
    page = await open_page(cookie, "jobs")
    monkeypatch.setattr(hub, "_on_change", lambda changed: None)
    hub._listener._callbacks.clear()
    job_id = await db(submit)(user, tenant)
    await page.until(lambda: str(job_id) in page.rows["jobs"])


async def test_lost_node_updates_node_and_job(open_page, cookie, user, tenant):
    agent = await db(make_node)(gpus=1)
    job_id = await db(submit)(user, tenant, gpu_count=1)
    page = await open_page(cookie, "nodes", "overview", f"job:{job_id}")

    def node():
        return page.rows["nodes"][agent.name]

    await db(run_cycle)()
    await db(agent.start_all)()
    await page.until(lambda: node()["devices"][0]["cell"] == "busy" and node()["jobs"] == [job_id])
    await page.until(lambda: page.rows[f"job:{job_id}"]["job"]["state"] == "running")
    await db(fall_silent)()
    await db(run_cycle)()
    await page.until(lambda: node()["state"] == "lost" and node()["devices"][0]["cell"] == "unavailable")
    await page.until(lambda: "attention:lost" in page.rows["overview"])
    await page.until(lambda: page.rows[f"job:{job_id}"]["attempt:1"]["reason"] == "node_lost")


def fall_silent(*names):
    now = timezone.now()
    result = Node.objects.filter(name__in=names) if names else Node.objects.all()
    result.update(last_seen_at=now - timedelta(seconds=20))
    ListenerLease.objects.update_or_create(id=1, defaults={"since": now - timedelta(hours=1), "seen_at": now})


async def test_readings_are_sent_without_event(open_page, cookie):
    agent = await db(make_node)(gpus=1)
    page = await open_page(cookie, "readings")
    await db(agent.sync)(readings=[Reading(uuid=agent.devices[0].uuid, utilisation_percent=37)])
    await page.until(lambda: page.rows["readings"][agent.name]["utilisation_percent"] == [37])


async def test_growing_log_is_announced(open_page, cookie, user, tenant, monkeypatch):
    monkeypatch.setattr(invalidation, "LOAD_ANYWAY_SECONDS", 3600.0)
    agent = await db(make_node)(gpus=1)
    job_id = await db(submit)(user, tenant, gpu_count=1)
    await db(run_cycle)()
    await db(agent.start_all)()
    page = await open_page(cookie, f"job:{job_id}")
    await db(write_log)(job_id, 1, b"12345")
    await page.until(lambda: page.rows[f"job:{job_id}"]["log:1.0"]["size"] == 5)


def write_log(job_id, attempt, data):
    store.append(job_id, attempt, 0, store.read(job_id, attempt, 0, 0, 0).size, data)
    events.changed("logs", [job_id])


async def test_no_load_runs_without_watched_topics(open_page, cookie, hub, monkeypatch):
    monkeypatch.setattr(invalidation, "period", lambda _: 0.02)
    monkeypatch.setattr(hubs, "ALIVE_SECONDS", 0.3)
    page = await open_page(cookie, "nodes")
    looks = []

    def look(self, *params):
        looks.append(params)
        return {}

    monkeypatch.setattr(loader.FeedLoader, "load", look)
    await page.want()
    await page.until(lambda: not any(client.topics for client in hub._clients) or None)
    looks.clear()
    received = len(page.heard)
    await page.until(lambda: len(page.heard) > received)
    assert looks == []


async def test_page_with_a_filter_that_cannot_be_stored_stops_no_other_page(open_page, cookie, user, tenant):
    """All windows of the queue are loaded together."""
    hostile = await open_page(cookie, *(topics := ["queue:0-10?q=%00", "queue:0-10?tenant=a%00"]))
    assert hostile.errors == dict.fromkeys(topics, "unknown_topic")
    page = await open_page(cookie, "queue")
    job_id = await db(submit)(user, tenant)
    await page.until(lambda: str(job_id) in page.rows["queue"])


class TestAccess:
    """A08"""

    async def test_socket_closes_without_login(self, hub):
        page = await Page("nonsense", []).connect()
        await page.until(lambda: page.close_code)
        assert page.close_code == 4401
        await page.leave()

    async def test_socket_hides_jobs_of_other_tenants(self, open_page, cookie):
        other = await db(make_tenant)("theirs")
        stranger = await db(make_member)(other)
        job_id = await db(submit)(stranger, other)
        page = await open_page(cookie, f"job:{job_id}", "job:999999999", "secrets")
        assert page.errors == {f"job:{job_id}": "not_found", "job:999999999": "not_found", "secrets": "unknown_topic"}

    async def test_socket_drops_tenant_when_user_leaves_it(self, open_page, cookie, user, tenant, monkeypatch):
        monkeypatch.setattr(hubs, "RECHECK_SECONDS", 0.1)
        job_id = await db(submit)(user, tenant)
        page = await open_page(cookie, "jobs", f"job:{job_id}")
        assert str(job_id) in page.rows["jobs"]
        await db(Membership.objects.all().delete)()
        await page.until(lambda: page.rows["jobs"] == {})
        await page.until(lambda: page.errors == {f"job:{job_id}": "not_found"})

    async def test_socket_closes_on_logout(self, open_page, cookie, monkeypatch):
        monkeypatch.setattr(hubs, "RECHECK_SECONDS", 0.1)
        page = await open_page(cookie, "jobs")
        await db(Session.objects.all().delete)()
        await page.until(lambda: page.close_code == 4401)

    @pytest.mark.parametrize(("name", "value"), [("password", "another"), ("is_active", False)])
    async def test_socket_closes_on_password_change(self, open_page, cookie, user, monkeypatch, name, value):
        """As does an account that is switched off."""
        monkeypatch.setattr(hubs, "RECHECK_SECONDS", 0.1)
        page = await open_page(cookie, "jobs")
        setattr(user, name, value)
        await db(user.save)()
        await page.until(lambda: page.close_code == 4401)


class TestMessages:
    @pytest.mark.parametrize("message", ["{}", "{", "[]", '{"subscribe": "nodes"}', '{"subscribe": [1]}', "[" * 5000])
    async def test_socket_closes_on_invalid_message(self, open_page, cookie, message):
        page = await open_page(cookie)
        await page.say(message)
        await page.until(lambda: page.close_code == 4400)

    async def test_socket_closes_on_huge_message(self, open_page, cookie):
        page = await open_page(cookie)
        await page.say(json.dumps({"subscribe": ["x" * (65 << 10)]}))
        await page.until(lambda: page.close_code == 4413)

    async def test_socket_refuses_more_than_twenty_topics(self, open_page, cookie):
        page = await open_page(cookie, *ALL, *(f"job:{i}" for i in range(1, 17)))
        last = hubs.MAX_TOPICS - len(ALL)
        assert page.errors[f"job:{last + 1}"] == "too_many_topics"
        assert page.errors[f"job:{last}"] == "not_found"

    async def test_requested_topic_is_resent_as_snapshot(self, open_page, cookie):
        page = await open_page(cookie, "queue", "jobs")
        await page.subscribe("queue")
        await page.until(lambda: page.kinds.count("snapshot") == 3)

    async def test_alive_is_sent_periodically(self, open_page, cookie, user, tenant, monkeypatch):
        monkeypatch.setattr(hubs, "ALIVE_SECONDS", 0.05)
        page, *other = [await open_page(cookie) for _ in range(hubs.ALIVE_PARTS)]
        for each in (page, *other):  # each part of them has its turn
            await each.until(lambda: each.kinds.count("alive") >= 3)  # noqa: B023
        await db(make_node)()
        await db(submit)(user, tenant)
        await db(run_cycle)()
        await page.until(lambda: (json.loads(page.heard[-1]).get("cycle_age_seconds") or 99) < 60)


async def test_slow_page_gets_snapshot_instead_of_missed_deltas(open_page, cookie, admin, user, tenant, monkeypatch):
    monkeypatch.setattr(hubs, "ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(outbox, "DELAY_SECONDS", 0.01)
    quick = await open_page(await db(cookie_of)(admin), "jobs")
    slow = await open_page(cookie, "jobs")
    await slow.until(lambda: slow.kinds.count("alive") >= 2)
    slow.answers = False
    questions = slow.questions  # on a busy machine, an `alive` message without one may replace one with
    await slow.until(lambda: slow.questions >= questions + outbox.MAX_UNACKNOWLEDGED + 2)
    ids = []
    for _ in range(6):
        ids.append(str(await db(submit)(user, tenant)))
        await quick.until(lambda: ids[-1] in quick.rows["jobs"])
    assert slow.rows["jobs"] == {}
    slow.answers = True
    await slow.until(lambda: set(slow.rows["jobs"]) == set(ids))
    assert [kind for kind in slow.kinds if kind != "alive"] == ["snapshot", "snapshot"]


async def test_cordoned_node_is_sent(open_page, cookie):
    agent = await db(make_node)(gpus=2)
    page = await open_page(cookie, "nodes", "overview")
    assert page.rows["overview"]["status"]["free_gpus"] == 2
    await db(cordon.set_intent)(agent.name, NodeIntent.CORDONED, "new fans")
    await page.until(lambda: page.rows["nodes"][agent.name]["intent"] == "cordoned")
    await page.until(lambda: page.rows["overview"]["status"]["unavailable_gpus"] == 2)


async def test_reconnected_page_equals_new_page(open_page, cookie, user, tenant):
    page = await open_page(cookie, *ALL)
    await page.leave()
    await db(make_node)()
    await db(submit)(user, tenant)
    await db(run_cycle)()
    await page.connect()
    for topic in ALL:
        await page.shows(topic, [tenant.pk])


async def test_page_can_change_topics_often(open_page, cookie, user, tenant):
    page = await open_page(cookie, *ALL)
    for topics in (["jobs"], [], ["queue", "jobs"], ["jobs"], ALL):
        await asyncio.gather(page.want(*topics), db(submit)(user, tenant))
    for topic in ALL:
        await page.shows(topic, [tenant.pk])
