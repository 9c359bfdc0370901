"""Delete finished jobs, or the details of their history, some days after their end.

Off by default. A batch deletes its logs first, without a lock, as a storage may hang. The rest is one short transaction
over rows of finished jobs, which no cycle changes. The usage ledger and the totals of ended jobs and attempts stay as
they are."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pgtrigger
from django.conf import settings

from gpusched.env import retention_days
from gpusched.lib.bus import events
from gpusched.lib.db.sql import execute, query, retry_atomic, rows
from jobs.logs import store

# About 50 ms of work on a busy disk: as long as a submit that depends on one of these jobs may wait for a batch. Logs
# in an object storage take a request or two each, and a run looks at its time limit between batches.
BATCH, BATCH_OF_OBJECTS = 500, 20
# Time limit of one run; housekeeping's other tasks wait for it.
RUN_SECONDS = 20.0
JOBS, DETAILS = "jobs", "details"
_FIRST = "-infinity"


class _Rule(NamedTuple):
    scope: str
    state: str
    days: float


# Deletes the rows of other apps that belong to these jobs and to these attempts.
DeleteOthers = Callable[[Sequence[int], Sequence[int]], None]


def run(delete_others: DeleteOthers, seconds: float = RUN_SECONDS) -> int:
    """Process jobs whose retention is over, for at most `seconds`. Return how many. A job with a log that cannot be
    deleted stays; its failure is raised after all others are processed."""
    until, logs = time.monotonic() + seconds, store.Deletion()
    env = settings.ENV
    rules = [
        _Rule(scope, state, days)
        for scope, text in ((JOBS, env.job_retention_days), (DETAILS, env.job_detail_retention_days))
        for state, days in retention_days(text).items()
    ]
    count = sum(_process(rule, delete_others, until, logs) for rule in rules)
    logs.raise_failure()
    return count


def _process(rule: _Rule, delete_others: DeleteOthers, until: float, logs: store.Deletion) -> int:
    """Process batches in the order of ends. A job that is skipped (locked, or another job's dependency is undecided)
    is tried again in the next run; the jobs after it need not wait.

    A large array may lose its elements over several runs. Totals are exact after each batch, the array keeps the
    counts of its end, and its elements cannot be retried once some are deleted (jobs/actions/array_actions.py)."""
    delete = partial(_delete_jobs if rule.scope == JOBS else _delete_details, logs)
    count, is_progress_kept = 0, True
    cursor = _progress(rule)
    while time.monotonic() < until:
        batch = _next(rule, cursor)
        if not batch:
            break
        arrays = [job_id for _, job_id, is_array in batch if is_array]
        if arrays:
            skipped = _delete_elements(rule, arrays, delete, delete_others, until)
            if skipped is None:
                break
            is_progress_kept = is_progress_kept and not skipped
        ids = [job_id for _, job_id, _ in batch]
        deleted = set(delete(rule, ids, delete_others))
        count += len(deleted)
        cursor = batch[-1][:2]
        is_progress_kept = is_progress_kept and len(deleted) == len(ids)
        if is_progress_kept:
            _store_progress(rule, *cursor)
    return count


def _delete_elements(
    rule: _Rule, arrays: list[int], delete: "_Delete", delete_others: DeleteOthers, until: float
) -> int | None:
    """Process the elements of arrays, before the arrays themselves. Return how many were skipped, or None if time is
    over before all are processed."""
    after = skipped = 0
    while elements := [row[0] for row in rows(_ELEMENTS, [arrays, after, _batch()])]:
        skipped += len(elements) - len(delete(rule, elements, delete_others))
        after = elements[-1]
        if time.monotonic() > until:
            return None
    return skipped


_Delete = Callable[[_Rule, list[int], DeleteOthers], list[int]]
_ELEMENTS = "SELECT id FROM jobs_job WHERE array_id = ANY(%s::bigint[]) AND id > %s ORDER BY id LIMIT %s"
_NEXT = """
    SELECT ended_at, id, array_count IS NOT NULL FROM jobs_job
     WHERE array_id IS NULL AND ended_at IS NOT NULL AND state = %s AND (ended_at, id) > (%s::timestamptz, %s)
       AND ended_at < now() - make_interval(secs => %s)
     ORDER BY ended_at, id LIMIT %s
"""


def _next(rule: _Rule, cursor: tuple[object, int]) -> list[tuple[object, int, bool]]:
    expired = rows(_NEXT, [rule.state, *cursor, rule.days * 86400, _batch()])
    return [(ended_at, job_id, is_array) for ended_at, job_id, is_array in expired]


def _batch() -> int:
    return BATCH if store.are_files() else BATCH_OF_OBJECTS


def _progress(rule: _Rule) -> tuple[object, int]:
    progress = rows(
        "SELECT ended_at, job_id FROM jobs_retentionprogress WHERE what = %s AND state = %s", [rule.scope, rule.state]
    )
    return progress[0] if progress else (_FIRST, 0)


def _store_progress(rule: _Rule, ended_at: object, job_id: int) -> None:
    execute(
        """INSERT INTO jobs_retentionprogress (what, state, ended_at, job_id) VALUES (%s, %s, %s, %s)
               ON CONFLICT (what, state) DO UPDATE SET ended_at = excluded.ended_at, job_id = excluded.job_id""",
        [rule.scope, rule.state, ended_at, job_id],
    )


# Excludes arrays that were reopened since.
_ENDED_ARRAYS = """
    SELECT id FROM jobs_job
     WHERE id IN (SELECT array_id FROM jobs_job WHERE id = ANY(%s::bigint[]) AND array_id IS NOT NULL)
       AND ended_at < now() - make_interval(secs => %s)
     ORDER BY id
"""
# An element is never deleted before its array is over.
_STILL_EXPIRED = """
    SELECT id FROM jobs_job j
     WHERE id = ANY(%s::bigint[]) AND ended_at < now() - make_interval(secs => %s)
       AND (j.array_id IS NULL OR j.array_id = ANY(%s::bigint[]))
"""
_DELETABLE = f"""{_STILL_EXPIRED}
       AND NOT EXISTS (SELECT 1 FROM jobs_dependency d WHERE d.on_id = j.id)
       AND NOT EXISTS (SELECT 1 FROM jobs_job e WHERE e.array_id = j.id)
"""
# Totals cover all ended jobs ever. An array itself counts as none, and for its elements that never became jobs:
# jobs/listing/counts.py reads both numbers from its row.
_KEEP_TOTALS = """
    INSERT INTO jobs_tally (kind, word, n)
    SELECT 'job', part.word, part.n FROM jobs_job a,
           LATERAL (VALUES (a.state, -1::bigint),
                           ('cancelled', jobs_numbers(a.array_cancelled)::bigint)) AS part (word, n)
     WHERE a.id = ANY(%s::bigint[]) AND a.array_count IS NOT NULL AND part.n <> 0
"""
_IGNORED = ("jobs.JobEvent:append_only", "jobs.Job:tally_deleted", "jobs.Attempt:tally_deleted")


def _delete_jobs(logs: store.Deletion, rule: _Rule, ids: list[int], delete_others: DeleteOthers) -> list[int]:
    """Delete jobs with all that belongs to them. Return those that were deleted."""
    _drop_logs(logs, _expired(rule, ids, _DELETABLE), is_latest_kept=False)

    def delete() -> list[int]:
        locked = _without_logs(_expired(rule, ids, _DELETABLE, "FOR UPDATE"), is_latest_kept=False)
        if not locked:
            return []
        attempts = [row[0] for row in rows("SELECT id FROM jobs_attempt WHERE job_id = ANY(%s::bigint[])", [locked])]
        with pgtrigger.ignore(*_IGNORED):
            delete_others(locked, attempts)
            execute(_KEEP_TOTALS, [locked])
            for table in ("idempotencykey", "dependency", "jobreason", "jobevent", "attempt"):
                execute(f"DELETE FROM jobs_{table} WHERE job_id = ANY(%s::bigint[])", [locked])
            execute("DELETE FROM jobs_job WHERE id = ANY(%s::bigint[])", [locked])
        events.changed("jobs", locked)
        return locked

    return retry_atomic(delete)


def _delete_details(logs: store.Deletion, rule: _Rule, ids: list[int], delete_others: DeleteOthers) -> list[int]:
    """Delete events, past reasons and all attempts but the latest. Return the ids of the jobs."""
    _drop_logs(logs, _expired(rule, ids, _STILL_EXPIRED), is_latest_kept=True)

    def delete() -> list[int]:
        locked = _without_logs(_expired(rule, ids, _STILL_EXPIRED, "FOR NO KEY UPDATE"), is_latest_kept=True)
        attempts = [row[0] for row in rows(_EARLIER_ATTEMPTS, [locked])]
        with pgtrigger.ignore(*_IGNORED):
            delete_others([], attempts)
            for table in ("jobreason", "jobevent"):
                execute(f"DELETE FROM jobs_{table} WHERE job_id = ANY(%s::bigint[])", [locked])
            execute("DELETE FROM jobs_attempt WHERE id = ANY(%s::bigint[])", [attempts])
        return locked

    return retry_atomic(delete)


def _expired(rule: _Rule, ids: list[int], sql: str, lock: str = "") -> list[int]:
    """Return the jobs that are still over. `lock`: lock them, and their arrays, until the end of this transaction, so
    that no retry reopens them meanwhile, but skip those that another transaction has locked."""
    seconds = rule.days * 86400
    share, skip = ("FOR SHARE SKIP LOCKED", f"{lock} SKIP LOCKED") if lock else ("", "")
    arrays = [row[0] for row in rows(f"{_ENDED_ARRAYS} {share}", [ids, seconds])]
    return [row[0] for row in rows(f"{sql} ORDER BY id {skip}", [ids, seconds, arrays])]


_EARLIER_ATTEMPTS = """
    SELECT a.id FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id
     WHERE j.id = ANY(%s::bigint[]) AND a.number < j.attempt
"""
_LOGS = """
    SELECT a.id, a.job_id, a.number, a.ranks FROM jobs_attempt a JOIN jobs_job j ON j.id = a.job_id
     WHERE j.id = ANY(%s::bigint[]) AND j.ended_at IS NOT NULL AND a.log_dropped_at IS NULL
       AND (a.number < j.attempt OR NOT %s)
"""


def _drop_logs(logs: store.Deletion, ids: list[int], *, is_latest_kept: bool) -> None:
    """Delete logs of jobs before the rows that name them: if this process dies, no log stays without a row. A job that
    is retried meanwhile keeps its rows, which say that its earlier logs are deleted."""
    logs.of_attempts(query(_LOGS, [ids, is_latest_kept]))


def _without_logs(ids: list[int], *, is_latest_kept: bool) -> list[int]:
    """Return those of the locked jobs whose logs are deleted."""
    kept = {row["job_id"] for row in query(_LOGS, [ids, is_latest_kept])}
    return [job_id for job_id in ids if job_id not in kept]
