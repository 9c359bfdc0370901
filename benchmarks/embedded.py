"""From `gpusched.local` to a usable client with an online node, to the end of a first job, and from the end of the
block until nothing is left."""

import time

import gpusched
from benchmarks.report import arguments, percentile, publish


def main() -> None:
    options = arguments(__doc__ or "", starts=10)
    starts: list[float] = []
    jobs: list[float] = []
    stops: list[float] = []
    failures = 0
    for number in range(options.starts + 1):
        began = time.monotonic()
        with gpusched.local(gpus="1:A100:40960:8") as client:
            usable = time.monotonic()
            failures += client.submit(["true"], gpus=1).wait(timeout=60).exit_code != 0
            ended = time.monotonic()
        if number:  # the first may prepare the database
            starts.append(usable - began)
            jobs.append(ended - usable)
            stops.append(time.monotonic() - ended)
    publish(
        {
            "usable_p50_s": percentile(starts, 50),
            "usable_max_s": max(starts),
            "first_job_p50_s": percentile(jobs, 50),
            "stopped_p50_s": percentile(stops, 50),
            "starts": len(starts),
        },
        options.json,
        failures,
    )


if __name__ == "__main__":
    main()
