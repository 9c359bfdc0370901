"""What a page is sent in one frame, and when."""

import asyncio
import json
from contextlib import asynccontextmanager

from frontend import outbox as outboxes
from frontend.outbox import Outbox

DELTA = '"set":{}}'


@asynccontextmanager
async def sending():
    frames = []

    async def send(frame):
        frames.append(json.loads(frame))

    box = Outbox(send, lambda topics: None)
    task = asyncio.get_running_loop().create_task(box.run())
    try:
        yield box, frames
    finally:
        task.cancel()


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_told_at_leisure_waits_for_company():
    async with sending() as (box, frames):
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
    async with sending() as (box, frames):
        for number in (1, 2):
            box.delta("overview", DELTA, is_leisurely=True)
            async with asyncio.timeout(10):
                while len(frames) < number:
                    await asyncio.sleep(0.01)
        assert [frame["seq"] for frame in frames] == [1, 2]
