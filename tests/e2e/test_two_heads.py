"""Two heads: each has its own data directory, web process and workers; database and files are shared."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from gpusched.agent.processes import signal_all
from gpusched.client import Client
from gpusched.client.errors import GpuschedError
from gpusched.client.streams import open_stream
from gpusched.lib.db.embedded import Server
from gpusched.lib.process import tls_proxy
from tests.docs.blocks import blocks
from tests.serving import openai_replica
from tests.system import prepared
from tests.system.page import LivePage, answers, log_in
from tests.system.stack import ROOT, Stack, free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]
TIMEOUT_SECONDS = 60.0
# A82, for agents and pages, and for cycles.
MOVE_SECONDS, CYCLE_SECONDS = 3.0, 2.0


class Head(Stack):
    """A head with the database and the files of `shared`."""

    is_prepared = False

    def __init__(self, shared: Path, database_url: str, password: str, port: int, heads: str) -> None:
        secret_key = (shared / "secret_key").read_text().strip()
        super().__init__(database_url=database_url, secret_key=secret_key, files_dir=shared / "files", heads=heads)
        self._shared, self.password = shared, password
        self.port, self.url = port, f"http://127.0.0.1:{port}"

    def token(self, user: str = "admin") -> str:
        return (self._shared / "tokens" / user).read_text().strip()

    def has(self, pid: int) -> bool:
        return pid in self.pids("")

    def die(self) -> None:
        """Kill all processes of this head at once."""
        signal_all(self.pids(""), signal.SIGKILL)


# Between the agent and the first head, as a network that breaks.
RELAY = """
import asyncio, sys
async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
async def relay(reader, writer):
    there = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))
async def main():
    async with await asyncio.start_server(relay, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
"""
REPLICA = "from gpusched.serve import serve\nserve(lambda requests: [2 * number for number in requests])\n"


class Heads:
    """Two heads, and an agent that has the addresses of both, that of the first one through a relay."""

    def __init__(self, first: Head, second: Head, database_url: str) -> None:
        self.first, self.second, self._database_url = first, second, database_url
        self.urls = f"{first.url},{second.url}"
        self.relay_port = free_port()
        self.relay = self._start_relay()

    def break_agent(self) -> None:
        """Break the connection of the agent to the first head, for a moment."""
        self.close()
        self.relay = self._start_relay()

    def agent_is_at_the_second(self) -> bool:
        """Return whether the agent is connected to the second head; through the relay it is to the first."""
        connections = psutil.Process(self.first.agents[0].pid).net_connections()
        return any(each.raddr and each.raddr.port == self.second.port for each in connections)

    def close(self) -> None:
        self.relay.kill()
        self.relay.wait()

    def _start_relay(self) -> subprocess.Popen[bytes]:
        arguments = [str(self.relay_port), str(self.first.port)]
        return subprocess.Popen([sys.executable, "-c", RELAY, *arguments], stderr=subprocess.DEVNULL)

    def client(self) -> Client:
        return Client(self.urls, self.first.token(), tenant="default")

    def row(self, sql: str) -> tuple[Any, ...]:
        with psycopg.connect(self._database_url, autocommit=True) as connection:
            row = connection.execute(sql).fetchone()
        assert row is not None
        return tuple(row)

    def leader(self) -> tuple[int, int]:
        """Return the term, and the process of the worker that leads."""
        term, leader = self.row("SELECT term, leader FROM scheduling_term")
        return int(term), int(leader.rpartition(":")[2])

    def beats_of(self, head: Head) -> bool:
        return head.has(int(self.row("SELECT worker FROM scheduling_beat")[0].rpartition(":")[2]))


@pytest.fixture(scope="module")
def heads() -> Iterator[Heads]:
    directory = Path(tempfile.mkdtemp(prefix="gpusched-heads-"))
    directory.chmod(0o755)
    shared = directory / "shared"
    password = prepared.copy_to(shared)
    database = Server(shared / "postgres")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        stack.callback(database.remove)
        database.start()
        ports = free_port(), free_port()
        addresses = ",".join(f"http://127.0.0.1:{port}" for port in ports)
        first, second = (stack.enter_context(Head(shared, database.url(), password, port, addresses)) for port in ports)
        pair = Heads(first, second, database.url())
        stack.callback(pair.close)
        urls = f"http://127.0.0.1:{pair.relay_port},{second.url}"
        wait_for(lambda: answers(f"http://127.0.0.1:{pair.relay_port}"), TIMEOUT_SECONDS, "the relay")
        first.agent("--url", urls, "--heartbeat-seconds", "0.5", "--pretend", "1:A100:81920:8:64:512000", name="n")
        client = pair.client()
        wait_for(lambda: client.status().online_nodes == 1, TIMEOUT_SECONDS, "the node")
        yield pair


def test_stopped_leader_changes_nothing_when_it_continues(heads: Heads) -> None:
    """A81: another worker leads meanwhile, in a new term, within 2 s of the end of the session."""
    client = heads.client()
    term, pid = heads.leader()
    head, other = (heads.first, heads.second) if heads.first.has(pid) else (heads.second, heads.first)
    os.kill(pid, signal.SIGSTOP)
    try:
        heads.row("SELECT pg_terminate_backend(session) FROM scheduling_term")
        began = time.monotonic()
        wait_for(lambda: heads.beats_of(other), TIMEOUT_SECONDS, "a cycle of the other head")
        assert time.monotonic() - began < CYCLE_SECONDS
        assert client.wait(client.submit(["true"], gpus=1).id, timeout=TIMEOUT_SECONDS).attempt == 1
    finally:
        os.kill(pid, signal.SIGCONT)
    assert heads.leader()[0] > term
    jobs = [client.submit(["true"], gpus=1).id for _ in range(20)]
    assert {client.wait(job, timeout=TIMEOUT_SECONDS).attempt for job in jobs} == {1}
    assert not heads.beats_of(head)


def test_streams_reach_an_agent_at_the_other_head(heads: Heads) -> None:
    """A request to a replica, and a connection to a job: at either head, wherever the agent is connected."""
    client, port = heads.client(), free_port()
    client.create_endpoint("embed", {"command": [sys.executable, "-c", REPLICA], "gpu_count": 1}, min_replicas=1)
    command = [sys.executable, openai_replica.__file__, str(port)]
    client.create_endpoint("chat", {"command": command, "gpu_count": 1}, protocol="openai", port=port, min_replicas=1)

    def run(head: Head) -> Any:
        one = Client(head.url, head.token(), tenant="default")
        return next(iter(one.map("embed", [21], timeout=TIMEOUT_SECONDS)))

    def chat(head: Head) -> httpx.Response:
        body = {"model": "chat", "messages": [{"role": "user", "content": "count 2"}]}
        token = {"Authorization": f"Bearer {head.token()}"}
        return httpx.post(f"{head.url}/v1/chat/completions", json=body, headers=token, timeout=TIMEOUT_SECONDS)

    wait_for(lambda: client.endpoint("embed").warm and client.endpoint("chat").warm, TIMEOUT_SECONDS, "the replicas")
    both = (heads.first, heads.second)
    (job,) = heads.row(
        "SELECT job_id FROM serving_replica r, serving_endpoint e WHERE e.id = endpoint_id AND name = 'chat'"
    )
    assert not heads.agent_is_at_the_second()
    for has_moved in (False, True):
        if has_moved:
            heads.break_agent()
            wait_for(heads.agent_is_at_the_second, TIMEOUT_SECONDS, "the agent to move")
            wait_for(lambda: all(chat(head).is_success for head in both), TIMEOUT_SECONDS, "its replicas to move")
        assert [run(head) for head in both] == [42, 42]
        assert [chat(head).text.count("word") for head in both] == [2, 2]
        assert [asyncio.run(through(head, job, port)) for head in both] == [b"HTTP/1.1 404 X"] * 2
    for name in ("embed", "chat"):
        client.remove_endpoint(name)


async def through(head: Head, job_id: int, port: int) -> bytes:
    """Return the first line of a job's answer to a request over a stream."""
    async with await open_stream(Client(head.url, head.token()), job_id, port=port) as stream:
        await stream.write(b"GET /none HTTP/1.1\r\nHost: x\r\n\r\n")
        return (await stream.read()).partition(b"\r\n")[0]


def test_other_server_cannot_ask_a_head_for_an_agent(heads: Heads) -> None:
    for header in ({}, {"Authorization": "Head x"}, {"Authorization": f"Bearer {heads.first.token()}"}):
        with (
            pytest.raises(InvalidStatus) as refused,
            connect(f"{heads.first.url}/ws/heads/1".replace("http", "ws"), additional_headers=header),
        ):
            pass
        assert refused.value.response.status_code == 403


def test_agents_pages_and_streams_move_to_the_other_head(heads: Heads) -> None:
    """A82: the head that dies is the one with the leader, the agent, the clients, and the page behind the proxy; no
    event is delivered twice, and no line of the log is lost."""
    client = heads.client()
    head, other = (heads.first, heads.second) if heads.beats_of(heads.first) else (heads.second, heads.first)
    order = f"{head.url},{other.url}"
    script = "import time\nfor i in range(60): print(i, flush=True); time.sleep(0.25)"
    with proxy(head, other) as url, LivePage(url, log_in(url, head.password)) as page:
        job = client.submit([sys.executable, "-c", script], gpus=1)
        wait_for(lambda: client.logs(job.id).text, TIMEOUT_SECONDS, "the first line")
        follower, events = Follower(order, client, job.id), Events(order, client)
        wait_for(lambda: page.state(job.id) == "running", TIMEOUT_SECONDS, "the page")
        wait_for(lambda: len(follower.text) > 4 and events.ids, TIMEOUT_SECONDS, "the streams")
        head.die()
        began = time.monotonic()
        next_job = Client(order, head.token(), tenant="default").submit(["true"], gpus=1)
        wait_for(lambda: page.state(next_job.id) == "completed", TIMEOUT_SECONDS, "the page after the move")
        moved_seconds = time.monotonic() - began
    assert moved_seconds < MOVE_SECONDS
    assert client.wait(job.id, timeout=TIMEOUT_SECONDS).attempt == 1
    follower.thread.join(TIMEOUT_SECONDS)
    assert follower.text.split() == [str(number) for number in range(60)]
    wait_for(lambda: job.id in events.completed, TIMEOUT_SECONDS, "the event of the end")
    assert len(events.ids) == len(set(events.ids))
    assert events.failures == follower.failures == []


@contextmanager
def proxy(head: Head, other: Head) -> Iterator[str]:
    """Caddy as docs/how-to/run-two-heads.md configures it, in front of both heads, the first one first."""
    text = next(block.text for block in blocks(ROOT / "docs/how-to/run-two-heads.md") if block.kind == "caddy")
    url = f"http://127.0.0.1:{free_port()}"
    for documented, here in (
        ("gpu.example.org", url),
        ("head1.example:8000", head.url.removeprefix("http://")),
        ("head2.example:8000", other.url.removeprefix("http://")),
    ):
        assert documented in text
        text = text.replace(documented, here)
    directory = head.directory / "proxy"
    directory.mkdir()
    (directory / "Caddyfile").write_text("{\n\tadmin off\n\tpersist_config off\n}\n" + text)
    with (directory / "log").open("wb") as log:
        caddy = subprocess.Popen(
            [tls_proxy.program(), "run", "--config", "Caddyfile"], cwd=directory, stdout=log, stderr=log,
            env={**os.environ, "HOME": str(directory)},
        )  # fmt: skip
    try:
        wait_for(lambda: answers(url), TIMEOUT_SECONDS, "the proxy")
        yield url
    finally:
        caddy.kill()
        caddy.wait()


class Follower:
    """Follow the output of a job in a thread."""

    def __init__(self, urls: str, client: Client, job_id: int) -> None:
        self.text, self.failures = "", list[str]()
        self._client = Client(urls, client.config.token)
        self._job_id = job_id
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for piece in self._client.follow(self._job_id):
                self.text += getattr(piece, "text", "")
        except GpuschedError as error:
            self.failures.append(str(error))


class Events:
    """Follow the events of all jobs in a thread."""

    def __init__(self, urls: str, client: Client) -> None:
        self.ids, self.completed, self.failures = list[int](), set[int](), list[str]()
        self._client = Client(urls, client.config.token)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            for event in self._client.events(0, follow=True):
                self.ids.append(event.id)
                if event.kind == "ended":
                    self.completed.add(event.job_id)
        except GpuschedError as error:
            self.failures.append(str(error))
