"""The server's side of a new credential: the old one is valid until the new one is used once, and then refused."""

import asyncio
import hashlib

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.db import transaction

from gpusched.lib.api.problems import Problem
from gpusched.lib.bus import events
from gpusched.lib.bus.notifier import notifier
from gpusched.lib.db.sql import query
from gpusched.protocol.agent_messages import Desired, Join
from nodes.agents.replaced import ReplacedCredentials
from nodes.inventory import join, removal, rotation
from nodes.models import Node
from tests.api.hostile_sockets import agent_hub, connected, until_closed
from tests.at_once import at_once
from tests.factories import FakeAgent, make_node
from tests.nodes.test_hub_outages import is_answered, plain, send, socket_of
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)
SECRET, OTHER = "new-secret", "other-secret"
_END_LISTENERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
     WHERE datname = current_database() AND query LIKE 'LISTEN gpusched_events%%'
"""


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def offer(agent: FakeAgent, secret: str = SECRET) -> Desired:
    return agent.sync(next_credential_hash=hash_of(secret))


def header(agent: FakeAgent, secret: str = SECRET) -> str:
    return f"Bearer {agent.credential.partition('.')[0]}.{secret}"


def old_header(agent: FakeAgent) -> str:
    return f"Bearer {agent.credential}"


def test_old_credential_is_valid_until_the_new_one_is_used() -> None:
    agent, other = make_node(), make_node()
    assert not agent.sync().rotate
    rotation.ask(agent.name)
    assert agent.sync().rotate and not other.sync().rotate
    assert offer(agent).next_credential_hash == hash_of(SECRET)
    assert join.authenticate(old_header(agent)) == agent.id, "the new one was not used"
    assert offer(agent).next_credential_hash == hash_of(SECRET), "an offer may be repeated"
    issued_at = Node.objects.get(pk=agent.id).credential_at

    assert join.authenticate(header(agent)) == agent.id
    assert join.authenticate(old_header(agent)) is None
    assert join.authenticate(header(agent)) == agent.id
    answer = agent.sync()
    assert (answer.rotate, answer.next_credential_hash) == (False, "")
    node = Node.objects.get(pk=agent.id)
    assert (node.next_credential_hash, node.rotation_asked_at) == ("", None)
    assert issued_at and node.credential_at and node.credential_at > issued_at
    assert join.authenticate(old_header(other)) == other.id


def test_secret_that_nobody_asked_for_is_not_accepted() -> None:
    """A copy of a credential is not enough to lock its node out unnoticed."""
    agent = make_node()
    assert offer(agent).next_credential_hash == ""
    assert join.authenticate(header(agent)) is None
    assert join.authenticate(old_header(agent)) == agent.id


@pytest.mark.parametrize("text", ["x" * 64, "ab", "A" * 64, "\x00" * 64, "0" * 65])
def test_offer_that_is_no_hash_is_ignored(text: str) -> None:
    agent = make_node()
    rotation.ask(agent.name)
    assert agent.sync(next_credential_hash=text).next_credential_hash == ""
    assert Node.objects.get(pk=agent.id).next_credential_hash == ""


def test_latest_offer_counts() -> None:
    """An agent whose disk was restored has forgotten the first one."""
    agent = make_node()
    rotation.ask(agent.name)
    offer(agent)
    assert offer(agent, OTHER).next_credential_hash == hash_of(OTHER)
    assert join.authenticate(header(agent)) is None
    assert join.authenticate(header(agent, OTHER)) == agent.id


def test_present_secret_is_no_new_one() -> None:
    agent = make_node()
    rotation.ask(agent.name)
    assert offer(agent, agent.credential.partition(".")[2]).next_credential_hash == ""
    assert join.authenticate(old_header(agent)) == agent.id
    assert agent.sync().rotate


def test_empty_secret_is_not_accepted_before_an_offer() -> None:
    agent = make_node()
    rotation.ask(agent.name)
    assert join.authenticate(f"Bearer {agent.credential.partition('.')[0]}.") is None


def test_joining_again_ends_a_rotation() -> None:
    agent = make_node()
    rotation.ask(agent.name)
    offer(agent)
    rejoined = join.join_node(Join(name=agent.name, node_key=agent.key, facts=agent.facts()), 2.0)
    assert join.authenticate(header(agent)) is None
    assert join.authenticate(f"Bearer {rejoined.credential}") == agent.id
    assert not agent.sync().rotate


def test_new_credential_of_a_removed_node_is_refused() -> None:
    agent = make_node()
    rotation.ask(agent.name)
    offer(agent)
    Node.objects.filter(pk=agent.id).update(state="lost")
    with transaction.atomic():
        removal.remove(agent.name)
    with pytest.raises(Problem, match="removed"):
        join.authenticate(header(agent))
    with pytest.raises(Problem, match="removed by an admin"):
        rotation.ask(agent.name)


def test_connections_that_use_it_first_at_the_same_moment_are_both_accepted() -> None:
    agent = make_node()
    rotation.ask(agent.name)
    offer(agent)
    assert at_once(*[lambda: join.authenticate(header(agent)) for _ in range(4)]) == [agent.id] * 4


def test_connection_with_the_old_credential_is_closed_when_the_new_one_is_used() -> None:
    """A copy of the old one may have been connected all the time."""
    agent, other = make_node(), make_node()
    rotation.ask(agent.name)

    async def scenario() -> None:
        async with agent_hub():
            old, copy, neighbour = [await socket_of(each) for each in (agent, agent, other)]
            await send(old, plain(1, next_credential_hash=hash_of(SECRET)))
            await is_answered(old, 1)
            new = await connected("/ws/agent/", [(b"authorization", header(agent).encode())])
            assert new is not None
            for socket in (old, copy):
                await until_closed(socket)
                assert socket.code == 4401
            await sync_to_async(events.changed)("credentials")  # any may have changed
            for socket in (new, neighbour):
                await send(socket, plain(2))
                await is_answered(socket, 2)
                await socket.link.disconnect(timeout=30)

    asyncio.run(scenario())


def test_connection_with_the_old_credential_is_closed_after_a_lost_announcement_of_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = make_node()
    rotation.ask(agent.name)

    async def scenario() -> None:
        async with agent_hub():
            copy = await socket_of(agent)
            await send(copy, plain(1, next_credential_hash=hash_of(SECRET)))
            await is_answered(copy, 1)
            with monkeypatch.context() as context:
                context.setattr(notifier, "notify", lambda topic, ids=(): None)
                assert await sync_to_async(join.authenticate)(header(agent)) == agent.id
            assert await sync_to_async(query)(_END_LISTENERS)
            await until_closed(copy)
            assert copy.code == 4401

    asyncio.run(scenario())


def test_connection_whose_credential_is_replaced_while_it_opens_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The announcement comes after the check of the credential, and before the hub knows the connection."""
    agent, other = make_node(), make_node()
    rotation.ask(agent.name)
    offer(agent)
    authenticate, on_change = join.authenticate, ReplacedCredentials.on_change
    announced: list[dict[str, list[int]]] = []

    def noted(replaced: ReplacedCredentials, changed: dict[str, list[int]]) -> None:
        on_change(replaced, changed)
        announced.extend([changed] if "credentials" in changed else [])

    def replaced_meanwhile(presented: str) -> int | None:
        node_id = authenticate(presented)
        if node_id == agent.id and presented == old_header(agent):
            announced.clear()
            assert authenticate(header(agent)) == agent.id
            wait_for(lambda: announced, 10, "the announcement")
        return node_id

    async def scenario() -> None:
        async with agent_hub():
            neighbour = await socket_of(other)
            copy = await socket_of(agent)
            await until_closed(copy)
            assert copy.code == 4401
            await send(neighbour, plain(1))
            await is_answered(neighbour, 1)
            await neighbour.link.disconnect(timeout=30)

    monkeypatch.setattr(ReplacedCredentials, "on_change", noted)
    monkeypatch.setattr(join, "authenticate", replaced_meanwhile)
    asyncio.run(scenario())


def test_messages_of_older_agents_and_servers_are_understood() -> None:
    """They differ by the new fields alone."""
    assert msgspec.json.decode(b'{"seq":1}', type=Desired).rotate is False
    agent = make_node()
    rotation.ask(agent.name)
    assert agent.sync().error is None
