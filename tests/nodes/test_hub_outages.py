"""The hub of the agents while the database is away, and when any of its own work fails."""

import asyncio
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.utils import timezone

from gpusched.lib.db.engine.base import gate
from gpusched.lib.db.threads import DatabaseAway, run_in_thread
from gpusched.protocol.agent_messages import Desired, Ended, Sync
from jobs.models import Attempt, Job
from nodes.agents import hub as hubs
from nodes.agents.inbox import MAX_PER_NODE
from nodes.agents.sync import process as write
from tests.api.hostile_sockets import TIMEOUT_SECONDS, Socket, agent_hub, connected, until, until_closed
from tests.factories import FakeAgent, make_node, now, run_cycle, submit
from tests.postgres_proxy import Proxy, proxied

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def proxy():
    with proxied() as found:
        yield found
    gate._reset()


class Link:
    authorization = ""

    def __init__(self, agent: FakeAgent) -> None:
        self.node_id = agent.id
        self.answers: list[Desired] = []

    def deliver(self, answer: Desired) -> None:
        self.answers.append(answer)

    def refuse(self, reason: str) -> None:
        raise AssertionError(reason)

    @property
    def last_seq(self) -> int:
        return max((answer.seq for answer in self.answers), default=0)


def plain(seq: int, **more: Any) -> Sync:
    return Sync(seq=seq, at=now(), boot_id="boot-1", **more)


async def socket_of(agent: FakeAgent) -> Socket:
    socket = await connected("/ws/agent/", [(b"authorization", f"Bearer {agent.credential}".encode())])
    assert socket is not None
    return socket


async def send(socket: Socket, message: Sync) -> None:
    await socket.say(msgspec.json.encode(message).decode())


async def is_answered(socket: Socket, seq: int) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not any(told["seq"] == seq for told in socket.heard):
            await socket.listen(1.0)


def outage(proxy: Proxy, kind: str) -> None:
    connection.close()
    proxy.attempts = 0
    proxy.hang() if kind == "hang" else proxy.refuse()


@pytest.mark.parametrize("kind", ["hang", "refuse"])
def test_outage_costs_an_attempt_for_all_messages_and_loses_no_report(proxy, user, tenant, kind, monkeypatch):
    """A59: a database that let connections time out cost 1 + 100 timeouts for each batch, while the inbox grew."""
    monkeypatch.setattr(hubs, "RETRY_SECONDS", 0.1)
    agents = [make_node(gpus=1) for _ in range(20)]
    jobs = [submit(user, tenant) for _ in agents]
    run_cycle()
    keys = [agent.start_all()[0] for agent in agents]
    links = [Link(agent) for agent in agents]
    outage(proxy, kind)

    async def scenario() -> None:
        async with agent_hub() as hub:
            for link in links:
                hub.connect(link)
            hub._tasks = [asyncio.create_task(hub._process())]
            for seq in range(1, 60):
                for link, key in zip(links, keys, strict=True):
                    # The end is reported once here: agents repeat it, but the hub does not rely on that.
                    reports = (
                        [Ended(key=key, at=now(), reason="exited", exit_code=0, seconds_ago=0.0)] if seq == 1 else []
                    )
                    assert hub.receive(link, plain(seq, reports=reports))
            await until(lambda: links[0].answers)
            assert proxy.attempts <= 3, "one of this, and those of the notifier"
            assert len(hub._inbox) <= 2 * MAX_PER_NODE * len(links)
            assert hub.waiting_seconds() > 0
            assert not any(answer.acknowledged or answer.seq for link in links for answer in link.answers)
            await asyncio.sleep(max(0.0, 3.0 - hub.waiting_seconds()))  # the outage that the ends must not be late by
            proxy.come_back()
            await until(lambda: all(link.last_seq == 59 for link in links))
            acknowledged = [key for link in links for answer in link.answers for key in answer.acknowledged]
            assert sorted(acknowledged) == sorted(keys)
            assert not hub._inbox

    told_at = timezone.now()
    asyncio.run(scenario())
    lasted = (timezone.now() - told_at).total_seconds()
    late = [(at - told_at).total_seconds() for at in Attempt.objects.values_list("ended_at", flat=True) if at]
    assert len(late) == len(jobs)
    assert max(late) < min(2.5, lasted), "they ended when their agents said so, not after the outage"
    assert set(Job.objects.filter(id__in=jobs).values_list("state", flat=True)) == {"completed"}


def test_socket_stays_open_through_an_outage_and_gets_a_heartbeat(proxy, monkeypatch):
    """A59: agents close a connection on which nothing comes for 10 s, and could make no new one."""
    monkeypatch.setattr(hubs, "RETRY_SECONDS", 0.05)
    agent = make_node()

    async def scenario() -> None:
        async with agent_hub():
            socket = await socket_of(agent)
            await send(socket, plain(1))
            await is_answered(socket, 1)
            proxy.refuse()
            await send(socket, plain(2))
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not any(told["seq"] == 0 for told in socket.heard):
                    await socket.listen(1.0)
            assert socket.code is None
            proxy.come_back()
            await is_answered(socket, 2)
            await socket.link.disconnect(timeout=TIMEOUT_SECONDS)

    asyncio.run(scenario())


def test_agent_with_too_many_queued_reports_is_closed_without_acknowledgement(proxy):
    agent = make_node()

    async def scenario() -> None:
        async with agent_hub() as hub:
            socket = await socket_of(agent)
            proxy.refuse()
            for seq in range(1, 4 * MAX_PER_NODE):
                await send(socket, plain(seq, reports=[Ended(key=f"{seq}.1.0", at=now(), reason="exited")]))
            await until_closed(socket)
            assert socket.code == 1013
            assert not any(told["acknowledged"] for told in socket.heard)
            assert len(hub._inbox) <= 2 * MAX_PER_NODE

    asyncio.run(scenario())


def test_changes_for_agents_are_pushed_after_an_outage(proxy, user, tenant, monkeypatch):
    monkeypatch.setattr(hubs, "RETRY_SECONDS", 0.05)
    agent = make_node(gpus=1)
    job = submit(user, tenant)
    run_cycle()
    link = Link(agent)
    outage(proxy, "refuse")

    async def scenario() -> None:
        async with agent_hub() as hub:
            hub._tasks = [asyncio.create_task(hub._push())]
            hub.connect(link)
            await until(lambda: proxy_was_tried.is_set())
            proxy.come_back()
            await until(lambda: any(answer.assignments for answer in link.answers))

    proxy_was_tried = asyncio.Event()

    async def noted(*args: Any) -> Any:
        try:
            return await run_in_thread(*args)
        except DatabaseAway:
            proxy_was_tried.set()
            raise

    monkeypatch.setattr(hubs, "run_in_thread", noted)
    asyncio.run(scenario())
    assert [order.key for answer in link.answers for order in answer.assignments] == [f"{job}.1.0"]


@pytest.mark.parametrize("fault", ["_recently_sent", "_deliver", "_answer"])
def test_hub_task_that_raises_is_restarted(monkeypatch, fault):
    """A single error leaves a message unanswered: the agent sends it again, and gets later answers."""
    agent = make_node()
    real = getattr(hubs.AgentHub, fault)
    raised: list[str] = []

    def failing(*args: Any) -> Any:
        if not raised:
            raised.append(fault)
            raise RuntimeError("injected")
        return real(*args)

    async def scenario() -> None:
        async with agent_hub():
            socket = await socket_of(agent)
            await send(socket, plain(1))
            await is_answered(socket, 1)
            monkeypatch.setattr(hubs.AgentHub, fault, failing)
            await send(socket, plain(2))
            await is_answered(socket, 2)
            await send(socket, plain(3))
            await is_answered(socket, 3)
            await socket.link.disconnect(timeout=TIMEOUT_SECONDS)
            assert [told["error"] for told in socket.heard if told["seq"] == 3] == [None]

    asyncio.run(scenario())
    assert raised


def test_lease_is_renewed_again_after_its_task_raised(monkeypatch):
    monkeypatch.setattr(hubs, "LEASE_SECONDS", 0.01)
    calls: list[int] = []

    def renew() -> None:
        calls.append(len(calls))
        if len(calls) % 2:
            raise RuntimeError("injected")

    monkeypatch.setattr(hubs, "renew_lease", renew)

    async def scenario() -> None:
        async with agent_hub() as hub:
            hub.start()
            await until(lambda: len(calls) > 4)

    asyncio.run(scenario())


def test_unwritable_message_does_not_block_others(monkeypatch):
    agents = [make_node() for _ in range(3)]
    links = [Link(agent) for agent in agents]

    def process(batch: Any, told: Any) -> list[Desired]:
        if any(node_id == agents[1].id for node_id, _ in batch):
            raise RuntimeError("injected")
        return write(batch, told)

    monkeypatch.setattr(hubs, "process", process)
    monkeypatch.setattr(hubs, "process_leniently", lambda node_id, message, *_: process([(node_id, message)], {})[0])

    async def scenario() -> None:
        async with agent_hub() as hub:
            for link in links:
                hub.connect(link)
                hub.receive(link, plain(1))
            hub._tasks = [asyncio.create_task(hub._process())]
            await until(lambda: all(link.last_seq == 1 for link in links))

    asyncio.run(scenario())
    assert [[answer.error for answer in link.answers] for link in links] == [
        [None],
        ["not written, send again"],
        [None],
    ]
