"""Bulk submits: jobs per second in requests of 1,000, each durable when answered, over HTTP and then in one process.

The workers are stopped meanwhile: benchmarks/cycle.py measures the cycles of a growing queue."""

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from benchmarks.report import arguments, percentile, publish
from gpusched.agent.processes import signal_all
from tests.system.stack import Stack

DETAIL = {"tenant": "default", "command": ["python", "train.py"], "gpu_count": 1, "gpu_memory_mb": 40000}


def main() -> None:
    options = arguments(__doc__ or "", jobs=30_000, each=1000, connections=4, threads=2)
    maximum = 10_000_000
    with Stack(max_queue_size=maximum, max_queued_jobs_per_tenant=maximum, max_queued_jobs_per_user=maximum) as stack:
        requests = max(1, options.jobs // options.each)
        body = json.dumps({"jobs": _jobs(options.each)}).encode()
        signal_all(stack.pids("manage.py worker"), signal.SIGSTOP)
        over_http = _over_http(stack, body)
        _all(over_http, 4, options.connections)  # warm
        wall, latencies = _all(over_http, requests, options.connections)
        in_process = _in_process(stack, _jobs(options.each))
        _all(in_process, 4, options.threads)
        wall_inside, _ = _all(in_process, requests, options.threads)
        expected = (2 * requests + 8) * options.each
        total_jobs = stack.client().status().total_jobs
        signal_all(stack.pids("manage.py worker"), signal.SIGCONT)
        publish(
            {
                "http_jobs_per_second": requests * options.each / wall,
                "http_request_p50_ms": percentile(latencies, 50) * 1000,
                "http_request_p95_ms": percentile(latencies, 95) * 1000,
                "in_process_jobs_per_second": requests * options.each / wall_inside,
                "jobs": total_jobs,
                "each": options.each,
                "connections": options.connections,
            },
            options.json,
            abs(expected - total_jobs),
        )


def _jobs(number: int) -> list[dict[str, object]]:
    """Return the jobs of a sweep, which differ only in their arguments and environment."""
    return [
        {**DETAIL, "name": f"trial {seed}", "args": ["--seed", str(seed)], "environment": {"SEED": str(seed)}}
        for seed in range(number)
    ]


def _over_http(stack: Stack, body: bytes) -> Callable[[], Callable[[], None]]:
    token, address = stack.token(), urlsplit(stack.url).netloc
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def connect() -> Callable[[], None]:
        connection = http.client.HTTPConnection(address)

        def send() -> None:
            connection.request("POST", "/api/v1/jobs/bulk", body, headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 201:
                raise RuntimeError(f"a bulk submit was answered {answer.status}")

        return send

    return connect


def _in_process(stack: Stack, jobs: list[dict[str, object]]) -> Callable[[], Callable[[], None]]:
    """Return the service behind the route, in this process on the same database: no HTTP, no JSON."""
    os.environ.update(stack.environment(), DJANGO_SETTINGS_MODULE="gpusched.settings")
    import django

    django.setup()
    import msgspec
    from django.contrib.auth.models import User

    from gpusched.protocol.job_request import JobRequest
    from jobs.submit.bulk import submit_all
    from tenants.auth.identity import identity_of_user

    identity = identity_of_user(User.objects.get(username="admin"))
    requests = msgspec.convert(jobs, list[JobRequest])

    def connect() -> Callable[[], None]:
        def send() -> None:
            submit_all(requests, identity)

        return send

    return connect


def _all(connect: Callable[[], Callable[[], None]], requests: int, at_once: int) -> tuple[float, list[float]]:
    """Return the seconds of all the requests together, and of each."""
    latencies: list[float] = []

    def work(share: int) -> None:
        send = connect()
        for _ in range(share):
            began = time.perf_counter()
            send()
            latencies.append(time.perf_counter() - began)

    shares = [requests // at_once + (number < requests % at_once) for number in range(at_once)]
    threads = [threading.Thread(target=work, args=(share,)) for share in shares]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began, latencies


if __name__ == "__main__":
    main()
