"""Arrays: the latency of a submit, the drain rate beside as many jobs, and the cost of waiting ones in a cycle."""

import time
from typing import Any

import httpx

from benchmarks.report import arguments, percentile, publish
from gpusched.client import Client
from tests.system.chaos import OPEN
from tests.system.stack import Stack
from tests.waiting import wait_for

BODY = {"tenant": "default", "command": ["true"], "gpu_count": 1}


def main() -> None:
    options = arguments(__doc__ or "", elements=10_000, nodes=200, agents=2, waiting=100, submits=30)
    with Stack() as stack:
        stack.fleet(options.nodes, processes=options.agents)
        headers = {"Authorization": f"Bearer {stack.token()}"}
        with httpx.Client(base_url=f"{stack.url}/api/v1", headers=headers, timeout=120) as http:
            client = stack.client()
            block(http, client)
            figures: dict[str, float] = {"cycle_empty_ms": cycle_ms(client)}
            for count in (10_000, 100_000):
                figures[f"accept_{count}_p50_ms"] = accepted(http, client, count, options.submits)
            for name, body in (("jobs", BODY), ("arrays", {**BODY, "array": {"count": 100_000}})):
                ids = [
                    http.post("/jobs", json=body).raise_for_status().json()["job_id"] for _ in range(options.waiting)
                ]
                figures[f"cycle_{options.waiting}_{name}_ms"] = cycle_ms(client)
                for job_id in ids:
                    client.cancel(job_id)
            drains = {"array": [{**BODY, "array": {"count": options.elements}}], "bulk": [BODY] * options.elements}
            failures = 0
            for name, jobs in drains.items():
                figures[f"drain_{name}_jobs_per_second"], failed = drained(http, client, jobs, options.elements)
                failures += failed
        publish({**figures, "elements": options.elements, "nodes": options.nodes}, options.json, failures)


def block(http: httpx.Client, client: Client) -> None:
    """Limit the tenant to one running job, and let that one sleep."""
    http.put("/tenants/default/quota", json={"max_concurrent_jobs": 1}).raise_for_status()
    if not client.list(state="running", name="sleeper"):
        first = client.submit(["sleep", "3600"], name="sleeper")
        wait_for(lambda: client.get(first.id).state == "running", 60, "the first job")


def accepted(http: httpx.Client, client: Client, count: int, submits: int) -> float:
    """Return the median latency of so many submits in milliseconds, as the client sees it."""
    latencies = []
    for _ in range(submits):
        began = time.perf_counter()
        answer = http.post("/jobs", json={**BODY, "array": {"count": count}}).raise_for_status()
        latencies.append(time.perf_counter() - began)
        client.cancel(answer.json()["job_id"])
    return percentile(latencies, 50) * 1000


def cycle_ms(client: Client) -> float:
    """Return the median of the cycles of some seconds, once the cluster is quiet."""
    time.sleep(5)
    times: list[float] = []
    for _ in range(20):
        times.append(client.status().scheduler.last_cycle_ms or 0.0)
        time.sleep(0.5)
    return percentile(times, 50)


def drained(http: httpx.Client, client: Client, jobs: list[dict[str, Any]], number: int) -> tuple[float, int]:
    """Return elements per second from the moment that they may start, and how many did not complete."""
    block(http, client)
    ids: list[int] = []
    for at in range(0, len(jobs), 1000):
        ids += http.post("/jobs/bulk", json={"jobs": jobs[at : at + 1000]}).raise_for_status().json()["job_ids"]
    time.sleep(3)
    completed_before = client.status().jobs_by_state.get("completed", 0)
    began = time.time()
    http.put("/tenants/default/quota", json={"max_concurrent_jobs": None}).raise_for_status()
    wait_for(lambda: len(client.list(state=OPEN, limit=2)) == 1, 600, "all to end", pause=0.2)
    seconds = time.time() - began
    return number / seconds, number - (client.status().jobs_by_state.get("completed", 0) - completed_before)


if __name__ == "__main__":
    main()
