"""The live feed over Redis: killed, restarted and losing messages."""

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.db import connections

from frontend.live import hub as hubs
from frontend.live import invalidation, loader
from gpusched.lib.bus import events, redis_bus
from gpusched.lib.bus.changes import EVERYTHING
from gpusched.lib.bus.notifier import Transport, notifier
from tests.factories import make_member, make_tenant, submit
from tests.frontend import test_property
from tests.frontend.page import Page, cookie_of, live_hub
from tests.redis_server import layers, redis_server

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]
db = sync_to_async


@pytest.fixture
def redis(settings):
    with redis_server() as server:
        notifier.stop()
        settings.CHANNEL_LAYERS = layers(server.url)
        yield server
        notifier.stop()
    notifier.flush()


@pytest.fixture
def notified(monkeypatch):
    """What the notifier said by PostgreSQL."""
    message: list[str] = []
    notify = Transport._notify

    def listened(self, pairs):
        message.extend(payload for _, payload in pairs if payload)
        notify(self, pairs)

    monkeypatch.setattr(Transport, "_notify", listened)
    return message


@pytest.fixture
async def page(redis, monkeypatch):
    """A page with jobs, of a hub that looks only when it is told to."""
    monkeypatch.setattr(invalidation, "LOAD_ANYWAY_SECONDS", 3600.0)
    monkeypatch.setattr(loader, "FULL_LOAD_SECONDS", 3600.0)
    monkeypatch.setattr(hubs, "ALIVE_SECONDS", 0.3)
    tenant = await db(make_tenant)("ours")
    user = await db(make_member)(tenant)
    async with live_hub(monkeypatch) as hub:
        opened = await Page(await db(cookie_of)(user), ["jobs"]).connect()
        await opened.until(lambda: hub._listener.is_redis_connected)
        opened.is_redis_connected = lambda: hub._listener.is_redis_connected  # type: ignore[attr-defined]
        opened.submit = lambda: db(submit)(user, tenant)  # type: ignore[attr-defined]
        yield opened
        await opened.leave()
    await db(connections.close_all)()


async def shows(page, job_id):
    await page.until(lambda: str(job_id) in page.rows.get("jobs", {}))


async def test_changes_use_redis_and_fall_back_to_postgresql(page, redis, notified):
    await shows(page, await page.submit())
    assert notified == []
    redis.kill()
    await shows(page, await page.submit())
    assert notified
    await page.until(lambda: page.is_redis_connected() is False)
    await page.until(lambda: '"late":true' in page.heard[-1])
    await shows(page, await page.submit())
    await db(redis.start)()
    await page.until(lambda: page.is_redis_connected())
    await page.until(lambda: '"alive"' in page.heard[-1] and '"late"' not in page.heard[-1])
    message = None
    while message != len(notified):  # senders try it again after a moment
        message = len(notified)
        await shows(page, await page.submit())


async def test_lost_redis_messages_are_detected(page, redis, notified):
    """Its listeners cut off, it takes a message that nobody hears: the number of the next, or the same once more, tells."""
    await shows(page, await page.submit())
    redis.cut_listeners()
    await shows(page, await page.submit())
    assert notified == []


async def test_missing_or_invalid_message_invalidates_all(page, redis):
    received: list[dict[str, list[int]]] = []
    ear = redis_bus.Subscriber(received.append)
    ear._handle(redis_bus.ChangeMessage("a", 1, {"jobs": [1]}))
    ear._handle(redis_bus.ChangeMessage("a", 2, {"jobs": [2]}))
    ear._handle(redis_bus.ChangeMessage("a", 2))
    ear._handle(redis_bus.ChangeMessage("a", 4, {"jobs": [4]}))
    ear._handle(redis_bus.ChangeMessage("a", 5))
    assert received == [{"jobs": [1]}, {"jobs": [2]}, EVERYTHING, EVERYTHING]
    await get_channel_layer(redis_bus.LAYER).group_send(redis_bus.GROUP, {"sender": 5})
    await shows(page, await page.submit())


@pytest.mark.parametrize("address", ["redis://127.0.0.1:1", "redis://127.0.0.1:none"])
def test_unreachable_redis_leaves_postgresql(settings, notified, address):
    notifier.stop()
    settings.CHANNEL_LAYERS = layers(address)
    events.changed("jobs", [7])
    assert notifier.flush(20)
    notifier.stop()
    assert notified == ['{"jobs":[7]}']


def test_state_and_deltas_equal_new_load(redis, monkeypatch):
    """A52, with Redis."""
    test_property.holds_always(monkeypatch, examples=3)
