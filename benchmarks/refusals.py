"""The rate of submits of one tenant, alone and beside a loop of refused submits of another, turn by turn.

The loop runs in a process of its own, with a token of its own tenant, and requests more GPUs than the cluster has.
"""

import multiprocessing
import time
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Event
from statistics import median
from typing import Self
from urllib.parse import urlsplit

import psycopg

from benchmarks.report import arguments, publish
from benchmarks.submit import connected, request_of, send
from tests.system.stack import A100, Stack

IMPOSSIBLE = {"tenant": "loop", "command": ["true"], "gpu_count": 100_000}
_NODES = """
    INSERT INTO nodes_node (name, node_key, credential_prefix, credential_hash, state, intent, intent_note, pretend,
                            hostname, cpu_cores, memory_mb, labels, isolation, boot_id, agent_version, driver_version,
                            runtimes, hints, joined_at)
    SELECT 'bench-' || n, 'key-' || n, 'bench-' || n, '', 'joined', 'open', '', true, '', 128, 1048576, '{}', '{}', '',
           '', '', '{}', '[]', now() FROM generate_series(1, %s) AS n
"""
_DEVICES = """
    INSERT INTO nodes_device (node_id, uuid, index, model, memory_mb, pci_bus_id, health, held_whole, held_mb)
    SELECT n.id, n.name || '-' || i, i, %s, 81920, '', 'ok', 0, 0 FROM nodes_node n, generate_series(0, 7) AS i
"""


def main() -> None:
    options = arguments(__doc__ or "", jobs=200, connections=8, rounds=25, nodes=200, loops=1)
    with Stack() as stack:
        token = _set_up(stack, options.nodes)
        alone: list[float] = []
        beside: list[float] = []
        failures = 0
        with _Loops(stack.url, token, options.loops) as loops:
            send(stack, options.jobs, options.connections)  # warm
            began = time.perf_counter()
            for number in range(options.rounds):
                # Alternate the order, so that a growing queue or a slower machine counts for both alike.
                for is_beside in (False, True) if number % 2 else (True, False):
                    loops.run(is_beside)
                    rate, failed = _rate(stack, options.jobs, options.connections)
                    (beside if is_beside else alone).append(rate)
                    failures += failed
            seconds = time.perf_counter() - began
        refused, wrong = loops.answered()
        ratios = [with_loop / without for with_loop, without in zip(beside, alone, strict=True)]
        publish(
            {
                "alone_submits_per_second": median(alone),
                "beside_submits_per_second": median(beside),
                "beside_percent": 100 * median(ratios),
                "refused": refused,
                "seconds": seconds,
                "loops": options.loops,
                "connections": options.connections,
                "nodes": options.nodes,
                "rounds": options.rounds,
            },
            options.json,
            failures + wrong,
        )


def _rate(stack: Stack, jobs: int, connections: int) -> tuple[float, int]:
    """Return submits per second, and how many failed."""
    began = time.perf_counter()
    seconds, failed = send(stack, jobs, connections)
    return len(seconds) / (time.perf_counter() - began), failed


class _Loops:
    """Processes that each resend an impossible job as soon as it was refused, while they are running."""

    def __init__(self, url: str, token: str, number: int) -> None:
        self._is_running, self._is_over = multiprocessing.Event(), multiprocessing.Event()
        self._counts = [multiprocessing.Array("l", 2) for _ in range(number)]
        self._processes = [
            multiprocessing.Process(target=_loop, args=(url, token, self._is_running, self._is_over, counts))
            for counts in self._counts
        ]

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._is_running.set()
        for process in self._processes:
            process.join()

    def run(self, is_running: bool) -> None:
        (self._is_running.set if is_running else self._is_running.clear)()

    def answered(self) -> tuple[int, int]:
        """Return how many were refused, and how many were answered in another way."""
        return sum(counts[0] for counts in self._counts), sum(counts[1] for counts in self._counts)


def _loop(url: str, token: str, is_running: Event, is_over: Event, counts: "SynchronizedArray[int]") -> None:
    request = request_of(url, token, IMPOSSIBLE)
    with connected(urlsplit(url)) as exchange:
        while is_running.wait() and not is_over.is_set():
            status, _ = exchange(request)
            counts[0 if status in (422, 429) else 1] += 1


def _set_up(stack: Stack, nodes: int) -> str:
    """Insert nodes without agents, and create the tenant of the loop. Return a token of that tenant."""
    with psycopg.connect(stack.database_url()) as connection:
        connection.execute(_NODES, [nodes])
        connection.execute(_DEVICES, [A100])
    client = stack.client()
    client.create_tenant("loop")
    return client.create_service_token("loop", "loop").token


if __name__ == "__main__":
    main()
