"""Opened rows of the queue (GET /jobs/{id}/explain) with 10,000 jobs waiting for 200 full nodes: one after the other,
and ten at once; and separate submits over 4 connections, without and with ten people who open row after row."""

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
from benchmarks.stack import Stack, wait_for
from benchmarks.submit import send

MODELS: tuple[dict[str, object], ...] = ({}, {"gpu_memory_mb": 20000}, {"gpu_memory_mb": 40000})
CONNECTIONS = 4


def main() -> None:
    options = arguments(__doc__ or "", jobs=10_000, nodes=200, rows=20, askers=10, submits=600)
    with Stack(rate_limit_per_minute=0) as stack:
        _fill(stack, options.jobs, options.nodes)
        rows = [job.id for job in stack.client().list(state="pending", limit=500)]
        random.Random(1).shuffle(rows)
        failures, _ = _open(stack, rows[:2])  # warm
        web = cpu_seconds(stack.pids("daphne"))
        failed, alone = _open(stack, rows[2 : 2 + options.rows])
        web_alone = cpu_seconds(stack.pids("daphne")) - web
        failures += failed
        together, failed = _together(stack, rows, options.askers)
        web_together = cpu_seconds(stack.pids("daphne")) - web - web_alone
        failures += failed
        send(stack, 50, CONNECTIONS)
        began = time.perf_counter()
        before, failed = send(stack, options.submits, CONNECTIONS)
        wall = time.perf_counter() - began
        failures += failed
        with _Askers(stack, rows, options.askers) as askers:
            time.sleep(3)
            began = time.perf_counter()
            beside, failed = send(stack, options.submits, CONNECTIONS)
            wall_beside = time.perf_counter() - began
            adviser_mib = sum(map(resident_mib, stack.pids("scheduling.whatif.process")))
        publish(
            {
                "row_p50_ms": percentile(alone, 50) * 1000,
                "row_p95_ms": percentile(alone, 95) * 1000,
                f"row_of_{options.askers}_at_once_p50_ms": percentile(together, 50) * 1000,
                f"row_of_{options.askers}_at_once_p95_ms": percentile(together, 95) * 1000,
                "web_cpu_ms_per_row": 1000 * web_alone / options.rows,
                f"web_cpu_ms_per_row_of_{options.askers}": 1000 * web_together / len(together),
                "submits_per_second": len(before) / wall,
                "submit_p95_ms": percentile(before, 95) * 1000,
                "submits_per_second_beside_askers": len(beside) / wall_beside,
                "submit_p95_ms_beside_askers": percentile(beside, 95) * 1000,
                "rows_answered_beside": len(askers.taken),
                "adviser_mib": adviser_mib,
                "waiting_jobs": options.jobs,
                "nodes": options.nodes,
            },
            options.json,
            failures + failed + askers.failures,
        )


def _fill(stack: Stack, jobs: int, nodes: int) -> None:
    """Each node with one job that takes all of it for hours, and then those that wait, of sixty shapes."""
    stack.fleet(nodes)
    full = {"tenant": "default", "command": ["sleep", "6000"], "gpu_count": 8, "cpu_cores": 120}
    _bulk(stack, [{**full, "max_runtime_minutes": 60 + number} for number in range(nodes)])
    wait_for(lambda: stack.client().status().running_jobs >= nodes, 120, "every node to be full")
    chance = random.Random(1)
    for first in range(0, jobs, 1000):
        _bulk(stack, [_waiting(chance) for _ in range(min(1000, jobs - first))])
    time.sleep(5)  # each has its reason by now


def _waiting(chance: random.Random) -> dict[str, object]:
    gpus = chance.choice((1, 1, 1, 1, 2, 2, 4, 8, 16))
    limit = chance.choice((None, 60, 240, 1440))
    return {
        "tenant": "default", "command": ["sleep", "600"], "gpu_count": gpus, "gang_scheduling": gpus > 8,
        "cpu_cores": 4 * gpus, "priority": chance.choice((300, 500, 500, 500, 900)), **chance.choice(MODELS),
        **({"max_runtime_minutes": limit} if limit else {}),
    }  # fmt: skip


def _bulk(stack: Stack, jobs: list[dict[str, object]]) -> None:
    status, said = _Link(stack).send("POST", "/api/v1/jobs/bulk", json.dumps({"jobs": jobs}))
    if status != 201:
        raise RuntimeError(f"a bulk submit was answered {status}: {said[:300]!r}")


class _Link:
    def __init__(self, stack: Stack) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(stack.url).netloc, timeout=300)
        self._headers = {"Authorization": f"Bearer {stack.token()}", "Content-Type": "application/json"}

    def send(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        self._connection.request(method, path, body, self._headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()


def _open(stack: Stack, rows: list[int]) -> tuple[int, list[float]]:
    """How many failed, and the seconds of each."""
    link, taken, failures = _Link(stack), [], 0
    for job_id in rows:
        began = time.perf_counter()
        status, said = link.send("GET", f"/api/v1/jobs/{job_id}/explain")
        taken.append(time.perf_counter() - began)
        failures += status != 200 or not (json.loads(said)["estimate"] or json.loads(said)["estimate_reason"])
    return failures, taken


def _together(stack: Stack, rows: list[int], askers: int) -> tuple[list[float], int]:
    """Three times so many at once, each about another job."""
    taken: list[float] = []
    failures = 0
    for turn in range(3):
        with ThreadPoolExecutor(askers) as pool:
            asked = [pool.submit(_open, stack, [job_id]) for job_id in rows[turn * askers : (turn + 1) * askers]]
        failures += sum(one.result()[0] for one in asked)
        taken += [seconds for one in asked for seconds in one.result()[1]]
    return taken, failures


class _Askers:
    """So many people who open one row after the other, as long as this lasts."""

    def __init__(self, stack: Stack, rows: list[int], number: int) -> None:
        self.taken: list[float] = []
        self.failures = 0
        self._stack, self._rows, self._is_over = stack, rows, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(one, number)) for one in range(number)]

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
            failed, taken = _open(self._stack, [self._rows[at % len(self._rows)]])
            self.failures += failed
            self.taken += taken
            at += step


if __name__ == "__main__":
    main()
