"""10,000 separate waiting jobs, and 1,600 GPUs usable at once: until 1,600 processes run on agents of 200 nodes."""

import time
from datetime import datetime

import httpx

from benchmarks.report import arguments, publish
from benchmarks.submit import send
from tests.system.stack import Stack
from tests.waiting import wait_for

BODY = {"tenant": "default", "command": ["sleep", "300"], "gpu_count": 1, "gpu_memory_mb": 40000}


def main() -> None:
    options = arguments(__doc__ or "", jobs=10_000, nodes=200, agents=2)
    with Stack() as stack:
        stack.fleet(options.nodes, processes=options.agents)
        gpus = options.nodes * 8
        with httpx.Client(base_url=f"{stack.url}/api/v1", headers={"Authorization": f"Bearer {stack.token()}"}) as http:
            # One job at a time for now, so that the queue fills before the others start.
            http.put("/tenants/default/quota", json={"max_concurrent_jobs": 1}).raise_for_status()
            _, failures = send(stack, options.jobs, 8, BODY)
            wait_for(lambda: stack.client().status().running_jobs == 1, 30, "the first job")
            time.sleep(3)
            began = time.time()
            http.put("/tenants/default/quota", json={"max_concurrent_jobs": None}).raise_for_status()
            wait_for(lambda: stack.client().status().running_jobs == gpus, 120, f"{gpus} running jobs")
            running = time.time() - began
            cycles = http.get("/scheduling/cycles?limit=200").json()["items"]
        placing = [cycle for cycle in cycles if cycle["placed"] and _start(cycle) > began]
        decided = max(_start(cycle) + _cycle_seconds(cycle) for cycle in placing) - began
        placed = sum(cycle["placed"] for cycle in placing)
        publish(
            {
                "seconds_to_1600_running": running,
                "seconds_to_decided_and_committed": decided,
                "cycles": len(placing),
                "plan_ms": sum(cycle["plan_ms"] for cycle in placing),
                "snapshot_ms": sum(cycle["snapshot_ms"] for cycle in placing),
                "commit_ms": sum(cycle["commit_ms"] for cycle in placing),
                "waiting_jobs": options.jobs,
                "started_jobs": placed,
            },
            options.json,
            failures + (placed != gpus - 1),
        )


def _start(cycle: dict[str, str]) -> float:
    return datetime.fromisoformat(cycle["started_at"]).timestamp()


def _cycle_seconds(cycle: dict[str, float]) -> float:
    return sum(cycle[f"{phase}_ms"] for phase in ("sweep", "snapshot", "plan", "commit")) / 1000


if __name__ == "__main__":
    main()
