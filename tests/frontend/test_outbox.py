"""What a page is sent in one frame, and when."""

import asyncio
import json

from frontend import outbox as outboxes
from frontend.outbox import Outbox

DELTA = '"set":{}}'


def sending():
    """An outbox, and the frames that leave it."""
    frames = []
    return Outbox(lambda frame: frames.append(json.loads(frame)), lambda topics: None), frames


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_told_at_leisure_waits_for_company():
    box, frames = sending()
    box.delta("overview", DELTA, is_leisurely=True)
    box.alive('{"alive":"now"}')
    await turns()
    assert frames == []
    box.delta("nodes", DELTA)
    await turns()
    [[alive, *deltas]] = frames
    assert alive == {"alive": "now"}
    assert [delta["topic"] for delta in deltas] == ["overview", "nodes"]


async def test_it_goes_alone_when_none_comes(monkeypatch):
    monkeypatch.setattr(outboxes, "COMPANY_SECONDS", 0.01)
    box, frames = sending()
    for number in (1, 2):
        box.delta("overview", DELTA, is_leisurely=True)
        async with asyncio.timeout(10):
            while len(frames) < number:
                await asyncio.sleep(0.01)
    assert [frame["seq"] for frame in frames] == [1, 2]
