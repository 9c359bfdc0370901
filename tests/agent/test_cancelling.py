"""The end of an agent: all of its tasks end."""

import asyncio
from contextlib import suppress

import pytest

from gpusched.agent import supervision


async def lose_one() -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.Event().wait()


def test_agent_ends_although_a_task_loses_its_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `wait_for` of Python 3.11 loses it when what it waits for arrives at that moment."""
    monkeypatch.setattr(supervision, "CANCEL_SECONDS", 0.01)

    async def end() -> bool:
        task = asyncio.create_task(lose_one())
        await asyncio.sleep(0)
        await asyncio.wait_for(supervision.cancel_all([task]), 5.0)
        return task.cancelled()

    assert asyncio.run(end())


def test_connection_ends_with_one_of_its_parts_although_another_loses_its_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "CANCEL_SECONDS", 0.01)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        asyncio.run(asyncio.wait_for(supervision.until_first(lose_one(), fail()), 5.0))
