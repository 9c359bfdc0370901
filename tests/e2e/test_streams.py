"""Streams into jobs over real processes: two web processes, an agent, and the command line (A69)."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import httpx
import psutil
import pytest

from gpusched.client import AsyncClient, GpuschedError, NotPermitted
from gpusched.client.streams import JobStream, open_stream
from tests.system.stack import ROOT, Stack, free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
MIB = 1 << 20
# The first byte of a connection says how it is served: p pours without an end, s reads nothing, e echoes.
PROGRAM = """
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
def serve(connection):
    how = connection.recv(1)
    while how == b"p":
        connection.sendall(bytes(1 << 18))
    if how == b"s":
        threading.Event().wait()
    while data := connection.recv(1 << 16):
        connection.sendall(data)
    connection.close()
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(web_processes=2, heartbeat_seconds=0.5) as running:
        running.fleet(1)
        yield running


def serving(stack: Stack, *command: str) -> int:
    """Run a job, and return its id once it has printed something."""
    client = stack.client()
    job = client.submit([sys.executable, "-u", *command])
    wait_for(lambda: client.get(job.id).state == "running" and client.logs(job.id).text, 60, "the job to listen")
    return int(job.id)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def started(client: AsyncClient, job: int, port: int, how: bytes) -> JobStream:
    stream = await open_stream(client, job, port=port)
    await stream.write(how)
    return stream


async def ends(stream: JobStream) -> GpuschedError:
    """Use the stream until it breaks, and return why. A program that is killed first ends its direction."""
    try:
        while True:
            if not await stream.read():
                await stream.write(b"x")
                await asyncio.sleep(0.05)
    except GpuschedError as error:
        return error


def test_forward_makes_a_port_of_a_job_local(stack: Stack) -> None:
    """A69: several connections at once, through whichever web process takes them."""
    port, local = free_port(), free_port()
    command = "import os, sys, http.server as h; print('up', flush=True); h.test(h.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind='127.0.0.1')"
    job = serving(stack, "-c", f"import os; os.chdir({str(ROOT / 'docs')!r}); {command}", str(port))
    environment = {**os.environ, "GPUSCHED_URL": stack.url, "GPUSCHED_TOKEN": stack.token()}
    forward = subprocess.Popen(
        [sys.executable, "-m", "gpusched.cli.main", "forward", str(job), f"{local}:{port}"], env=environment,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert forward.stderr is not None
        assert f"127.0.0.1:{local} is {port} of job {job}" in forward.stderr.readline()
        url, text = f"http://127.0.0.1:{local}/rest.md", (ROOT / "docs/rest.md").read_text()
        wait_for(lambda: httpx.get(url, timeout=30).text == text, 30, "the file")
        for _ in range(5):
            assert httpx.get(url, timeout=30).text == text
        stack.client().cancel(job)
        # The program ends before the job is final, so the first connection that fails need not end the command.
        wait_for(lambda: not answers(url) and forward.poll() is not None, 30, "the end of the forwarding")
        assert forward.returncode == 5, "wrong state"
        assert "job" in forward.stderr.read()
    finally:
        forward.kill()
        forward.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=30).is_success
    except httpx.HTTPError:
        return False


def test_slow_readers_stop_only_their_own_programs(stack: Stack) -> None:
    """A69: 20 clients that read nothing, and 20 programs that read nothing, fill no memory of server or agent; another
    stream and the heartbeats go on."""
    port = free_port()
    job = serving(stack, "-c", PROGRAM, str(port))
    processes = [psutil.Process(pid) for pid in (*stack.pids("daphne"), stack.agents[0].pid)]

    async def work() -> None:
        async with AsyncClient(stack.url, stack.token()) as client:
            before = [process.memory_info().rss for process in processes]
            pouring = [await started(client, job, port, b"p") for _ in range(20)]
            swallowing = [await started(client, job, port, b"s") for _ in range(20)]
            lively = await started(client, job, port, b"e")
            writing = [asyncio.create_task(stream.write(bytes(64 * MIB))) for stream in swallowing]
            seen = last_seen(stack)
            for _ in range(30):
                await asyncio.wait_for(lively.write(bytes(100_000)), 30)
                size = 0
                while size < 100_000:
                    size += len(await asyncio.wait_for(lively.read(), 30))
            await asyncio.to_thread(wait_for, lambda: last_seen(stack) > seen, 10, "another heartbeat")
            growth = [process.memory_info().rss - old for process, old in zip(processes, before, strict=True)]
            assert max(growth) < 40 * 1 * MIB + 20 * MIB, growth
            assert not any(task.done() for task in writing)
            for task in writing:
                task.cancel()
            await asyncio.gather(*(stream.close() for stream in (*pouring, *swallowing, lively)))

    run(work())
    stack.client().cancel(job)


def last_seen(stack: Stack) -> str:
    return str(stack.client().nodes()[0].last_seen_at)


def test_stream_closes_soon_after_its_token_is_revoked_or_its_job_ends(stack: Stack) -> None:
    """A69: within 2 s, on a machine with nothing else to do; here three times as long is allowed."""
    port = free_port()
    job = serving(stack, "-c", PROGRAM, str(port))
    mine = stack.client()

    async def work() -> None:
        token = mine.create_token("stream", scopes=["read", "write"])
        async with AsyncClient(stack.url, token.token) as limited, AsyncClient(stack.url, stack.token()) as client:
            async with (
                await started(limited, job, port, b"e") as first,
                await started(client, job, port, b"e") as second,
            ):
                for change, stream in (
                    (lambda: revoke(stack, token.id), first),
                    (lambda: mine.cancel(job), second),
                ):
                    await asyncio.to_thread(change)
                    began = time.monotonic()
                    error = await asyncio.wait_for(ends(stream), 30)
                    assert time.monotonic() - began < 6
                    assert isinstance(error, NotPermitted) == (stream is first), error

    run(work())


def revoke(stack: Stack, token_id: int) -> None:
    headers = {"Authorization": f"Bearer {stack.token()}"}
    httpx.delete(f"{stack.url}/api/v1/tokens/{token_id}", headers=headers, timeout=60).raise_for_status()


def test_stream_ends_with_a_reason_when_a_process_in_between_is_killed(stack: Stack) -> None:
    """A69: the web processes, of which one holds the agent and each has clients, and then the agent."""
    port = free_port()
    job = serving(stack, "-c", PROGRAM, str(port))

    async def work() -> None:
        for kill in (lambda: stack.kill("daphne"), lambda: os.kill(stack.agents[0].pid, signal.SIGKILL)):
            async with AsyncClient(stack.url, stack.token()) as client:
                streams = [await opened_again(client, job, port) for _ in range(4)]
                await asyncio.to_thread(kill)
                for stream in streams:
                    error = await asyncio.wait_for(ends(stream), 30)
                    assert error.exit_code == 8, error
                    await stream.close()

    run(work())


async def opened_again(client: AsyncClient, job: int, port: int) -> JobStream:
    """Open a stream once the agent is connected, as it may not be after a web process has died."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await started(client, job, port, b"e")
            except GpuschedError:
                await asyncio.sleep(0.1)
