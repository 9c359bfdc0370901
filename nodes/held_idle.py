"""Warn about jobs that hold idle GPUs for a whole window, and end them if the policy is `enforce`.

A GPU is quiet while all readings, without a gap, show a utilisation below the threshold; unknown utilisation is never
idle. A job is idle while all GPUs that it holds are quiet. After the window comes a first warning, half the grace
period later a second one, and after the other half the end. Each review takes one step, so that a pause of the
scheduler skips no warning. Any use of any of its GPUs starts the window anew, and a longer window clears the warnings
of jobs that it is not over for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpusched.lib.bus import wake
from gpusched.lib.db.sql import Row, columns, database_now, execute, query, retry_atomic
from gpusched.protocol.reasons import EndReason, Notice
from jobs.lifecycle import notices, states

WARNINGS = 2
# After the second warning: ended, or, under policy monitor, only recorded.
OVER = WARNINGS + 1

_QUIET = """
    SELECT j.id AS job_id, j.attempt, coalesce(j.labels->>'interactive', '') = 'true' AS is_interactive,
           count(DISTINCT a.device_id) AS gpus, max(greatest(r.quiet_since, a.since, s.started_at)) AS since
      FROM jobs_all j JOIN nodes_assignment s ON s.job_id = j.id AND s.number = j.attempt AND s.state <> 'ended'
      JOIN nodes_allocation a ON a.assignment_id = s.id LEFT JOIN nodes_reading r ON r.device_id = a.device_id
     WHERE j.state = 'running'
       AND NOT EXISTS (SELECT 1 FROM nodes_idleexemption e WHERE e.job_id = j.id OR e.tenant_id = j.tenant_id)
     GROUP BY j.id, j.attempt, j.labels
    HAVING bool_and(r.quiet_since IS NOT NULL AND s.started_at IS NOT NULL
                    AND r.read_at > %s - interval '1 minute')
     ORDER BY j.id
"""


@dataclass(frozen=True)
class HeldIdlePolicy:
    """`policy`: off, monitor or enforce. `percent`: a GPU is idle below it. `minutes`: until the first warning; for
    interactive jobs `interactive_minutes` if that is longer. `grace_minutes`: from the first warning to the end."""

    policy: str
    percent: int = 5
    minutes: float = 60.0
    interactive_minutes: float = 240.0
    grace_minutes: float = 20.0


def from_policy(values: Mapping[str, Any]) -> HeldIdlePolicy:
    """Build the rule from the fields of the scheduling policy."""
    names = ("policy", "percent", "minutes", "interactive_minutes", "grace_minutes")
    return HeldIdlePolicy(**{name: values[f"held_idle_{name}"] for name in names})


def review(rule: HeldIdlePolicy, now: datetime | None = None) -> None:
    """Warn about and end the jobs that are due now. Clear the warnings of jobs that are no longer idle."""
    retry_atomic(lambda: _review(rule, now))


def _review(rule: HeldIdlePolicy, now: datetime | None) -> None:
    now = now or database_now()
    previous = {row["job_id"]: row for row in query("SELECT * FROM nodes_heldidle ORDER BY job_id FOR UPDATE")}
    quiet = {} if rule.policy == "off" else {row["job_id"]: row for row in query(_QUIET, [now])}
    ended = [job_id for job_id, row in previous.items() if not _goes_on(row, quiet.get(job_id), rule, now)]
    if ended:
        execute("DELETE FROM nodes_heldidle WHERE job_id = ANY(%s)", [ended])
        notices.clear_notice(ended, Notice.IDLE_GPUS, "idle_over", now)
    due: dict[int, list[Row]] = {1: [], WARNINGS: [], OVER: []}
    for job_id, row in quiet.items():
        stage = None if job_id in ended else _next_stage(previous.get(job_id), row, rule, now)
        if stage is not None:
            due[stage].append(row)
    for stage, rows in due.items():
        if rows:
            _escalate(stage, rows, rule, now)


def _goes_on(row: Row, quiet: Row | None, rule: HeldIdlePolicy, now: datetime) -> bool:
    """Return whether the job is idle as when it was warned, also by the window of the present policy."""
    if quiet is None or row["policy"] != rule.policy or not _is_due(quiet, rule, now):
        return False
    return bool(row["attempt"] == quiet["attempt"] and row["since"] == quiet["since"])


def _is_due(quiet: Row, rule: HeldIdlePolicy, now: datetime) -> bool:
    """Return whether the job has been idle for the whole window."""
    minutes = max(rule.minutes, rule.interactive_minutes) if quiet["is_interactive"] else rule.minutes
    return bool(now - quiet["since"] >= timedelta(minutes=minutes))


def _next_stage(row: Row | None, quiet: Row, rule: HeldIdlePolicy, now: datetime) -> int | None:
    if row is None:
        return 1 if _is_due(quiet, rule, now) else None
    is_due = now - row["told_at"] >= timedelta(minutes=rule.grace_minutes / WARNINGS)
    return int(row["stage"]) + 1 if is_due and row["stage"] < OVER else None


def _escalate(stage: int, rows: Sequence[Row], rule: HeldIdlePolicy, now: datetime) -> None:
    execute(
        "INSERT INTO nodes_heldidle (job_id, attempt, since, policy, stage, told_at)"
        " SELECT t.*, %s, %s, %s FROM unnest(%s::bigint[], %s::int[], %s::timestamptz[]) AS t"
        " ON CONFLICT (job_id) DO UPDATE SET stage = excluded.stage, told_at = excluded.told_at",
        [rule.policy, stage, now, *columns([(row["job_id"], row["attempt"], row["since"]) for row in rows], 3)],
    )
    if stage == OVER and rule.policy == "enforce":
        for row in rows:
            states.stop([row["job_id"]], EndReason.HELD_IDLE, _evidence(row, stage, rule, now), "scheduler")
        wake.request_cycle()
        return
    kind = "idle_would_end" if stage == OVER else "idle_warning"
    entries = [(row["job_id"], row["attempt"], kind, _evidence(row, stage, rule, now)) for row in rows]
    notices.set_notice(entries, Notice.IDLE_GPUS, now)


def _evidence(row: Mapping[str, Any], stage: int, rule: HeldIdlePolicy, now: datetime) -> dict[str, Any]:
    remaining = timedelta(minutes=rule.grace_minutes * (OVER - stage) / WARNINGS)
    at = (now + remaining).isoformat(timespec="seconds")
    return {
        "gpus": row["gpus"],
        "percent": rule.percent,
        "since": row["since"].isoformat(timespec="seconds"),
        "warnings": min(stage, WARNINGS),
        "policy": rule.policy,
        "then": f"it is ended at {at} unless it uses them" if rule.policy == "enforce"
        else f"under policy enforce it would be ended at {at}",
    }  # fmt: skip
