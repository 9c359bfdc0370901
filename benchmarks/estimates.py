"""Calibration of estimates: how often jobs start at or before p50 and p90, on generated and trace workloads (A62)."""

import argparse
import json
import sys

from scheduling.engine.model import Policy
from scheduling.engine.whatif.calibration import Outcome
from scheduling.simulator.runs.cluster import Cluster
from scheduling.simulator.traces.formats import read_trace
from tests.simulator.estimates import (
    TRACE,
    TRACE_CLUSTER,
    TRACE_NODES,
    generated,
    is_calibrated,
    percentages,
    replayed,
    with_limits,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--seeds", type=int, default=2, help="generated workloads with other jobs")
    parser.add_argument("--every", type=int, default=5, help="estimate every n-th job that waits")
    options = parser.parse_args()
    workloads = {f"generated {seed}": (generated(600, seed), Cluster(2, 8)) for seed in range(1, options.seeds + 1)}
    if TRACE.is_file():
        trace = [job for job in read_trace(TRACE, "philly") if job.tenant == TRACE_CLUSTER]
        workloads[f"philly {TRACE_CLUSTER}"] = with_limits(trace, 1), Cluster(TRACE_NODES, 8)
    else:
        print("The traces are not here (../shared/traces): generated workloads only.")
    all_outcomes: list[Outcome] = []
    for name, (jobs, cluster) in workloads.items():
        for policy in ("fair", "shortest"):
            outcomes, unknown = replayed(jobs, cluster, Policy(name=policy), options.every)
            all_outcomes += outcomes
            print(
                f"{name}, {policy}: {percentages(outcomes)}, {len(outcomes)} estimates, {unknown} unknown", flush=True
            )
    coverage = percentages(all_outcomes)
    if options.json:
        print(json.dumps(coverage))
    sys.exit(0 if is_calibrated(coverage) else f"Not calibrated: {coverage}.")


if __name__ == "__main__":
    main()
