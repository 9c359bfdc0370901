"""2,000 waiting one-GPU jobs that run `true`, and 200 nodes of 8 GPUs: until all have run, each as a real process."""

import time

import httpx

from benchmarks.agents import PARTS, cpu_seconds
from benchmarks.report import arguments, publish
from benchmarks.submit import send
from tests.system.chaos import OPEN
from tests.system.stack import Stack
from tests.waiting import wait_for


def main() -> None:
    options = arguments(__doc__ or "", jobs=2000, nodes=200, agents=2)
    body = {"tenant": "default", "command": ["true"], "gpu_count": 1, "gpu_memory_mb": 40000}
    with Stack() as stack:
        stack.fleet(options.nodes, processes=options.agents)
        with httpx.Client(base_url=f"{stack.url}/api/v1", headers={"Authorization": f"Bearer {stack.token()}"}) as http:
            # One job at a time for now, and that one sleeps, so that the queue fills before anything else starts.
            http.put("/tenants/default/quota", json={"max_concurrent_jobs": 1}).raise_for_status()
            client = stack.client()
            first = client.submit(["sleep", "600"], gpus=1)
            wait_for(lambda: client.get(first.id).state == "running", 30, "the first job")
            _, failures = send(stack, options.jobs, 8, body)
            time.sleep(3)
            used = control_plane_seconds(stack)
            began = time.time()
            http.put("/tenants/default/quota", json={"max_concurrent_jobs": None}).raise_for_status()
            wait_for(lambda: len(client.list(state=OPEN, limit=2)) == 1, 300, "all jobs to end", pause=0.1)
            seconds, used = time.time() - began, control_plane_seconds(stack) - used
            client.cancel(first.id)
            completed = len(client.list(state=("completed",), limit=options.jobs + 10))
        publish(
            {
                "jobs_per_second": options.jobs / seconds,
                "control_plane_ms_per_job": used / options.jobs * 1000,
                "seconds": seconds,
                "jobs": completed,
                "nodes": options.nodes,
            },
            options.json,
            failures + (completed != options.jobs),
        )


def control_plane_seconds(stack: Stack) -> float:
    """Return the processor time of the web process, the workers and the database so far."""
    return sum(cpu_seconds(stack.pids(mark)) for mark in PARTS.values())


if __name__ == "__main__":
    main()
