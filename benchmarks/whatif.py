"""Opened rows of the queue (GET /jobs/{id}/explain) with 10,000 jobs waiting for 200 full nodes: one after the other,
and ten at once; and separate submits over 4 connections, without and with ten users who open row after row."""

import http.client
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from benchmarks.agents import cpu_seconds
from benchmarks.memory import resident_mib
from benchmarks.report import arguments, percentile, publish
from benchmarks.submit import send
from tests.system.stack import Stack
from tests.waiting import wait_for

MODELS: tuple[dict[str, object], ...] = ({}, {"gpu_memory_mb": 20000}, {"gpu_memory_mb": 40000})
CONNECTIONS = 4


def main() -> None:
    options = arguments(__doc__ or "", jobs=10_000, nodes=200, rows=20, askers=10, submits=600)
    with Stack(rate_limit_per_minute=0) as stack:
        _fill(stack, options.jobs, options.nodes)
        rows = [job.id for job in stack.client().list(state="pending", limit=500)]
        random.Random(1).shuffle(rows)
        failures = _open(stack, rows[:2])[0]  # warm
        web = cpu_seconds(stack.pids("daphne"))
        failed, alone = _open(stack, rows[2 : 2 + options.rows])
        web_alone = cpu_seconds(stack.pids("daphne")) - web
        together, failed_together = _together(stack, rows, options.askers)
        web_together = cpu_seconds(stack.pids("daphne")) - web - web_alone
        failures += failed + failed_together
        send(stack, 50, CONNECTIONS)
        alone_latencies, rate, failed = _submits(stack, options.submits)
        failures += failed
        with _Askers(stack, rows, options.askers) as askers:
            time.sleep(3)
            beside_latencies, rate_beside, failed = _submits(stack, options.submits)
            adviser_mib = sum(map(resident_mib, stack.pids("scheduling.whatif.process")))
        publish(
            {
                "row_p50_ms": percentile(alone, 50) * 1000,
                "row_p95_ms": percentile(alone, 95) * 1000,
                f"row_of_{options.askers}_at_once_p50_ms": percentile(together, 50) * 1000,
                f"row_of_{options.askers}_at_once_p95_ms": percentile(together, 95) * 1000,
                "web_cpu_ms_per_row": 1000 * web_alone / options.rows,
                f"web_cpu_ms_per_row_of_{options.askers}": 1000 * web_together / len(together),
                "submits_per_second": rate,
                "submit_p95_ms": percentile(alone_latencies, 95) * 1000,
                "submits_per_second_beside_askers": rate_beside,
                "submit_p95_ms_beside_askers": percentile(beside_latencies, 95) * 1000,
                "rows_answered_beside": len(askers.latencies),
                "adviser_mib": adviser_mib,
                "waiting_jobs": options.jobs,
                "nodes": options.nodes,
            },
            options.json,
            failures + failed + askers.failures,
        )


def _submits(stack: Stack, count: int) -> tuple[list[float], float, int]:
    """Submit this many jobs; return the seconds of each, the rate per second, and how many failed."""
    began = time.perf_counter()
    latencies, failed = send(stack, count, CONNECTIONS)
    return latencies, len(latencies) / (time.perf_counter() - began), failed


def _fill(stack: Stack, jobs: int, nodes: int) -> None:
    """Fill each node with one job for hours, and submit the waiting ones, of sixty shapes."""
    stack.fleet(nodes)
    full = {"tenant": "default", "command": ["sleep", "6000"], "gpu_count": 8, "cpu_cores": 120}
    _bulk(stack, [{**full, "max_runtime_minutes": 60 + number} for number in range(nodes)])
    wait_for(lambda: stack.client().status().running_jobs >= nodes, 120, "every node to be full")
    chance = random.Random(1)
    for first in range(0, jobs, 1000):
        _bulk(stack, [_waiting(chance) for _ in range(min(1000, jobs - first))])
    time.sleep(5)  # so that each has its reason


def _waiting(chance: random.Random) -> dict[str, object]:
    gpus = chance.choice((1, 1, 1, 1, 2, 2, 4, 8, 16))
    limit = chance.choice((None, 60, 240, 1440))
    return {
        "tenant": "default", "command": ["sleep", "600"], "gpu_count": gpus, "gang_scheduling": gpus > 8,
        "cpu_cores": 4 * gpus, "priority": chance.choice((300, 500, 500, 500, 900)), **chance.choice(MODELS),
        **({"max_runtime_minutes": limit} if limit else {}),
    }  # fmt: skip


def _bulk(stack: Stack, jobs: list[dict[str, object]]) -> None:
    status, answer = _Link(stack).send("POST", "/api/v1/jobs/bulk", json.dumps({"jobs": jobs}))
    if status != 201:
        raise RuntimeError(f"a bulk submit was answered {status}: {answer[:300]!r}")


class _Link:
    def __init__(self, stack: Stack) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(stack.url).netloc, timeout=300)
        self._headers = {"Authorization": f"Bearer {stack.token()}", "Content-Type": "application/json"}

    def send(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        self._connection.request(method, path, body, self._headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()


def _open(stack: Stack, rows: list[int]) -> tuple[int, list[float]]:
    """Return how many failed, and the seconds of each."""
    link, latencies, failures = _Link(stack), [], 0
    for job_id in rows:
        began = time.perf_counter()
        status, answer = link.send("GET", f"/api/v1/jobs/{job_id}/explain")
        latencies.append(time.perf_counter() - began)
        failures += status != 200 or not (json.loads(answer)["estimate"] or json.loads(answer)["estimate_reason"])
    return failures, latencies


def _together(stack: Stack, rows: list[int], askers: int) -> tuple[list[float], int]:
    """Open three times as many rows at once as there are askers, each of another job."""
    latencies: list[float] = []
    failures = 0
    for turn in range(3):
        with ThreadPoolExecutor(askers) as pool:
            futures = [pool.submit(_open, stack, [job_id]) for job_id in rows[turn * askers : (turn + 1) * askers]]
        failures += sum(future.result()[0] for future in futures)
        latencies += [seconds for future in futures for seconds in future.result()[1]]
    return latencies, failures


class _Askers:
    """Users who open one row after the other, until this context ends."""

    def __init__(self, stack: Stack, rows: list[int], number: int) -> None:
        self.latencies: list[float] = []
        self.failures = 0
        self._stack, self._rows, self._is_over = stack, rows, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(first, number)) for first in range(number)]

    def __enter__(self) -> "_Askers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, first: int, step: int) -> None:
        at = first
        while not self._is_over.is_set():
            failed, latencies = _open(self._stack, [self._rows[at % len(self._rows)]])
            self.failures += failed
            self.latencies += latencies
            at += step


if __name__ == "__main__":
    main()
