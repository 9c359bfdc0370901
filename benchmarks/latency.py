"""From the submit to the process: single jobs on an idle cluster of 200 nodes, by the clock of the job itself."""

import time

from benchmarks.report import arguments, percentile, publish
from tests.system.stack import Stack
from tests.waiting import wait_for


def main() -> None:
    options = arguments(__doc__ or "", jobs=100, nodes=200)
    with Stack() as stack:
        stack.fleet(options.nodes)
        client = stack.client()
        seconds: list[float] = []
        failures = 0
        for number in range(options.jobs + 5):
            began = time.time()
            # The job prints the time at which it runs: the latency ends with its first instruction.
            job = client.submit(["date", "+%s.%N"], gpus=1)
            job_run = client.wait(job.id, timeout=60)
            # The end of a job may be known a moment before its output.
            wait_for(lambda: client.logs(job.id).data, 10, "the output")  # noqa: B023
            text = client.logs(job.id).data
            if job_run.exit_code != 0 or not text:
                failures += 1
            elif number >= 5:  # the first warm the caches
                seconds.append(float(text) - began)
        publish(
            {
                "submit_to_process_p50_ms": percentile(seconds, 50) * 1000,
                "submit_to_process_p95_ms": percentile(seconds, 95) * 1000,
                "submit_to_process_max_ms": max(seconds) * 1000,
                "jobs": len(seconds),
                "nodes": options.nodes,
            },
            options.json,
            failures,
        )


if __name__ == "__main__":
    main()
