"""Compare the fragmentation score with 20 % of the GPUs reserved for large jobs, and with size classes that spill over.

Needs ../shared/traces. Two experiments, `--only` runs one of them: `placement` fills the openb cluster, `queueing`
replays Philly. Together they take an hour or less."""

import argparse
import json
import sys
from dataclasses import asdict, replace

from benchmarks.queueing import DECEMBER, OCTOBER, PHILLY, TRACES, TUNING
from scheduling.simulator.traces.formats import read_trace
from tests.simulator.reserve import (
    LISTS,
    POLICIES,
    POOLED,
    QUEUEING_RULES,
    PlacementRow,
    QueueingRow,
    placement_rows,
    queueing_rows,
)

OPENB = TRACES / "openb"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--only", choices=("placement", "queueing"), help="one experiment")
    parser.add_argument("--fills", type=int, default=10, help="seeds of each row of placement")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of noise of each row of queueing")
    parser.add_argument(
        "--policy", choices=POLICIES, action="append", help="of queueing; may be repeated; default: all"
    )
    parser.add_argument("--rule", action="append", help="of queueing; may be repeated; default: all")
    parser.add_argument("--pooled", type=int, metavar="N", help="of queueing: only all jobs in one queue, on N nodes")
    options = parser.parse_args()
    if not TRACES.is_dir():
        sys.exit("The traces are not here (../shared/traces).")
    result: dict[str, list[dict[str, object]]] = {}
    if options.only != "queueing":
        result["placement"] = [_printed(row) for row in placement_rows(OPENB, LISTS, options.fills)]
    if options.only != "placement":
        jobs = [job for job in read_trace(TUNING, "philly") if OCTOBER <= job.submitted_at < DECEMBER]
        jobs = [job for job in jobs if job.tenant in PHILLY]
        nodes = PHILLY
        if options.pooled:
            jobs, nodes = [replace(job, tenant=POOLED) for job in jobs], {POOLED: options.pooled}
        rules = [rule for rule in QUEUEING_RULES if rule.title in (options.rule or [rule.title])]
        rows = queueing_rows(jobs, nodes, options.policy or tuple(POLICIES), rules, options.seeds)
        result["queueing"] = [_printed(row) for row in rows]
    if options.json:
        print(json.dumps(result))


def _printed(row: PlacementRow | QueueingRow) -> dict[str, object]:
    fields = asdict(row)
    print("  ".join(f"{name} {value}" for name, value in fields.items()), flush=True)
    return fields


if __name__ == "__main__":
    main()
