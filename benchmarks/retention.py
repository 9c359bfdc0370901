"""Deletes old jobs of a history of millions while others submit: does a submit or a cycle wait for it?

Turns without and with the deletion alternate, so that both see the machine at its speed of the moment.
"""

import subprocess
import sys
import time
from typing import Any

import psycopg

from benchmarks.history import fill
from benchmarks.report import arguments, percentile, publish
from tests.system.stack import ROOT, Stack

# Deletes for a turn as housekeeping does, and prints how many jobs that were.
_DELETE = """
import sys, django
django.setup()
from scheduling.worker import tasks
from jobs import retention
print(retention.run(tasks._delete_others, seconds=float(sys.argv[1])))
"""
_CYCLES = """
    SELECT count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY sweep_ms + snapshot_ms + plan_ms + commit_ms)
      FROM scheduling_cycle WHERE started_at > to_timestamp(%s)
"""
# Invariants: the totals of ended jobs and attempts, and the ledger. Submits are cancelled.
_TOTALS = """
    SELECT (SELECT sum(n) FROM jobs_tally WHERE kind = 'job' AND word IN ('completed', 'failed')),
           (SELECT sum(n) FROM jobs_tally WHERE kind = 'attempt'), (SELECT count(*) FROM tenants_usageentry)
"""


def main() -> None:
    options = arguments(__doc__ or "", jobs=5_000_000, turns=6, seconds=15, days=10)
    with Stack(rate_limit_per_minute=0) as stack:
        fill(stack, options.jobs)
        url = stack.database_url()
        with psycopg.connect(url, autocommit=True) as database:
            totals = database.execute(_TOTALS).fetchone()
            figures, failures = _turns(stack, database, options)
            failures += database.execute(_TOTALS).fetchone() != totals
            row = database.execute("SELECT count(*) FROM jobs_job WHERE state = 'completed'").fetchone()
            assert row is not None
            figures["jobs left"] = row[0]
    publish({"jobs": options.jobs, **figures}, options.json, failures)


def _turns(stack: Stack, database: Any, options: Any) -> tuple[dict[str, float | int | str], int]:
    submits: dict[str, list[float]] = {"alone": [], "beside": []}
    cycles: dict[str, list[float]] = {"alone": [], "beside": []}
    deleted = failures = 0
    for turn in range(options.turns * 2):
        name = ("alone", "beside")[turn % 2]
        child = _deletion(stack, options) if name == "beside" else None
        began = time.time()
        submits[name] += _submit(stack, database, options.seconds)
        cycles[name].append(database.execute(_CYCLES, [began]).fetchone()[1] or 0.0)
        if child is not None:
            output, _ = child.communicate(timeout=120)
            failures += child.returncode != 0
            deleted += int(output or 0)
    return {
        "deleted jobs": deleted,
        "deleted per second": deleted / (options.turns * options.seconds),
        **{f"submit {name} p50 ms": percentile(times, 50) for name, times in submits.items()},
        **{f"submit {name} p99 ms": percentile(times, 99) for name, times in submits.items()},
        **{f"submit {name} max ms": max(times) for name, times in submits.items()},
        **{f"cycle {name} p50 ms": percentile(times, 50) for name, times in cycles.items()},
    }, failures


def _deletion(stack: Stack, options: Any) -> subprocess.Popen[str]:
    environment = {
        **stack.environment(),
        "DJANGO_SETTINGS_MODULE": "gpusched.settings",
        "GPUSCHED_JOB_RETENTION_DAYS": str(options.days),
    }
    return subprocess.Popen(
        [sys.executable, "-c", _DELETE, str(options.seconds)], cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip


def _submit(stack: Stack, database: Any, seconds: float) -> list[float]:
    """Submit one job after the other and cancel it: the queue stays short. Return milliseconds."""
    client, times = stack.client(), []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        job = client.submit(["true"], gpus=0)
        times.append((time.perf_counter() - began) * 1000)
        client.cancel(job.id)
    return times


if __name__ == "__main__":
    main()
