"""A real workload through the running system: the first jobs of the Philly trace (Microsoft, 2017), one tenant per
virtual cluster, time compressed; each job is a real process that sleeps for its scaled duration on agents of a pretend
fleet. Checks that all completed, none ran twice, and that the ledger agrees with the attempts."""

import argparse
import csv
import gzip
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from benchmarks.report import percentile, publish
from gpusched.client import Client
from gpusched.protocol.rest.cluster import Quota
from tests.system.stack import ROOT, Stack
from tests.waiting import wait_for

TRACES = ROOT.parent / "shared" / "traces" / "philly"
GPUS_PER_NODE = 8


class TraceJob(NamedTuple):
    """A job of the trace, in its seconds; `at` counts from its first job."""

    at: float
    seconds: float
    gpus: int
    cluster: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder with philly_tuning.csv.gz")
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--wall-seconds", type=float, default=240, help="the trace's span is compressed to this")
    parser.add_argument("--node-share", type=float, default=0.25, help="part of the clusters' nodes that the fleet has")
    options = parser.parse_args()
    if not (options.traces / "philly_tuning.csv.gz").exists():
        sys.exit(f"the trace is not in {options.traces}; say where it is with --traces")
    trace = read_trace(options.traces / "philly_tuning.csv.gz", options.jobs)
    nodes = read_nodes(options.traces / "philly_vc_nodes.csv", {job.cluster for job in trace}, options.node_share)
    with Stack() as stack:
        figures, problems = replay(stack, trace, nodes, options.wall_seconds)
    for problem in problems:
        print(f"  WRONG: {problem}")
    publish(figures, options.json, len(problems))


def read_trace(path: Path, count: int) -> list[TraceJob]:
    with gzip.open(path, "rt") as file:
        rows = [row for row, _ in zip(csv.DictReader(file), range(count), strict=False)]
    first = datetime.fromisoformat(rows[0]["timestamp"])
    return [
        TraceJob(
            (datetime.fromisoformat(row["timestamp"]) - first).total_seconds(),
            float(row["duration"]),
            int(row["num_gpus"]),
            row["cluster"],
        )
        for row in rows
    ]


def read_nodes(path: Path, clusters: set[str], share: float) -> dict[str, int]:
    """Return the nodes of each cluster in the fleet; two at least, since the trace has jobs of 16 GPUs."""
    with path.open() as file:
        rows = {row["vc"]: int(row["node num"]) for row in csv.DictReader(file)}
    return {cluster: max(2, round(rows[cluster] * share)) for cluster in sorted(clusters)}


def replay(
    stack: Stack, trace: Sequence[TraceJob], nodes: dict[str, int], wall_seconds: float
) -> tuple[dict[str, float | int | str], list[str]]:
    scale = wall_seconds / trace[-1].at
    stack.fleet(sum(nodes.values()), processes=2)
    client = stack.client()
    for cluster, count in nodes.items():
        client.create_tenant(cluster)
        quota = client.quota(cluster)
        client.set_quota(cluster, Quota(max_gpus=count * GPUS_PER_NODE, version=quota.version))
    ran = stack.directory / "ran"
    began = time.monotonic()
    ids = submit_all(stack, trace, scale, began, ran)
    submitted = time.monotonic() - began
    live = ("pending", "scheduled", "running", "stopping")
    wait_for(lambda: not client.list(state=live, limit=1), wall_seconds * 4 + 120, "all jobs to end", 1.0)
    took = time.monotonic() - began
    with psycopg.connect(stack.database_url()) as database:
        return judge(database, trace, ids, scale, ran, took, submitted)


def submit_all(stack: Stack, trace: Sequence[TraceJob], scale: float, began: float, ran: Path) -> list[int]:
    """Submit each job at its moment, over four connections; a late submit is not corrected."""
    local = threading.local()

    def submit(job: TraceJob) -> int:
        if not hasattr(local, "client"):
            local.client = Client(stack.url, stack.token())
        time.sleep(max(0.0, began + job.at * scale - time.monotonic()))
        mark = f"echo $GPUSCHED_JOB_ID.$GPUSCHED_ATTEMPT.$GPUSCHED_RANK >> {ran}"
        ranks = max(1, job.gpus // GPUS_PER_NODE)
        gang: dict[str, Any] = {"gang_scheduling": True, "ranks": ranks} if ranks > 1 else {}
        command = ["sh", "-c", f"{mark}; exec sleep {job.seconds * scale:.3f}"]
        return int(local.client.submit(command, gpus=job.gpus, tenant=job.cluster, **gang).id)

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(submit, trace))


_ENDS = "SELECT state, count(*) FROM jobs_job GROUP BY state"
# The use by the attempts alone: each rank from its start to its end, times the devices in its placement.
_ATTEMPTS = """
    SELECT coalesce(sum(extract(epoch FROM (o.value->>'ended_at')::timestamptz - (o.value->>'started_at')::timestamptz)
               * json_array_length((p.value->'devices')::json)), 0)::float8
      FROM jobs_attempt a, jsonb_array_elements(a.placement) p, jsonb_each(a.outcomes) o
     WHERE (p.value->>'rank') = o.key AND o.value->>'started_at' IS NOT NULL
"""
_LEDGER = "SELECT coalesce(sum(extract(epoch FROM ended_at - started_at) * gpus), 0)::float8 FROM tenants_usageentry"
_REPEATED = """
    SELECT a.job_id, a.number, a.reason FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id AND a.number < j.attempt
"""
_WAIT_SECONDS = "SELECT extract(epoch FROM started_at - submitted_at)::float8 FROM jobs_job ORDER BY id"


def _process_problems(
    database: "psycopg.Connection[Any]", trace: Sequence[TraceJob], lines: Sequence[str]
) -> Iterator[str]:
    """Yield the problems if not each rank ran exactly once; each process has written a line."""
    expected = sum(max(1, job.gpus // GPUS_PER_NODE) for job in trace)
    if len(lines) != len(set(lines)) or len(lines) != expected:
        yield f"{len(lines)} processes ran, {len(set(lines))} different ones, {expected} expected"
        yield from (f"job {row[0]} attempt {row[1]}: {row[2]}" for row in database.execute(_REPEATED).fetchall())


def judge(
    database: "psycopg.Connection[Any]",
    trace: Sequence[TraceJob],
    ids: Sequence[int],
    scale: float,
    ran: Path,
    took: float,
    submitted: float,
) -> tuple[dict[str, float | int | str], list[str]]:
    """Return the figures, and the problems."""
    problems = []
    states = dict(database.execute(_ENDS).fetchall())
    if states != {"completed": len(trace)}:
        problems.append(f"not all completed: {states}")
    if len(set(ids)) != len(trace):
        problems.append(f"{len(set(ids))} jobs for {len(trace)} submits")
    lines = ran.read_text().split()
    problems += _process_problems(database, trace, lines)
    [attempts] = database.execute(_ATTEMPTS).fetchone() or [0.0]
    [ledger] = database.execute(_LEDGER).fetchone() or [0.0]
    if abs(attempts - ledger) > 0.001:
        problems.append(f"the ledger has {ledger} GPU-seconds, the attempts {attempts}")
    nominal = sum(job.seconds * scale * job.gpus for job in trace)
    if not nominal <= ledger <= nominal * 1.2:
        problems.append(f"the ledger has {ledger} GPU-seconds, the processes slept for {nominal}")
    wait_seconds = [row[0] for row in database.execute(_WAIT_SECONDS).fetchall()]
    return {
        "jobs": len(trace),
        "processes": len(lines),
        "seconds_to_submit": submitted,
        "seconds_to_end": took,
        "compression": 1 / scale,
        "ledger_gpu_seconds": ledger,
        "attempts_gpu_seconds": attempts,
        "slept_gpu_seconds": nominal,
        "wait_p50_ms": percentile(wait_seconds, 50) * 1000,
        "wait_p99_seconds": percentile(wait_seconds, 99),
    }, problems


if __name__ == "__main__":
    main()
