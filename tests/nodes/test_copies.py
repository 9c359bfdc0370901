"""Of two machines with copies of one disk, only one is the node: no order reaches both."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.db import connections, transaction
from django.test import Client
from django.utils import timezone

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query
from gpusched.protocol.agent_messages import BOOT_HEADER, Desired, Join, Run
from jobs.models import Job
from nodes.agents.sync import process
from nodes.inventory import copies
from nodes.inventory.join import join_node
from nodes.models import Node
from tests.api.hostile_sockets import Socket, agent_hub, connected, until_closed
from tests.factories import FakeAgent, make_member, make_node, make_tenant, run_cycle, submit
from tests.nodes.test_hub_outages import is_answered, plain, send, socket_of
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def silent_for(agent: FakeAgent, seconds: float) -> None:
    Node.objects.filter(pk=agent.id).update(last_seen_at=timezone.now() - timedelta(seconds=seconds))


def test_copy_gets_no_orders_and_changes_nothing() -> None:
    agent = make_node()
    tenant = make_tenant()
    user = make_member(tenant)
    submit(user, tenant)
    run_cycle()
    answer = agent.sync(boot_id="boot-2")
    assert answer.error == copies.REFUSAL and not answer.assignments
    assert Node.objects.get(pk=agent.id).boot_id == "boot-1"
    assert [type(order) for order in agent.sync().assignments] == [Run]


def test_first_machine_of_a_batch_is_the_node_when_none_reports() -> None:
    agent, other = make_node(), make_node()
    silent_for(agent, 3600)
    batch = [
        (agent.id, plain(1)),
        (agent.id, msgspec.structs.replace(plain(2), boot_id="boot-2")),
        (other.id, plain(3)),
    ]
    assert [answer.error for answer in process(batch)] == [None, copies.REFUSAL, None]
    assert Node.objects.get(pk=agent.id).boot_id == "boot-1"


@pytest.mark.parametrize("lost_seconds", [15, 86_400])
def test_rebooted_machine_is_the_node_again_once_its_last_message_is_old(settings: Any, lost_seconds: int) -> None:
    settings.ENV = replace(settings.ENV, node_lost_seconds=lost_seconds)
    agent = make_node()
    silent_for(agent, 16)
    assert agent.sync(boot_id="boot-2").error is None
    assert agent.sync(boot_id="boot-1").error == copies.REFUSAL, "now this one is the copy"
    silent_for(agent, -3600)  # the clock was set back
    assert agent.sync(boot_id="boot-3").error is None


def test_copy_that_joins_again_leaves_the_node_its_credential(client: Client) -> None:
    agent = make_node()
    facts = msgspec.structs.replace(agent.facts(), boot_id="boot-2")
    with pytest.raises(Problem, match="another machine reports as node") as refused:
        join_node(Join(name=agent.name, node_key=agent.key, facts=facts), 2.0)
    assert refused.value.status == 409 and "--name" in str(refused.value.next_step)
    assert agent.sync().error is None
    silent_for(agent, 16)
    assert join_node(Join(name=agent.name, node_key=agent.key, facts=facts), 2.0).node_id == agent.id


async def copy_of(agent: FakeAgent, *headers: tuple[bytes, bytes]) -> Socket:
    socket = await connected("/ws/agent/", [(b"authorization", f"Bearer {agent.credential}".encode()), *headers])
    assert socket is not None
    return socket


def test_copy_is_closed_with_the_reason_and_the_node_stays_connected() -> None:
    agent = make_node()

    async def scenario() -> None:
        async with agent_hub():
            node = await socket_of(agent)
            await send(node, plain(1))
            await is_answered(node, 1)
            at_handshake = await copy_of(agent, (BOOT_HEADER.lower().encode(), b"boot-2"))
            older = await copy_of(agent)
            await send(older, msgspec.structs.replace(plain(1), boot_id="boot-2"))
            for socket in (at_handshake, older):
                await until_closed(socket)
                assert socket.code == 4409
            await send(node, plain(2))
            await is_answered(node, 2)
            await node.link.disconnect(timeout=30)

    asyncio.run(scenario())


def second_agent(first: FakeAgent) -> FakeAgent:
    """Join the machine of `first` once more, from another directory."""
    second = copy(first)
    second.name, second.key, second.held = f"{first.name}-again", f"{first.key}-again", []
    joined = join_node(Join(name=second.name, node_key=second.key, facts=second.facts()), 2.0)
    second.id, second.credential = joined.node_id, joined.credential
    return second


def test_machine_whose_agent_reports_cannot_join_as_another_node() -> None:
    first = make_node(gpus=2)
    with pytest.raises(Problem, match="offers the same GPUs") as refused:
        second_agent(first)
    assert (refused.value.status, refused.value.code) == (409, "in_use")
    assert Node.objects.count() == 1


def test_second_node_of_a_machine_gets_no_jobs_while_the_first_reports() -> None:
    first = make_node(gpus=1)
    Node.objects.update(state="lost")
    second = second_agent(first)
    assert "offers the same GPUs" not in str(second.sync().error)
    assert f"node '{second.name}' of this machine" in str(first.sync().error)
    tenant = make_tenant()
    user = make_member(tenant)
    jobs = [submit(user, tenant) for _ in range(2)]
    run_cycle()
    assert [Job.objects.get(pk=job_id).state for job_id in jobs] == ["scheduled", "pending"]
    Node.objects.filter(pk=second.id).update(state="lost")
    assert first.sync().error is None
    assert Node.objects.get(pk=first.id).state == "online"


def lost_twins() -> list[FakeAgent]:
    first = make_node(gpus=1)
    Node.objects.update(state="lost")
    agents = [first, second_agent(first)]
    Node.objects.update(state="lost")
    return agents


def test_of_two_nodes_of_a_machine_that_return_in_one_message_one_comes_online() -> None:
    answers = process([(agent.id, plain(1)) for agent in lost_twins()])
    assert [answer.error is None for answer in answers] == [True, False]
    assert list(Node.objects.order_by("id").values_list("state", flat=True)) == ["online", "lost"]


def in_own_connection(agent: FakeAgent) -> list[Desired]:
    try:
        return process([(agent.id, plain(1))])
    finally:
        connections.close_all()


def test_of_two_nodes_of_a_machine_that_return_at_once_one_comes_online() -> None:
    """The second transaction begins before the first one has ended."""
    first, second = lost_twins()
    answers = []
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            answers += process([(first.id, plain(1))])
            other = pool.submit(in_own_connection, second)
            waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            wait_for(lambda: other.done() or query(waiting), 10)
        answers += other.result(10)
    assert [answer.error is None for answer in answers] == [True, False]
