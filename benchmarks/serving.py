"""Inference requests: completed requests a second of one replica, 16 clients with and without batching, submits a
second, lone requests, the first token of streams, and the rate that a token bucket admits.

A replica takes 2 ms and 0.1 ms for each request of a batch, and runs as a real job of a real agent. Everything shares
this machine: web process, database, agent, replica and clients. `--only` selects one group of figures by its number:
1 completed, 2 batching, 3 submits, 4 lone, 5 first token, 6 token bucket."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import psutil

from benchmarks.bucket_rate import bucket_rate
from benchmarks.first_token import first_token
from benchmarks.report import arguments, percentile, publish
from benchmarks.submit import connected, request_of, send
from tests.system.stack import ROOT, Stack
from tests.waiting import wait_for

Figures = dict[str, float | int | str]
REPLICA = """
import time
from gpusched.serve import serve

def work(requests):
    time.sleep(0.002 + 0.0001 * len(requests))
    return requests

serve(work)
"""
INPUT = {"text": "the quick brown fox"}
BULK = 1000


def main() -> None:
    options = arguments(
        __doc__ or "", requests=20_000, submits=2000, lone=500, seconds=15, streams=200, web_processes=1, only=0
    )
    groups: dict[int, Callable[[Stack], tuple[Figures, int]]] = {
        1: lambda stack: completed(stack, options.requests),
        2: lambda stack: batching(stack, options.seconds),
        4: lambda stack: lone(stack, options.lone),
        5: lambda stack: first_token(stack, options.lone // 2, options.streams),
        3: lambda stack: submits(stack, options.submits),  # last: it takes all GPUs
    }
    figures: Figures = {}
    failed = 0
    with Stack(web_processes=options.web_processes) as stack:
        stack.fleet(1)
        for number, measure in groups.items():
            if options.only in (0, number):
                measured, failures = measure(stack)
                figures |= measured
                failed += failures
    if options.only in (0, 6):
        measured, failures = bucket_rate(options.seconds)
        figures |= measured
        failed += failures
    publish(figures, options.json, failed)


def endpoint(stack: Stack, name: str, **options: object) -> None:
    """Create an endpoint, with a warm replica if it may have one."""
    template = {"command": [sys.executable, "-c", REPLICA], "gpu_count": 1}
    fields = {"min_replicas": 1, "max_queue": 1_000_000, "timeout_seconds": 3600, "idle_seconds": 3600, **options}
    with stack.client() as client:
        client.create_endpoint(name, template, **fields)  # type: ignore[arg-type]
        if fields["min_replicas"]:
            wait_for(lambda: client.endpoint(name).warm, 60, f"a warm replica of {name}")
            list(client.map(name, [INPUT] * 200))  # warms the caches


def remove(stack: Stack, name: str) -> None:
    with stack.client() as client:
        client.remove_endpoint(name, with_queue=True)


def completed(stack: Stack, requests: int) -> tuple[Figures, int]:
    """Submit inputs by the SDK in requests of 1,000 and receive their results, in batches of 32."""
    endpoint(stack, "batches", max_batch=32)
    with stack.client() as client:
        before, began = cpu_seconds(stack), time.perf_counter()
        results = list(client.map("batches", (INPUT for _ in range(requests))))
        wall, used = time.perf_counter() - began, cpu_seconds(stack)
    remove(stack, "batches")
    figures: Figures = {"completed_per_second": requests / wall}
    figures |= {f"{part}_cpu_us_per_completed": 1e6 * (used[part] - before[part]) / requests for part in used}
    return figures, requests - sum(result == INPUT for result in results)


def batching(stack: Stack, seconds: int) -> tuple[Figures, int]:
    """Let 16 clients send one request after the other and wait for each result, without and with batches. They are
    those of wrk if it is installed: locust takes as much of the two processors as PostgreSQL."""
    has_wrk = shutil.which("wrk") is not None
    load = wrk if has_wrk else locust
    rates: dict[int, tuple[float, float]] = {}
    failures = 0
    for max_batch in (1, 16):
        name = f"up-to-{max_batch}"
        endpoint(stack, name, max_batch=max_batch)
        rate, p95, failed = load(stack, name, 16, seconds)
        rates[max_batch] = rate, p95
        failures += failed
        remove(stack, name)
    figures: Figures = {
        "batching_throughput_ratio": rates[16][0] / rates[1][0],
        "batching_p95_ratio": rates[16][1] / rates[1][1],
        "unbatched_per_second": rates[1][0],
        "batched_per_second": rates[16][0],
        "unbatched_p95_ms": rates[1][1],
        "batched_p95_ms": rates[16][1],
        "load_generator": "wrk" if has_wrk else "locust",
    }
    return figures, failures


def wrk(stack: Stack, name: str, users: int, seconds: int) -> tuple[float, float, int]:
    """Return what `locust` returns."""
    variables = {"BODY": json.dumps({"endpoint": name, "input": INPUT}), "TOKEN": stack.token()}
    command = [
        "wrk", "--threads", "1", "--connections", str(users), "--duration", f"{seconds}s", "--timeout", "30s",
        "--script", str(ROOT / "benchmarks/tasks.lua"), f"{stack.url}/api/v1/tasks?wait=30",
    ]  # fmt: skip
    result = subprocess.run(command, env={**os.environ, **variables}, check=True, stdout=subprocess.PIPE, text=True)
    row = json.loads(result.stdout.splitlines()[-1])
    return row["requests"] / row["seconds"], row["p95_ms"], row["failures"]


def locust(stack: Stack, name: str, users: int, seconds: int) -> tuple[float, float, int]:
    """Return requests a second, the 95th percentile of their times in milliseconds, and how many failed."""
    variables = {"ENDPOINT": name, "TOKEN": stack.token(), "TASK_INPUT": json.dumps(INPUT)}
    with tempfile.TemporaryDirectory(prefix="gpusched-locust-") as folder:
        command = [
            sys.executable, "-m", "locust", "--locustfile", str(ROOT / "benchmarks/locustfile.py"), "--headless",
            "--users", str(users), "--spawn-rate", str(users), "--run-time", f"{seconds}s", "--reset-stats",
            "--host", stack.url, "--json", "--only-summary",
        ]  # fmt: skip
        result = subprocess.run(
            command, env={**os.environ, **variables}, cwd=folder, check=False, stdout=subprocess.PIPE, text=True
        )
    [row] = json.loads(result.stdout)
    times = sorted((float(ms), count) for ms, count in row["response_times"].items())
    rank, seen, p95 = 0.95 * row["num_requests"], 0, 0.0
    for ms, count in times:
        seen += count
        if seen >= rank:
            p95 = ms
            break
    span = row["last_request_timestamp"] - row["start_time"]
    return row["num_requests"] / span, p95, row["num_failures"]


def submits(stack: Stack, number: int) -> tuple[Figures, int]:
    """Submit to an endpoint without replicas: single requests over 8 connections, then requests of 1,000 over 2."""
    with stack.client() as client:
        client.submit(["sleep", "3600"], gpus=8)  # leaves no GPU to a replica
    endpoint(stack, "queue", min_replicas=0)
    single = {"endpoint": "queue", "input": INPUT}
    bulk = {"endpoint": "queue", "inputs": [INPUT] * BULK}
    failures = send(stack, 100, 8, single, "tasks")[1]
    wall, failed = _timed(lambda: send(stack, number, 8, single, "tasks"))
    failures += failed + send(stack, 4, 2, bulk, "tasks")[1]
    bulks = max(10, number // 20)
    bulk_wall, failed = _timed(lambda: send(stack, bulks, 2, bulk, "tasks"))
    failures += failed
    queued = stack.client().endpoint("queue").queued
    remove(stack, "queue")
    expected = 100 + number + (4 + bulks) * BULK
    figures: Figures = {"submits_per_second": number / wall, "bulk_per_second": bulks * BULK / bulk_wall}
    return figures, failures + abs(expected - queued)


def _timed(work: Callable[[], tuple[list[float], int]]) -> tuple[float, int]:
    began = time.perf_counter()
    _, failed = work()
    return time.perf_counter() - began, failed


def lone(stack: Stack, number: int) -> tuple[Figures, int]:
    """Send one request after the other, each of which waits for its result, over one connection."""
    endpoint(stack, "lone")
    body = {"endpoint": "lone", "input": None}
    request = request_of(stack.url, stack.token(), body, "tasks?wait=30")
    seconds: list[float] = []
    failures = 0
    with connected(urlsplit(stack.url)) as exchange:
        for _ in range(number):
            began = time.perf_counter()
            status, answer = exchange(request)
            seconds.append(time.perf_counter() - began)
            failures += status != 201 or json.loads(answer)["items"][0]["state"] != "completed"
    remove(stack, "lone")
    percentiles = {f"lone_p{percent}_ms": percentile(seconds, percent) * 1000 for percent in (50, 99)}
    return dict(percentiles), failures


def cpu_seconds(stack: Stack) -> dict[str, float]:
    """Return the processor time of each part. On a busy machine it is more reliable than the rate."""
    parts = {"web": stack.pids("daphne"), "database": stack.pids("postgres"), "agent": [stack.agents[0].pid]}
    parts["client"] = [os.getpid()]
    return {name: sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids) for name, pids in parts.items()}


if __name__ == "__main__":
    main()
