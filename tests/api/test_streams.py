"""The right to open a stream into a job, the refusals of others, and hostile clients (A69)."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings

from gpusched.lib.db.sql import query
from gpusched.protocol.states import Role, Scope
from gpusched.protocol.streams import Reason
from jobs.actions import job_actions
from nodes.streams import opening, watch, websocket
from nodes.streams.agents import AgentStreams, registry
from tenants.models import ApiToken, Membership
from tenants.tenancy import tenants
from tests.factories import (
    FakeAgent,
    identity_for,
    make_member,
    make_node,
    make_tenant,
    make_token,
    make_user,
    run_cycle,
    submit,
)
from tests.frontend.page import cookie_of
from tests.nodes.streaming import EchoAgent, cleaned, client, echoing

pytestmark = pytest.mark.django_db(transaction=True)
db = sync_to_async


class World:
    """A running job of a member, and people around it."""

    def __init__(self) -> None:
        self.tenant, self.other = make_tenant("team"), make_tenant("others")
        self.member = make_member(self.tenant)
        self.node: FakeAgent = make_node()
        self.job = submit(self.member, self.tenant)
        self.waiting = submit(self.member, self.tenant, not_before="2099-01-01T00:00:00Z")
        run_cycle()
        self.node.start_all()
        self.token = make_token(self.member)

    def path(self, job: int | None = None, query: str = "port=80") -> str:
        return f"/ws/jobs/{self.job if job is None else job}/stream?{query}"


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


def run(work: Coroutine[Any, Any, None]) -> None:
    async def cleanly() -> None:
        async with cleaned():
            await work

    asyncio.run(cleanly())


async def refusal(path: str, *headers: tuple[str, str]) -> tuple[int | None, dict[str, Any]]:
    async with client(path, *headers) as refused:
        problem = await refused.closed()
        assert problem is not None and refused.data == b"", (refused.code, refused.notes)
        assert refused.code == 4000 + problem["status"]
        return refused.code, {name: value for name, value in problem.items() if name != "request_id"}


def test_stream_echoes_ends_and_is_audited() -> None:
    """A69."""
    world = World()

    async def work() -> None:
        with echoing(world.node.id) as agent:
            async with client(world.path(query="port=8000&rank=0"), bearer(world.token)) as stream:
                await stream.until(lambda: stream.notes == [{"opened": True}])
                data = bytes(range(256)) * 8000  # beyond the window
                for start in range(0, len(data), 200_000):
                    await stream.say(data[start : start + 200_000])
                await stream.until(lambda: len(stream.data) == len(data))
                assert stream.data == data
                await stream.say('{"end": true}')
                assert await stream.closed() is None
                assert stream.notes[-1] == {"end": True} and stream.code == 1000
        assert agent.opened[0].port == 8000 and agent.opened[0].key == f"{world.job}.1.0"
        assert not agent.streams

    run(work())
    [entry] = query("SELECT actor, via, subject, after FROM lib_auditentry WHERE action = 'stream.open'")
    assert (entry["actor"], entry["subject"]) == (world.member.username, f"job {world.job}")
    assert entry["via"].startswith("token ") and entry["after"] == {"port": 8000, "rank": 0}


def test_stream_needs_the_role_that_may_signal_the_job() -> None:
    """A69: as POST /jobs/ID/signal: own jobs as a member, else as an owner."""
    world = World()
    colleague, owner = make_member(world.tenant), make_member(world.tenant, Role.OWNER)
    viewer, admin = make_member(world.tenant, Role.VIEWER), make_user(admin=True)
    reader = make_token(world.member, Scope.READ)
    allowed = {"member": world.token, "owner": make_token(owner), "admin": make_token(admin)}
    refused = {make_token(colleague): 4403, make_token(viewer): 4403, reader: 4403, "t1.forged": 4401, "": 4401}

    async def work() -> None:
        with echoing(world.node.id):
            for token, code in refused.items():
                assert (await refusal(world.path(), bearer(token)))[0] == code
            for name, token in allowed.items():
                async with client(world.path(), bearer(token)) as stream:
                    await stream.until(lambda: stream.notes)
                    assert stream.notes == [{"opened": True}], name

    run(work())


def test_job_of_another_tenant_answers_like_one_that_does_not_exist() -> None:
    """A69: another tenant cannot tell that it exists."""
    world = World()
    stranger = make_token(make_member(world.other))

    async def work() -> None:
        with echoing(world.node.id) as agent:
            answers = [
                await refusal(world.path(job, asked), bearer(stranger))
                for job in (world.job, world.waiting, 987_654)
                for asked in ("port=80", "socket=api", "port=80&rank=7")
            ]
            texts = [
                (code, str(problem).replace(f"job {job}", "job N"))
                for (code, problem), job in zip(
                    answers, [job for job in (world.job, world.waiting, 987_654) for _ in range(3)], strict=True
                )
            ]
            assert len(set(texts)) == 1 and texts[0][0] == 4404
            invalid = {str(await refusal(world.path(job, "port=0"), bearer(stranger))) for job in (world.job, 987_654)}
            assert len(invalid) == 1
        assert not agent.opened

    run(work())
    assert not query("SELECT 1 FROM lib_auditentry WHERE action = 'stream.open'")


def test_page_needs_its_session_and_the_origin_of_this_server() -> None:
    """A69."""
    world = World()
    cookie = "cookie", f"{settings.SESSION_COOKIE_NAME}={cookie_of(world.member)}"

    async def work() -> None:
        with echoing(world.node.id):
            async with client(world.path(), cookie, ("origin", "http://localhost")) as stream:
                await stream.until(lambda: stream.notes == [{"opened": True}])
            for headers in ([cookie, ("origin", "http://localhost:9734")], [cookie]):
                with pytest.raises(AssertionError):  # the handshake itself is refused
                    async with client(world.path(), *headers):
                        pass
            assert (await refusal(world.path(), ("origin", "http://localhost")))[0] == 4401

    run(work())


def test_each_refusal_has_its_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """A69: also a port that nothing listens on, an agent that does not answer, an older one, and none."""
    world = World()
    monkeypatch.setattr(opening, "OPEN_SECONDS", 0.2)
    me = bearer(world.token)

    async def code(asked: str = "port=80", job: int | None = None) -> tuple[int | None, str]:
        number, problem = await refusal(world.path(job, asked), me)
        assert problem["detail"] and problem["next_step"]
        return number, problem["code"]

    async def work() -> None:
        with echoing(world.node.id) as agent:
            for asked in ("", "port=", "port=0", "port=65536", "port=1e3", "port=1&socket=a", "port=1&port=2", "socket=",
                          "socket=..", "socket=a/b", "socket=" + "x" * 49, "port=1&rank=-1", "port=1&x=1"):  # fmt: skip
                assert await code(asked) == (4400, "invalid"), asked
            assert await code("port=80&rank=5") == (4404, "not_found")
            assert await code(job=world.waiting) == (4409, "wrong_state")
            assert not agent.opened
            assert await code("port=1") == (4409, "not_listening")
            assert await code("port=2") == (4503, "node_unreachable")
            assert not agent.streams
        assert await code() == (4503, "node_unreachable")
        old = AgentStreams(agent, can_stream=False)
        registry.connect(world.node.id, old)
        assert await code() == (4501, "stream_unsupported")
        registry.disconnect(old)

    run(work())


def test_stream_ends_with_the_right_to_it_and_with_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A69: a revoked token, a lost role, a membership that ended, a deactivated user, the end of the job."""
    monkeypatch.setattr(watch, "CHECK_SECONDS", 0.02)
    world = World()

    def revoke() -> None:
        ApiToken.objects.filter(user=world.member).update(revoked_at="2030-01-01T00:00:00Z")

    def rejoin() -> str:
        tenants.set_member(world.tenant, world.member, Role.MEMBER)
        return make_token(world.member)

    def demote() -> None:
        Membership.objects.filter(user=world.member).update(role=Role.VIEWER)

    def leave() -> None:
        Membership.objects.filter(user=world.member).delete()

    def end() -> None:
        job_actions.cancel(world.job, identity_for(world.member))
        world.node.end(f"{world.job}.1.0", reason="cancelled")

    async def work() -> None:
        with echoing(world.node.id) as agent:
            for change, code in ((revoke, 4401), (demote, 4403), (leave, 4404), (end, 4410)):
                token = await db(rejoin)()
                async with client(world.path(), bearer(token)) as stream:
                    await stream.until(lambda: stream.notes)
                    await db(change)()
                    problem = await stream.closed()
                    assert stream.code == code and problem is not None, problem
                assert not agent.streams

    run(work())


def test_stream_ends_with_the_reason_of_the_agent_or_of_its_loss() -> None:
    """A69: it never hangs, also without a reader or a writer."""
    world = World()

    async def work() -> None:
        for end, code in ((lambda a: a.reset(Reason.RANK_ENDED), 4410), (lambda a: a.reset(Reason.BROKEN), 4502),
                          (lambda a: registry.disconnect(a.streams), 4503)):  # fmt: skip
            with echoing(world.node.id, EchoAgent()) as agent:
                async with client(world.path(), bearer(world.token)) as stream:
                    await stream.until(lambda: stream.notes)
                    end(agent)
                    assert await stream.closed() and stream.code == code

    run(work())


def test_streams_of_a_user_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A69."""
    world = World()
    monkeypatch.setattr(websocket.limiter, "max_each", 1)
    other = make_token(make_user(admin=True))

    async def work() -> None:
        with echoing(world.node.id):
            async with client(world.path(), bearer(world.token)) as first:
                await first.until(lambda: first.notes)
                code, problem = await refusal(world.path(), bearer(world.token))
                assert (code, problem["code"]) == (4429, "too_many_job_streams")
                async with client(world.path(), bearer(other)) as theirs:
                    await theirs.until(lambda: theirs.notes == [{"opened": True}])
            async with client(world.path(), bearer(world.token)) as again:
                await again.until(lambda: again.notes == [{"opened": True}])

    run(work())


@pytest.mark.parametrize(
    "messages", [["{"], ["hello"], ["{}"], ['{"end":true}', '{"end":true}'], ['{"end":true}', b"x"]]
)
def test_hostile_message_closes_only_its_own_stream(messages: list[str | bytes]) -> None:
    """A69, A55."""
    world = World()

    async def work() -> None:
        with echoing(world.node.id) as agent:
            async with client(world.path(query="port=3"), bearer(world.token)) as hostile:
                async with client(world.path(), bearer(world.token)) as neighbour:
                    await neighbour.until(lambda: neighbour.notes)
                    await hostile.until(lambda: hostile.notes)
                    for message in messages:
                        await hostile.say(message)
                    assert await hostile.closed() and hostile.code == 4400
                    await neighbour.say(b"still")
                    await neighbour.until(lambda: neighbour.data == b"still")
        assert not agent.streams

    run(work())
