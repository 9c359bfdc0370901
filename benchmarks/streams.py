"""Byte streams into a job: the rate of one stream in both directions, and the agents' heartbeats beside 0 and 200 open
streams."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import psutil

from benchmarks.report import arguments, percentile, publish
from gpusched.client import AsyncClient
from gpusched.client.streams import JobStream, open_stream
from tests.system.stack import Stack, free_port
from tests.waiting import wait_for

MIB = 1 << 20
HEARTBEAT_SECONDS = 0.1
# The first byte says how a connection is served: p pours, s swallows, t trickles ten times a second.
PROGRAM = """
import socket, sys, threading, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=512)
def serve(connection):
    how = connection.recv(1)
    while how == b"p":
        connection.sendall(bytes(1 << 20))
    while how == b"t":
        connection.sendall(bytes(1024))
        time.sleep(0.1)
    size = 0
    while data := connection.recv(1 << 20):
        size += len(data)
    connection.sendall(str(size).encode())
    connection.close()
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@asynccontextmanager
async def served(client: AsyncClient, job: int, port: int, how: bytes) -> AsyncIterator[JobStream]:
    async with await open_stream(client, job, port=port) as stream:
        await stream.write(how)
        yield stream


async def down(client: AsyncClient, job: int, port: int, seconds: float) -> float:
    """Return MiB/s from the job to the client."""
    async with served(client, job, port, b"p") as stream:
        began, size = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            size += len(await stream.read())
        return size / MIB / (time.monotonic() - began)


async def up(client: AsyncClient, job: int, port: int, seconds: float) -> float:
    """Return MiB/s from the client to the job, as the job has counted them."""
    async with served(client, job, port, b"s") as stream:
        began, piece, size = time.monotonic(), bytes(1 << 18), 0
        while time.monotonic() - began < seconds:
            await stream.write(piece)
            size += len(piece)
        await stream.end()
        counted = b""
        while data := await stream.read():
            counted += data
        if int(counted) != size:
            raise RuntimeError(f"{size} bytes were sent, and {counted!r} arrived")
        return size / MIB / (time.monotonic() - began)


async def heartbeats(stack: Stack, seconds: float) -> float:
    """Return the 99th percentile of the times between two heartbeats that the server has stored, in milliseconds."""
    import psycopg

    gaps: list[float] = []
    url = (stack.data_dir / "database_url").read_text().strip()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        previous, until = None, time.monotonic() + seconds
        while time.monotonic() < until:
            row = await (await connection.execute("SELECT max(last_seen_at) FROM nodes_node")).fetchone()
            assert row is not None
            if previous is not None and row[0] != previous:
                gaps.append((row[0] - previous).total_seconds() * 1000)
            previous = row[0]
            await asyncio.sleep(0.01)
    return percentile(gaps, 99)


def cpu_seconds(pids: list[int]) -> float:
    """Return the processor time of processes: on a busy machine it says more than the rate."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


async def measure(stack: Stack, job: int, port: int, streams: int, seconds: int) -> dict[str, float | int | str]:
    async with AsyncClient(stack.url, stack.token()) as client, AsyncExitStack() as opened:
        await down(client, job, port, 1)  # warms the caches
        web, agent = stack.pids("daphne"), [stack.agents[0].pid]
        before = cpu_seconds(web), cpu_seconds(agent)
        rate = await down(client, job, port, seconds)
        gib = rate * seconds / 1024
        figures: dict[str, float | int | str] = {
            "down_mib_per_second": rate,
            "web_cpu_seconds_per_gib": (cpu_seconds(web) - before[0]) / gib,
            "agent_cpu_seconds_per_gib": (cpu_seconds(agent) - before[1]) / gib,
            "up_mib_per_second": await up(client, job, port, seconds),
            "heartbeat_p99_ms_without_streams": await heartbeats(stack, 2 * seconds),
        }
        for _ in range(streams):
            stream = await opened.enter_async_context(served(client, job, port, b"t"))
            opened.push_async_callback(_cancelled, asyncio.create_task(_drained(stream)))
        figures["heartbeat_p99_ms_with_streams"] = await heartbeats(stack, 2 * seconds)
        figures["streams"] = streams
        return figures


async def _drained(stream: JobStream) -> None:
    while await stream.read():
        pass


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main() -> None:
    options = arguments(__doc__ or "", streams=200, seconds=10, web_processes=1)
    with Stack(heartbeat_seconds=HEARTBEAT_SECONDS, web_processes=options.web_processes) as stack:
        stack.fleet(1)
        client, port = stack.client(), free_port()
        job = client.submit([sys.executable, "-u", "-c", PROGRAM, str(port)])
        wait_for(lambda: client.get(job.id).state == "running" and client.logs(job.id).text, 60, "the job to listen")
        publish(asyncio.run(measure(stack, job.id, port, options.streams, options.seconds)), options.json)


if __name__ == "__main__":
    main()
