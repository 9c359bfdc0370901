"""Resident memory of web, workers, database and the adviser with 10,000 waiting jobs and 200 connected nodes: right
after the submits, and once the threads that they needed have ended."""

import time
from pathlib import Path

from benchmarks.agents import PARTS
from benchmarks.report import arguments, publish
from benchmarks.submit import send
from gpusched.lib.web.request_threads import IDLE_SECONDS
from tests.system.stack import Stack

# No node has enough memory free beside the first job, so the others wait.
BODY = {"tenant": "default", "command": ["sleep", "600"], "gpu_count": 8, "gpu_memory_mb": 40000}


def main() -> None:
    options = arguments(__doc__ or "", jobs=10_000, nodes=200)
    with Stack() as stack:
        stack.fleet(options.nodes)
        _, failures = send(stack, options.jobs + options.nodes, 8, BODY)
        after_submits = sizes_after(5, stack)
        sizes = sizes_after(IDLE_SECONDS + 10, stack)
        status = stack.client().status()
        publish(
            {
                "control_plane_mib": sum(sizes.values()),
                **sizes,
                "control_plane_after_submits_mib": sum(after_submits.values()),
                "waiting_jobs": status.pending_jobs,
                "nodes": options.nodes,
            },
            options.json,
            failures + (status.pending_jobs != options.jobs),
        )


def sizes_after(seconds: float, stack: Stack) -> dict[str, float]:
    """Return the MiB of each part after a pause. An explanation starts the adviser, which ends without questions."""
    time.sleep(seconds)
    [waiting] = stack.client().list(state="pending", limit=1)
    stack.client().why(waiting.id)
    parts = {**PARTS, "adviser": "scheduling.whatif.process"}
    return {f"{part}_mib": sum(map(resident_mib, stack.pids(mark))) for part, mark in parts.items()}


def resident_mib(pid: int) -> float:
    """Return the proportional set size: a page shared by n processes counts 1/n in each, so the sum is the real use."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    main()
