"""200 agents that post the readings of 8 GPUs each second: the latency of each answer, and the cost."""

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from websockets.asyncio.client import connect

from benchmarks.report import arguments, percentile, publish
from gpusched.agent.host.machine import PretendMachine
from gpusched.protocol.agent_messages import Desired, Sync
from tests.system.joining import SPEC, join
from tests.system.stack import Stack

_decode = msgspec.json.Decoder(Desired).decode


def main() -> None:
    options = arguments(__doc__ or "", nodes=200, seconds=30)
    with Stack() as stack:
        token = stack.client().join_token().token
        names = [f"node{number:03d}" for number in range(options.nodes)]
        with ThreadPoolExecutor(4) as pool:
            credentials = dict(zip(names, pool.map(lambda name: join(stack.url, token, name), names), strict=True))
        seconds, failures, cores = asyncio.run(talk(stack, credentials, options.seconds))
        online = stack.client().status().online_nodes
        publish(
            {
                "answer_p50_ms": percentile(seconds, 50) * 1000,
                "answer_p99_ms": percentile(seconds, 99) * 1000,
                "messages_per_second": len(seconds) / options.seconds,
                "control_plane_cores": sum(cores.values()),
                **{f"{part}_cores": value for part, value in cores.items()},
                "nodes": options.nodes,
            },
            options.json,
            failures + (online != options.nodes),
        )


async def talk(stack: Stack, credentials: dict[str, str], seconds: float) -> tuple[list[float], int, dict[str, float]]:
    """Post from each node once a second, at its own moment of the second; the first seconds are not counted."""
    latencies: list[float] = []
    failed = 0
    counted_from = time.perf_counter() + 5
    until = counted_from + seconds

    async def node(number: int, name: str, credential: str) -> None:
        nonlocal failed
        machine = PretendMachine(name, SPEC)
        facts = machine.facts()
        headers = {"Authorization": f"Bearer {credential}"}
        url = stack.url.replace("http", "ws", 1) + "/ws/agent/"
        async with connect(url, additional_headers=headers, compression=None) as socket:
            await asyncio.sleep(number / len(credentials))
            seq = 0
            while (now := time.perf_counter()) < until:
                seq += 1
                sync = Sync(
                    seq=seq, at="2026-01-01T00:00:00Z", boot_id=facts.boot_id, readings=machine.readings(set),
                    facts=facts if seq == 1 else None,
                )  # fmt: skip
                await socket.send(msgspec.json.encode(sync), text=True)
                while (answer := _decode(await socket.recv())).seq != seq:
                    pass
                if now > counted_from:
                    latencies.append(time.perf_counter() - now)
                    failed += answer.error is not None
                await asyncio.sleep(max(0.0, now + 1 - time.perf_counter()))

    async def costs() -> dict[str, float]:
        await asyncio.sleep(max(0.0, counted_from - time.perf_counter()))
        start = {part: cpu_seconds(stack.pids(mark)) for part, mark in PARTS.items()}
        await asyncio.sleep(seconds - 1)
        return {part: (cpu_seconds(stack.pids(mark)) - start[part]) / (seconds - 1) for part, mark in PARTS.items()}

    measuring = asyncio.create_task(costs())
    await asyncio.gather(*(node(number, *pair) for number, pair in enumerate(credentials.items())))
    return latencies, failed, await measuring


PARTS = {"web": "daphne", "worker": "worker ", "database": "postgres"}


def cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
