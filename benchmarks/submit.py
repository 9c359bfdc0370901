"""Single submits over HTTP: separate POST /jobs, each durable when answered, over 8 connections."""

import http.client
import json
import sys
import threading
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from benchmarks.report import arguments, percentile, publish
from benchmarks.stack import Stack

BODY = {"tenant": "default", "command": ["python", "train.py"], "gpu_count": 1, "gpu_memory_mb": 40000}


def main() -> None:
    options = arguments(__doc__ or "", jobs=3000, connections=8)
    with Stack() as stack:
        send(stack, 200, options.connections)  # warm
        began = time.perf_counter()
        seconds, failures = send(stack, options.jobs, options.connections)
        wall = time.perf_counter() - began
        total = stack.client().status().total_jobs
        if total != options.jobs + 200:
            failures += 1
        publish(
            {
                "submits_per_second": len(seconds) / wall,
                "submit_p50_ms": percentile(seconds, 50) * 1000,
                "submit_p95_ms": percentile(seconds, 95) * 1000,
                "jobs": options.jobs,
                "connections": options.connections,
            },
            options.json,
            failures,
        )


def send(stack: Stack, jobs: int, connections: int, body: Mapping[str, object] = BODY) -> tuple[list[float], int]:
    """Submits over kept connections; gives the seconds of each and how many failed."""
    taken: list[float] = []
    failed: list[str] = []
    token, address = stack.token(), urlsplit(stack.url).netloc

    def work(share: int) -> None:
        connection = http.client.HTTPConnection(address)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        for _ in range(share):
            began = time.perf_counter()
            try:
                connection.request("POST", "/api/v1/jobs", json.dumps(body), headers)
                answer = connection.getresponse()
                said = answer.read()
            except (OSError, http.client.HTTPException) as error:
                failed.append(repr(error))
                connection.close()
                continue
            taken.append(time.perf_counter() - began)
            if answer.status != 201:
                failed.append(f"{answer.status} {said[:200]!r}")

    shares = [jobs // connections + (number < jobs % connections) for number in range(connections)]
    threads = [threading.Thread(target=work, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text in sorted(set(failed)):
        print(f"  failed {failed.count(text)} times: {text}", file=sys.stderr)
    return taken, len(failed)


if __name__ == "__main__":
    main()
