"""The only writer of a job's state. Each write is conditional on the state and the attempt that its caller read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpusched.lib.bus import events
from gpusched.lib.db.sql import as_json, columns, execute, prepared, query
from gpusched.lib.histograms import observe
from gpusched.protocol.reasons import EndReason, Pending
from gpusched.protocol.states import FINAL, JobState
from jobs.events.record import insert_sql, record_event
from jobs.lifecycle import dependencies, memory_retry
from jobs.lifecycle.attempt_end import (
    NO_STREAK,
    AttemptOutcome,
    Transition,
    fault_streaks,
    next_state,
    with_job_facts,
    with_undone_order,
)
from jobs.redaction import redact_preemptor


@dataclass(frozen=True)
class PlacementDecision:
    """The placement of job `job_id`, which was pending after attempt `seen_attempt`, for its next attempt."""

    job_id: int
    seen_attempt: int
    ranks: int
    placement: list[dict[str, Any]]
    considered: dict[str, Any]


def move_sql(state: str, changes: str, condition: str, *, source: str = "", returning: str = "j.id, j.attempt") -> str:
    """Build the UPDATE of jobs (alias `j`) to a new state. Every statement that sets `jobs_job.state` comes from here.

    All are constants in SQL: `state` an expression, `changes` the other columns it sets, `source` a FROM clause."""
    joined = f" FROM {source}" if source else ""
    return f"UPDATE jobs_job j SET state = {state}, {changes}{joined} WHERE {condition} RETURNING {returning}"


# --- place and start --------------------------------------------------------------------------------------------------

_NO_EVIDENCE: dict[str, Any] = {}
_PLACE_JOBS = move_sql(
    "'scheduled'",
    "attempt = d.seen + 1, reason = 'starting', evidence = '{}', reason_since = now(), signal_count = 0",
    "j.id = l.id AND d.job_id = j.id",
    source="decided d, locked l",
    returning="j.id, j.attempt, d.ranks, d.placement, d.considered",
)
_SCHEDULED = insert_sql("'scheduled'", "moved", data="jsonb_build_object('placement', placement)")
_PLACE = f"""
    WITH decided AS (
        SELECT * FROM unnest(%s::bigint[], %s::int[], %s::int[], %s::jsonb[], %s::jsonb[])
                   AS d (job_id, seen, ranks, placement, considered)),
    locked AS (
        SELECT j.id FROM jobs_job j JOIN decided d ON d.job_id = j.id
         WHERE j.state = 'pending' AND j.attempt = d.seen ORDER BY j.id FOR NO KEY UPDATE OF j),
    moved AS ({_PLACE_JOBS}),
    event AS ({_SCHEDULED})
    INSERT INTO jobs_attempt (job_id, number, ranks, scheduled_at, reason, evidence, placement, outcomes, considered)
    SELECT id, attempt, ranks, clock_timestamp(), '', '{{}}', placement, '{{}}', considered FROM moved
    RETURNING id AS attempt_id, job_id, number
"""


def place(decided: Sequence[PlacementDecision]) -> dict[int, tuple[int, int]]:
    """Move unchanged pending jobs to scheduled with a new attempt. Return {job_id: (attempt_id, number)} of them."""
    rows = [(p.job_id, p.seen_attempt, p.ranks, as_json(p.placement), as_json(p.considered)) for p in decided]
    return {row["job_id"]: (row["attempt_id"], row["number"]) for row in prepared(_PLACE, columns(rows, 5))}


_START_JOBS = move_sql(
    "'running'",
    "started_at = a.started_at, reason = '', evidence = '{}', reason_since = NULL",
    "j.id = t.job_id AND j.state = 'scheduled' AND j.attempt = t.attempt",
    source="starts t JOIN attempt a ON a.job_id = t.job_id",
    returning="j.id, j.attempt, j.array_id, t.at, extract(epoch FROM a.started_at - j.submitted_at)::float8 AS waited",
)
_STARTED = insert_sql("'started'", "moved", at="at")
_START = f"""
    WITH starts AS (SELECT * FROM unnest(%s::bigint[], %s::int[], %s::timestamptz[]) AS t (job_id, attempt, at)),
    attempt AS (
        UPDATE jobs_attempt a SET started_at = least(a.started_at, greatest(t.at, a.scheduled_at)) FROM starts t
         WHERE a.job_id = t.job_id AND a.number = t.attempt AND a.ended_at IS NULL
        RETURNING a.job_id, a.number, a.started_at),
    earlier AS (
        UPDATE jobs_job j SET started_at = a.started_at FROM attempt a
         WHERE j.id = a.job_id AND j.attempt = a.number AND j.state <> 'scheduled' AND j.started_at > a.started_at),
    moved AS ({_START_JOBS}),
    event AS ({_STARTED})
    SELECT id, attempt, array_id, at, waited FROM moved
"""
_ARRAY_STARTED = insert_sql("'started'", "begun", at="at", attempt="0")
_FIRST_START = f"""
    WITH begun AS (
        UPDATE jobs_job a SET started_at = t.at FROM unnest(%s::bigint[], %s::timestamptz[]) AS t (id, at)
         WHERE a.id = t.id AND a.started_at IS NULL RETURNING a.id, t.at)
    {_ARRAY_STARTED}
"""


def started(starts: Sequence[tuple[int, int, datetime]]) -> list[int]:
    """Move scheduled jobs to running, given (job, attempt, start of a rank). Later starts and old attempts change
    nothing; an earlier start becomes that of the job. An array starts with its first element. Return the ids that
    moved."""
    earliest: dict[tuple[int, int], datetime] = {}
    for job_id, attempt, at in starts:
        earliest[job_id, attempt] = min(at, earliest.get((job_id, attempt), at))
    rows = [(job_id, attempt, at) for (job_id, attempt), at in sorted(earliest.items())]
    moved = prepared(_START, columns(rows, 3))
    observe("gpu_scheduler_submit_to_start_seconds", {"": [max(0.0, r["waited"]) for r in moved if r["attempt"] == 1]})
    array_starts: dict[int, datetime] = {}
    for row in moved:
        if row["array_id"] is not None:
            array_starts[row["array_id"]] = min(row["at"], array_starts.get(row["array_id"], row["at"]))
    if array_starts:
        execute(_FIRST_START, columns(sorted(array_starts.items()), 2))
    return [row["id"] for row in moved]


# --- stop, hold, release, retry ---------------------------------------------------------------------------------------

_STOP_JOBS = move_sql(
    "'stopping'",
    "stop_reason = %s, stop_evidence = %s::jsonb, reason_since = clock_timestamp()",
    "id = ANY(%s) AND state IN ('scheduled', 'running')",
)
_STOPPING = insert_sql("'stopping'", "moved", actor="%s", data="%s::jsonb")
_STOP = f"WITH moved AS ({_STOP_JOBS}) {_STOPPING} RETURNING job_id"


def stop(job_ids: Sequence[int], reason: EndReason, evidence: dict[str, Any], actor: str) -> list[int]:
    """Move scheduled and running jobs to stopping; the agents then end them. Return the ids that moved."""
    data = as_json({"reason": reason, **evidence})
    rows = query(_STOP, [reason, as_json(evidence), list(job_ids), actor, data])
    stopping = [row["job_id"] for row in rows]
    events.changed("stops", stopping)
    return stopping


def preempt(job_id: int, victims: Sequence[int], evidence: dict[str, Any]) -> list[int] | None:
    """Stop the victims of a preemption. Return the ids stopped, or None, and stop none, if the job is no longer
    pending. Neither tenant learns which jobs of the other were involved."""
    sql = "SELECT id, state, tenant_id FROM jobs_job WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"
    rows = {row["id"]: row for row in query(sql, [sorted({job_id, *victims})])}
    job = rows.pop(job_id, None)
    if job is None or job["state"] != JobState.PENDING:
        return None
    same_tenant = [row["id"] for row in rows.values() if row["tenant_id"] == job["tenant_id"]]
    stopped = stop(same_tenant, EndReason.PREEMPTED, evidence, "scheduler")
    other_stopped = stop(sorted({*rows} - {*same_tenant}), EndReason.PREEMPTED, redact_preemptor(evidence), "scheduler")
    data = {"victims": stopped, "of_other_tenants": len(other_stopped), "rule": evidence["rule"]}
    _record([job_id], "preempting", "scheduler", data)
    return [*stopped, *other_stopped]


def override_stop(job_id: int, reason: EndReason, evidence: dict[str, Any], actor: str) -> bool:
    """Replace the reason of a stopping job by a stronger one: a cancel wins over a requeue or a failed rank."""
    changed = execute(
        "UPDATE jobs_job SET stop_reason = %s, stop_evidence = %s::jsonb"
        " WHERE id = %s AND state = 'stopping' AND stop_reason <> %s",
        [reason, as_json(evidence), job_id, reason],
    )
    if changed:
        _record([job_id], "stopping", actor, {"reason": reason, **evidence})
    return bool(changed)


def cancel_waiting(job_ids: Sequence[int], evidence: dict[str, Any], actor: str) -> list[int]:
    """Move pending and held jobs to cancelled, and the jobs that can never start without them. Return the ids moved."""
    evidence_of = dict.fromkeys(job_ids, evidence)
    cancelled = _move_waiting(evidence_of, ("pending", "held"), "cancelled", EndReason.CANCELLED, actor, "cancelled")
    resolve_dependents(dict.fromkeys(cancelled, JobState.CANCELLED))
    return cancelled


def hold(job_ids: Sequence[int], reason: Pending, actor: str) -> list[int]:
    """Move pending jobs to held. An admin's hold replaces a user's. Return the ids that moved."""
    old = ("pending", "held") if reason == Pending.HELD_BY_ADMIN else ("pending",)
    return _move_waiting(dict.fromkeys(job_ids, _NO_EVIDENCE), old, "held", reason, actor, "held")


def release(job_ids: Sequence[int], reasons: Sequence[Pending], actor: str) -> list[int]:
    """Move jobs held for one of `reasons` to pending, with their queue time. Return the ids that moved."""
    sql = "SELECT id FROM jobs_job WHERE id = ANY(%s) AND state = 'held' AND reason = ANY(%s) FOR NO KEY UPDATE"
    held_ids = [row["id"] for row in query(sql, [list(job_ids), list(reasons)])]
    evidence_of = dict.fromkeys(held_ids, _NO_EVIDENCE)
    released = _move_waiting(evidence_of, ("held",), "pending", Pending.SCHEDULER_BEHIND, actor, "released")
    dependencies.refresh(released)
    return released


_RETRIED = f"""reason = '{Pending.SCHEDULER_BEHIND}', evidence = '{{}}', reason_since = now(), ended_at = NULL,
    started_at = NULL, exit_code = NULL, signal = NULL, retries_used = 0, memory_retries = 0,
    eligible_at = not_before"""
_RETRY_JOB = move_sql("'pending'", _RETRIED, "id = %s AND state = ANY(%s)")
_RETRY_ELEMENTS = move_sql(
    "'pending'", _RETRIED, "array_id = %s AND array_index <@ %s::int4multirange AND state = ANY(%s)"
)
_RETRIED_EVENT = insert_sql("'retried'", "moved", actor="%s")


def retry(job_id: int, states: Sequence[str], actor: str) -> None:
    """Move a job that ended in one of `states` to pending, with its queue time, `not_before` and all its retries."""
    execute(f"WITH moved AS ({_RETRY_JOB}) {_RETRIED_EVENT}", [job_id, list(states), actor])


def retry_elements(array_id: int, chosen: str, states: Sequence[str], actor: str) -> list[int]:
    """Do the same for the `chosen` elements (PostgreSQL's text of a multirange) of an array. Return the ids moved."""
    sql = f"WITH moved AS ({_RETRY_ELEMENTS}) {_RETRIED_EVENT} RETURNING job_id"
    return [row["job_id"] for row in query(sql, [array_id, chosen, list(states), actor])]


_MOVE_WAITING_JOBS = move_sql(
    "%s",
    """reason = %s, evidence = m.evidence, reason_since = now(), ended_at = CASE WHEN %s THEN clock_timestamp() END,
       array_cancelled = CASE WHEN %s THEN array_cancelled + array_waiting ELSE array_cancelled END,
       array_waiting = CASE WHEN %s THEN array_waiting - array_waiting ELSE array_waiting END""",
    "j.id = m.id AND j.state = ANY(%s)",
    source="unnest(%s::bigint[], %s::jsonb[]) AS m (id, evidence)",
    returning="j.id, j.attempt, j.evidence",
)
_MOVED_WAITING = insert_sql("%s", "moved", actor="%s", data="jsonb_build_object('reason', %s::text) || evidence")


def _move_waiting(
    jobs: Mapping[int, dict[str, Any]], old: Sequence[str], new: str, reason: str, actor: str, kind: str
) -> list[int]:
    """Move the jobs in one of the `old` states, each with its own evidence. Return the ids that moved."""
    if not jobs:
        return []
    rows = query(
        f"WITH moved AS ({_MOVE_WAITING_JOBS}) {_MOVED_WAITING} RETURNING job_id",
        [
            new, reason, *[new in FINAL] * 3,
            *columns([(job_id, as_json(evidence)) for job_id, evidence in jobs.items()], 2), list(old), kind, actor,
            reason,
        ],
    )  # fmt: skip
    return [row["job_id"] for row in rows]


# --- end --------------------------------------------------------------------------------------------------------------

_END_JOBS = move_sql(
    "e.state",
    """reason = e.reason, evidence = e.evidence, reason_since = now(), stop_reason = '', stop_evidence = '{}',
       retries_used = e.retries_used, eligible_at = e.eligible_at,
       gpu_memory_mb = coalesce(e.gpu_memory_mb, j.gpu_memory_mb),
       memory_retries = j.memory_retries + CASE WHEN e.gpu_memory_mb IS NULL THEN 0 ELSE 1 END,
       ended_at = CASE WHEN e.state = 'pending' THEN NULL ELSE greatest(e.ended_at, j.started_at) END,
       started_at = CASE WHEN e.state = 'pending' THEN NULL ELSE j.started_at END,
       exit_code = CASE WHEN e.state = 'pending' THEN NULL ELSE e.exit_code END,
       signal = CASE WHEN e.state = 'pending' THEN NULL ELSE e.signal END""",
    "j.id = e.job_id AND j.attempt = e.attempt AND j.state IN ('scheduled', 'running', 'stopping')",
    source="ends e",
    returning="j.id, j.state",
)
_FINISH = f"""
    WITH ends AS (
        SELECT * FROM unnest(%s::bigint[], %s::int[], %s::text[], %s::text[], %s::jsonb[], %s::int[],
                             %s::timestamptz[], %s::timestamptz[], %s::int[], %s::int[], %s::int[])
            AS e (job_id, attempt, state, reason, evidence, retries_used, eligible_at, ended_at, exit_code, signal,
                  gpu_memory_mb))
    {_END_JOBS}
"""
_END_ATTEMPT = """
    UPDATE jobs_attempt a
       SET ended_at = greatest(e.ended_at, coalesce(a.started_at, a.scheduled_at)), reason = e.reason,
           evidence = e.evidence, exit_code = e.exit_code, signal = e.signal
      FROM unnest(%s::bigint[], %s::int[], %s::timestamptz[], %s::text[], %s::jsonb[], %s::int[], %s::int[])
           AS e (job_id, number, ended_at, reason, evidence, exit_code, signal)
     WHERE a.job_id = e.job_id AND a.number = e.number AND a.ended_at IS NULL
"""
_TO_END = """
    SELECT id, attempt, array_id, state, stop_reason, stop_evidence, retries_used, max_retries, retry_on, requeue,
           gpu_memory_mb, gpu_models, gpu_sharing, gpu_memory_auto IS NOT NULL AS is_memory_auto, memory_retries,
           max_runtime_seconds, clock_timestamp() AS now
      FROM jobs_job WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE
"""


def finish(outcomes: Sequence[AttemptOutcome]) -> dict[int, str]:
    """End attempts and move their jobs to the next state. Return {job_id: new state} of the jobs that moved.

    An outcome of an attempt that is not the job's current one changes nothing."""
    jobs = {row["id"]: row for row in prepared(_TO_END, [[o.job_id for o in outcomes]])}
    current = [
        with_job_facts(o, jobs[o.job_id])
        for o in outcomes
        if o.job_id in jobs and jobs[o.job_id]["attempt"] == o.attempt
    ]
    jobs |= {o.job_id: with_undone_order(jobs[o.job_id], o) for o in current}
    streaks = fault_streaks(current)
    current, raised = memory_retry.with_memory(current, jobs)
    nexts = [
        (o, next_state(jobs[o.job_id], o, streaks.get(o.job_id, NO_STREAK), raised.get(o.job_id))) for o in current
    ]
    ends = [
        (o.job_id, o.attempt, n.state, n.reason, as_json(n.evidence), n.retries_used, n.eligible_at, o.ended_at,
         o.exit_code, o.signal, n.gpu_memory_mb)
        for o, n in nexts
    ]  # fmt: skip
    attempts = [
        (o.job_id, o.attempt, o.ended_at, o.reason, as_json(_end_evidence(o, jobs[o.job_id])), o.exit_code, o.signal)
        for o in current
    ]
    prepared(_END_ATTEMPT, columns(attempts, 7))
    moved = {row["id"]: row["state"] for row in prepared(_FINISH, columns(ends, 11))}
    _end_events([(replace(o, evidence=_end_evidence(o, jobs[o.job_id])), n) for o, n in nexts if o.job_id in moved])
    _hold_with_arrays([job_id for job_id, state in moved.items() if state not in FINAL and jobs[job_id]["array_id"]])
    resolve_dependents({job_id: state for job_id, state in moved.items() if state in FINAL})
    return moved


_HELD_ARRAYS = """
    SELECT e.id, a.reason FROM jobs_job e JOIN jobs_job a ON a.id = e.array_id WHERE e.id = ANY(%s) AND a.state = 'held'
"""


def _hold_with_arrays(element_ids: Sequence[int]) -> None:
    """Hold those elements, which have returned to the queue, whose array is held: it was held while they ran."""
    for row in query(_HELD_ARRAYS, [list(element_ids)]) if element_ids else []:
        hold([row["id"]], Pending(row["reason"]), "")


def resolve_dependents(ended: Mapping[int, str]) -> None:
    """Release the jobs that waited for ended ones ({id: final state}), and cancel those that can never start, with all
    their dependents, in a few statements however long the chain is."""
    # Repeats for the cancelled jobs, which are locked now: a submit may have named one of them meanwhile.
    while ended:
        eased, impossible = dependencies.resolve(ended)
        dependencies.refresh(eased)
        lost = _move_waiting(impossible, ("pending", "held"), "cancelled", EndReason.DEPENDENCY_FAILED, "", "cancelled")
        events.changed("jobs", lost)
        ended = dict.fromkeys(lost, JobState.CANCELLED)


def _end_evidence(outcome: AttemptOutcome, job: dict[str, Any]) -> dict[str, Any]:
    """Return the agent's evidence of the end, with that of the stop if the attempt was stopped."""
    was_ordered = outcome.reason == job["stop_reason"]
    return {**outcome.evidence, **job["stop_evidence"]} if was_ordered else outcome.evidence


_END_EVENTS = insert_sql(
    "e.kind",
    """unnest(%s::bigint[], %s::timestamptz[], %s::text[], %s::int[], %s::jsonb[])
       WITH ORDINALITY AS e (job_id, at, kind, attempt, data, n) ORDER BY e.n""",
    job="e.job_id",
    at="coalesce(e.at, clock_timestamp())",
    attempt="e.attempt",
    data="e.data",
)


def _end_events(ended: Sequence[tuple[AttemptOutcome, Transition]]) -> None:
    rows: list[tuple[Any, ...]] = []
    for outcome, following in ended:
        data = {"reason": outcome.reason, "exit_code": outcome.exit_code, "signal": outcome.signal, **outcome.evidence}
        rows.append((outcome.job_id, outcome.ended_at, "ended", outcome.attempt, as_json(data)))
        if following.state == JobState.PENDING:
            note = {"reason": following.reason, **following.evidence}
            rows.append((outcome.job_id, None, "requeued", outcome.attempt, as_json(note)))
    prepared(_END_EVENTS, columns(rows, 5))


def _record(job_ids: Sequence[int], kind: str, actor: str, data: dict[str, Any]) -> None:
    record_event(job_ids, kind, actor, data)
    events.changed("jobs", job_ids)


# The first start of an element is that of its array.
_LOCK_JOBS = """
    SELECT id FROM jobs_job
     WHERE id = ANY(%(ids)s || ARRAY(SELECT a.id FROM jobs_job e JOIN jobs_job a ON a.id = e.array_id
                                      WHERE e.id = ANY(%(ids)s) AND a.started_at IS NULL))
     ORDER BY id FOR NO KEY UPDATE
"""


def lock_jobs(ids: Sequence[int]) -> None:
    """Lock jobs in one order, before any other table: two transactions that do so cannot deadlock. Lock arrays that
    have not started with their elements, and before them, as actions on arrays do."""
    prepared(_LOCK_JOBS, {"ids": sorted(set(ids))})
