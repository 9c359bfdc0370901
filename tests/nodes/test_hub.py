"""The hub of the agents knows how long their messages wait."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from gpusched.protocol.agent_messages import Desired, Sync
from nodes.agents import hub as hubs
from nodes.inventory.removal import REFUSAL


class Agent:
    node_id = 1
    authorization = ""

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.refused = ""

    def deliver(self, answer: Desired) -> None:
        self.answered.set()

    def refuse(self, reason: str) -> None:
        self.refused = reason
        self.answered.set()


async def test_agent_of_a_removed_node_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A42."""
    monkeypatch.setattr(hubs, "process", lambda batch, answers: [Desired(seq=1, error=REFUSAL) for _ in batch])
    hub, agent = hubs.AgentHub(), Agent()
    working = asyncio.create_task(hub._process())
    hub.receive(agent, Sync(seq=1, boot_id="b", at="2030-01-01T00:00:00Z"))
    await asyncio.wait_for(agent.answered.wait(), 30)
    assert agent.refused == REFUSAL
    working.cancel()


async def test_message_in_progress_counts_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def process(batch: Sequence[tuple[int, Sync]], answers: Any) -> list[Desired]:
        begun.set()
        go_on.wait(30)
        return [Desired(seq=message.seq) for _, message in batch]

    monkeypatch.setattr(hubs, "process", process)
    hub, agent = hubs.AgentHub(), Agent()
    working = asyncio.create_task(hub._process())
    assert hub.waiting_seconds() == 0
    hub.receive(agent, Sync(seq=1, boot_id="b", at="2030-01-01T00:00:00Z"))
    assert hub.waiting_seconds() > 0
    assert await asyncio.to_thread(begun.wait, 30)
    first = hub.waiting_seconds()
    hub.receive(agent, Sync(seq=2, boot_id="b", at="2030-01-01T00:00:00Z"))
    await asyncio.sleep(0.01)
    assert hub.waiting_seconds() > first, "of those that wait the first counts"
    go_on.set()
    await asyncio.wait_for(agent.answered.wait(), 30)
    while hub._inbox or hub._answering_since is not None:
        await asyncio.sleep(0.01)
    assert hub.waiting_seconds() == 0
    working.cancel()
