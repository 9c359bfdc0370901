"""Lists and reads of jobs over HTTP with a million of them in the history, one client at a time."""

import base64
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import httpx
import psycopg

from benchmarks.report import arguments, percentile, publish
from tests.system.stack import Stack

# Most belong to one tenant, and one in a thousand to another: filters must find many and few equally well. Without
# triggers, which would each run a million times; their tables are written at the end.
_FILL = """
    SET session_replication_role = replica;
    INSERT INTO tenants_tenant (name, display_name, weight, tier, allow_preemption, can_preempt_others, created_at)
    VALUES ('small', '', 1, 'standard', true, true, now());
    INSERT INTO jobs_job (tenant_id, user_id, name, priority, gpu_count, gpu_models, gpu_sharing, cpu_milli, memory_mb,
                          gang_scheduling, workload_class, preemptible, requeue, max_retries, retries_used,
                          grace_seconds, labels, node_selector, payload, state, attempt, reason, evidence, submitted_at,
                          started_at, ended_at, exit_code, stop_reason, stop_evidence)
    SELECT CASE WHEN n % 1000 = 0 THEN (SELECT id FROM tenants_tenant WHERE name = 'small')
                ELSE (SELECT id FROM tenants_tenant WHERE name = 'default') END,
           (SELECT id FROM auth_user WHERE username = 'admin'), 'train ' || n % 5000, 500, 1, '{{}}', 'exclusive', 1000,
           0, false, 'batch', true, true, 0, 0, 30, '{{}}', '{{}}',
           '{{"command": ["python", "train.py"], "args": [], "script": null, "workdir": null, "environment": {{}}}}',
           CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'completed' END, 1, 'exited', '{{}}', t, t, t + interval '1 minute',
           (n % 50 = 0)::int, '', '{{}}'
      FROM generate_series(1, {jobs}) n, LATERAL (SELECT now() - ({jobs} - n) * interval '1 second' AS t) AS t;
    INSERT INTO jobs_attempt (job_id, number, ranks, scheduled_at, started_at, ended_at, reason, evidence, exit_code,
                              placement, outcomes)
    SELECT id, 1, 1, submitted_at, started_at, ended_at, 'exited', '{{}}', exit_code, '[]', '{{}}' FROM jobs_job;
    INSERT INTO jobs_jobevent (job_id, at, kind, attempt, actor, data)
    SELECT id, submitted_at, kind, 1, 'admin', '{{}}'
      FROM jobs_job, unnest('{{submitted,scheduled,started,ended}}'::text[]) AS kind;
    INSERT INTO jobs_tally (kind, word, n)
    SELECT 'job', state, count(*) FROM jobs_job GROUP BY state
     UNION ALL SELECT 'attempt', reason, count(*) FROM jobs_attempt GROUP BY reason;
"""


def main() -> None:
    options = arguments(__doc__ or "", jobs=1_000_000, requests=300)
    with Stack(rate_limit_per_minute=0) as stack:
        first, last = fill(stack, options.jobs)
        with httpx.Client(base_url=f"{stack.url}/api/v1", timeout=60) as http:
            http.headers["Authorization"] = f"Bearer {stack.token()}"
            figures: dict[str, float | int | str] = {"jobs": options.jobs}
            failures = 0
            for name, path in _requests(first, last).items():
                times, failed = _measure(http, path, options.requests)
                figures |= {f"{name} p50 ms": percentile(times, 50), f"{name} p99 ms": percentile(times, 99)}
                failures += failed
    publish(figures, options.json, failures)


def fill(stack: Stack, jobs: int) -> tuple[int, int]:
    """Write a history of `jobs`, one a second until now, each with an attempt and four events. Return the first and the
    last id."""
    began = time.monotonic()
    with psycopg.connect(stack.database_url(), autocommit=True) as database:
        for statement in _FILL.format(jobs=jobs).split(";\n"):
            if statement.strip():
                database.execute(statement.encode())
        database.execute("VACUUM ANALYZE")
        id_range = database.execute("SELECT min(id), max(id) FROM jobs_job").fetchone()
    assert id_range is not None
    print(f"  filled in {time.monotonic() - began:.0f} s")
    return id_range[0], id_range[1]


def _requests(first: int, last: int) -> dict[str, Callable[[], str]]:
    """Return name -> a function that returns the next address to read."""
    dice = random.Random(1)

    def some() -> int:
        return dice.randint(first, last)

    return {
        **_lists(_cursor(last - 100), _cursor((first + last) // 2)),
        "count": lambda: "/jobs/count",
        "count of failed": lambda: "/jobs/count?state=failed",
        "count of waiting": lambda: "/jobs/count?state=waiting",
        "count by a common name": lambda: "/jobs/count?name=train",
        "count by half an hour of ends": lambda: f"/jobs/count?ended_after={_ago(5)}&ended_before={_ago(4.98)}",
        "read": lambda: f"/jobs/{some()}",
        "events": lambda: f"/jobs/{some()}/events",
        "attempts": lambda: f"/jobs/{some()}/attempts",
        "explain": lambda: f"/jobs/{some()}/explain",
        "queue": lambda: "/queue",
        "cluster status": lambda: "/cluster/status",
        "metrics": lambda: "/metrics",
    }


def _lists(page: str, deep: str) -> dict[str, Callable[[], str]]:
    """Return the lists; `page`: the cursor of the second page, `deep`: one half way back."""
    return {
        "list": lambda: "/jobs",
        "list, next page": lambda: f"/jobs?cursor={page}",
        "list, half way back": lambda: f"/jobs?cursor={deep}",
        "list of 1000": lambda: "/jobs?limit=1000",
        "list of a small tenant": lambda: "/jobs?tenant=small",
        "list of a user": lambda: "/jobs?user=admin",
        "list of failed": lambda: "/jobs?state=failed",
        "list of waiting": lambda: "/jobs?state=waiting",
        "list by a common name": lambda: "/jobs?name=train",
        "list by a rare name": lambda: "/jobs?name=train%204321",
        "list by a name that is not": lambda: "/jobs?name=nothing",
        "list of a user that is not": lambda: "/jobs?user=nobody",
        "list of failed, half way back": lambda: f"/jobs?state=failed&cursor={deep}",
        "list of a small tenant's failed": lambda: "/jobs?tenant=small&state=failed",
        "list by half an hour of submits": lambda: f"/jobs?submitted_after={_ago(5)}&submitted_before={_ago(4.98)}",
        "list of a small tenant by a day of submits": lambda: (
            f"/jobs?tenant=small&submitted_after={_ago(5)}&submitted_before={_ago(4)}"
        ),
        "list by half an hour of ends": lambda: f"/jobs?ended_after={_ago(5)}&ended_before={_ago(4.98)}",
        "list by a day of ends": lambda: f"/jobs?ended_after={_ago(5)}&ended_before={_ago(4)}",
        "list by a day long ago, of ends": lambda: f"/jobs?ended_after={_ago(400)}&ended_before={_ago(399)}",
        "list of a small tenant's failed by a day of ends": lambda: (
            f"/jobs?tenant=small&state=failed&ended_after={_ago(5)}&ended_before={_ago(4)}"
        ),
    }


def _ago(days: float) -> str:
    return f"{datetime.now(UTC) - timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}"


def _cursor(job_id: int) -> str:
    """Return a cursor as the server makes it: the base64 of ["jobs",id]."""
    return base64.urlsafe_b64encode(f'["jobs",{job_id}]'.encode()).decode().rstrip("=")


def _measure(http: httpx.Client, path: Callable[[], str], requests: int) -> tuple[list[float], int]:
    times, failed = [], 0
    http.get(path())
    until = time.monotonic() + 20.0
    for _ in range(requests):
        address = path()
        began = time.perf_counter()
        response = http.get(address)
        times.append((time.perf_counter() - began) * 1000)
        failed += response.status_code != 200
        if time.monotonic() > until:  # so slow a request needs no more samples
            break
    return times, failed


if __name__ == "__main__":
    main()
