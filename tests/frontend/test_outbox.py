"""Messages of a page: their frames and timing."""

import asyncio
import json

from frontend.live import hub
from frontend.live import outbox as outboxes
from frontend.live.loader import Update
from frontend.live.outbox import Outbox
from tenants.auth.page_access import Session

DELTA = '"set":{}}'


def sending():
    """An outbox, and the frames that leave it."""
    frames = []
    return Outbox(lambda frame: frames.append(json.loads(frame)), lambda topics: None), frames


def asking():
    """The same, with the topics of which it asks for snapshots."""
    frames, requested = [], list[set[str]]()
    return Outbox(lambda frame: frames.append(json.loads(frame)), requested.append), frames, requested


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_low_priority_message_waits_for_others():
    box, frames = sending()
    box.delta("overview", DELTA, is_low_priority=True)
    box.alive('{"alive":"now"}')
    await turns()
    assert frames == []
    box.delta("nodes", DELTA)
    await turns()
    [[alive, *deltas]] = frames
    assert alive == {"alive": "now"}
    assert [delta["topic"] for delta in deltas] == ["overview", "nodes"]


async def test_low_priority_message_is_sent_alone_after_delay(monkeypatch):
    monkeypatch.setattr(outboxes, "DELAY_SECONDS", 0.01)
    box, frames = sending()
    for number in (1, 2):
        box.delta("overview", DELTA, is_low_priority=True)
        async with asyncio.timeout(10):
            while len(frames) < number:
                await asyncio.sleep(0.01)
    assert [frame["seq"] for frame in frames] == [1, 2]


async def told(box, frames):
    """Return the messages sent so far."""
    await turns()
    result = [message for frame in frames for message in (frame if isinstance(frame, list) else [frame])]
    frames.clear()
    return result


def delta(value):
    return f'"set":{{"a":{value}}}}}'


def snapshot(value):
    return f'"snapshot":{{"a":{value}}}}}'


async def test_snapshot_replaces_waiting_deltas():
    box, frames = sending()
    box.delta("nodes", delta(1))
    box.snapshot("nodes", snapshot(2))
    box.delta("nodes", delta(3))
    assert await told(box, frames) == [
        {"topic": "nodes", "seq": 1, "snapshot": {"a": 2}},
        {"topic": "nodes", "seq": 2, "set": {"a": 3}},
    ]


async def test_too_many_deltas_are_replaced_by_snapshot():
    """A52: nothing of what came before or after is sent without it, and numbers have no gap."""
    box, frames, requested = asking()
    for value in range(outboxes.MAX_WAITING + 2):
        box.delta("nodes", delta(value))
    box.delta("overview", delta(0))
    assert [(message["topic"], message["seq"]) for message in await told(box, frames)] == [("overview", 1)]
    assert requested == [{"nodes"}]
    box.snapshot("nodes", snapshot(9))
    box.delta("nodes", delta(10))
    result = await told(box, frames)
    assert [message["seq"] for message in result] == [1, 2]
    assert result[0]["snapshot"] == {"a": 9}
    assert requested == [{"nodes"}]


async def test_unresponsive_page_gets_only_alive_messages():
    """Until it answers: then all that has waited goes out. One that never did is not asked for it."""
    box, frames, requested = asking()

    async def many():
        for _ in range(outboxes.MAX_UNACKNOWLEDGED + 1):
            box.alive('{"alive":"now"}', needs_answer=True, is_low_priority=False)
            await turns()
        box.delta("nodes", delta(1))
        for value in range(outboxes.MAX_WAITING + 1):
            box.delta("overview", delta(value))
        return [message.get("topic", "alive") for message in await told(box, frames)]

    alive = ["alive"] * (outboxes.MAX_UNACKNOWLEDGED + 1)
    assert await many() == [*alive, "nodes"]
    assert requested.pop() == {"overview"}
    box.acknowledge()
    box.snapshot("overview", snapshot(0))
    await told(box, frames)
    assert (await many(), requested) == (alive, [])
    box.acknowledge()
    assert [message["topic"] for message in await told(box, frames)] == ["nodes"]
    assert requested == [{"overview"}]


async def test_frame_length_is_bounded(monkeypatch):
    """In order: that the server lives, refusals, then the topics in turn."""
    monkeypatch.setattr(outboxes, "MAX_CHARACTERS", 60)
    box, frames = sending()
    box.delta("nodes", delta(1))
    box.delta("nodes", delta(2))
    box.delta("overview", delta(3))
    box.plain('{"topic":"x","error":"unknown_topic"}')
    box.alive('{"alive":"now"}')
    await turns()
    assert [len(frame) if isinstance(frame, list) else 1 for frame in frames] == [3, 2]
    first, second = frames
    assert [list(message)[-1] for message in first] == ["alive", "error", "set"]
    assert [(message["topic"], message["seq"]) for message in [first[2], *second]] == [
        ("nodes", 1), ("overview", 1), ("nodes", 2),
    ]  # fmt: skip


async def test_closed_outbox_sends_nothing():
    box, frames = sending()
    box.delta("nodes", delta(1))
    box.close()
    assert await told(box, frames) == []


async def test_unsubscribed_topic_is_not_sent():
    """Nor asked for, if something of it had been dropped."""
    box, frames, requested = asking()
    for count in (1, outboxes.MAX_WAITING + 1):
        for value in range(count):
            box.delta("nodes", delta(value))
        box.drop("nodes")
        assert (await told(box, frames), requested) == ([], [])


async def test_no_delta_is_sent_before_snapshot():
    """A52: of a look that had begun before it was wanted."""
    box, frames = sending()

    async def close(code):
        raise AssertionError(code)

    page = hub.Client(Session(1, "key", "password"), box, close, topics={"nodes"}, needs_snapshot={"nodes"})
    hub._send_update(page, "nodes", Update({}, None, delta(1)), is_low_priority=False)
    assert await told(box, frames) == []
    for news in (Update({}, snapshot(2), delta(2)), Update({}, None, delta(3)), Update({}, None, None)):
        hub._send_update(page, "nodes", news, is_low_priority=False)
    assert await told(box, frames) == [
        {"topic": "nodes", "seq": 1, "snapshot": {"a": 2}},
        {"topic": "nodes", "seq": 2, "set": {"a": 3}},
    ]
