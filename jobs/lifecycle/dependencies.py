"""Dependencies of waiting jobs on the ends of others: rows until resolved, and counted in the dependent job.

The transaction that submits or ends a job does all the work, so no cycle polls and no end is missed: a submit locks the
jobs that it names against ending meanwhile, and an end then reads which jobs name it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpusched.lib.api.problems import Problem, not_found
from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import columns, execute, query
from gpusched.protocol.dependencies import ENDED_AS, After, Dependency, is_met
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import JobState
from jobs.events.record import insert_sql


class DependencyEdge(NamedTuple):
    """Job `job_id` waits for the end of job `on` that `kind` requires."""

    job_id: int
    on: int
    kind: str


class Resolution(NamedTuple):
    """The consequences of jobs' ends: jobs with fewer open dependencies, and jobs that can never start, directly or
    through others, with the evidence."""

    eased: list[int]
    impossible: dict[int, dict[str, Any]]


def states_of(job_ids: Iterable[int | str], *, is_locked: bool = True) -> dict[int | str, tuple[int, str]]:
    """Return {id: (tenant, state)} of the existing jobs. `is_locked`: lock them until the end of the transaction."""
    ids = [job_id for job_id in job_ids if isinstance(job_id, int)]
    lock = "FOR SHARE" if is_locked else ""
    rows = query(f"SELECT id, tenant_id, state FROM jobs_job WHERE id = ANY(%s) ORDER BY id {lock}", [ids])
    return {row["id"]: (row["tenant_id"], row["state"]) for row in rows}


def unresolved(
    requested: Iterable[Dependency], tenant_id: int, states: Mapping[int | str, tuple[int, str]]
) -> list[Dependency]:
    """Return the dependencies that a new job must wait for; `states` as `states_of` returns them. 404 for another
    tenant's job as for a missing one; 422 if a job ended in a state in which the new one can never start."""
    waits_for = []
    for dependency in requested:
        owner, state = states.get(dependency.job, (None, ""))
        if owner != tenant_id:
            raise _not_found(dependency.job)
        met = is_met(dependency.kind, state)
        if met is False:
            raise _impossible(dependency, state)
        if met is None:
            waits_for.append(dependency)
    return waits_for


def mark_waiting(row: dict[str, Any], unresolved: Sequence[Dependency]) -> None:
    """Change the row of a new job to one that waits for these dependencies."""
    if unresolved:
        evidence = _evidence(len(unresolved), min(int(dependency.job) for dependency in unresolved))
        row.update(open_dependencies=len(unresolved), reason=Pending.DEPENDENCY, evidence=evidence)


def evidence_of(job_id: int) -> dict[str, Any] | None:
    """Return the evidence of the reason `dependency` for a job, also while it is held; None if it waits for no job."""
    [row] = query("SELECT count(*)::int AS n, min(on_id) AS first FROM jobs_dependency WHERE job_id = %s", [job_id])
    return _evidence(row["n"], row["first"]) if row["n"] else None


# Without statistics of the table, each step of a recursion may scan it: both read at most 100 jobs.
_HELD_BEFORE = """
    WITH RECURSIVE before AS (
        SELECT on_id AS id FROM jobs_dependency WHERE job_id = %s
         UNION SELECT d.on_id FROM before b JOIN jobs_dependency d ON d.job_id = b.id)
    SELECT h.id AS held, h.reason AS held_by FROM (SELECT id FROM before LIMIT 100) b JOIN jobs_job h ON h.id = b.id
     WHERE h.state = 'held' ORDER BY h.id LIMIT 1
"""
_WAITING_FOR = """
    WITH RECURSIVE after AS (
        SELECT job_id FROM jobs_dependency WHERE on_id = %s
         UNION SELECT d.job_id FROM after a JOIN jobs_dependency d ON d.on_id = a.job_id)
    SELECT job_id FROM after LIMIT 100
"""


def held_before(job_id: int) -> dict[str, Any]:
    """Return the first held job among those that a job waits for, directly or through others, as `held`, and the reason
    of its hold as `held_by`; empty if there is none. It is a query for each job: too much for lists."""
    return next(iter(query(_HELD_BEFORE, [job_id])), {})


def waiting_for(job_id: int) -> list[int]:
    """Return the jobs that wait for a job, directly or through others: their next step changes when it is held or
    released."""
    return [row["job_id"] for row in query(_WAITING_FOR, [job_id])]


def write(edges: Sequence[DependencyEdge]) -> None:
    """Store the dependencies of new jobs, in the transaction that inserts them."""
    execute(
        "INSERT INTO jobs_dependency (job_id, on_id, kind)"
        " SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::text[])",
        columns(edges, 3),
    )


def resolve(ended: Mapping[int, str]) -> Resolution:
    """Delete the dependencies on jobs that have ended ({id: final state}). Return the consequences."""
    rows = query(
        "DELETE FROM jobs_dependency d USING unnest(%s::bigint[], %s::text[]) AS e (id, state) WHERE d.on_id = e.id"
        " RETURNING d.job_id, d.on_id, d.kind, e.state",
        columns(list(ended.items()), 2),
    )
    lost = [row for row in sorted(rows, key=_on, reverse=True) if not is_met(row["kind"], row["state"])]
    impossible = {row["job_id"]: _lost_evidence(row["on_id"], row["kind"], row["state"]) for row in lost}
    eased = {row["job_id"] for row in rows} - impossible.keys()
    for row in _dependents_of_lost(list(impossible)) if impossible else []:
        impossible.setdefault(row["job_id"], _lost_evidence(row["on_id"], row["kind"], JobState.CANCELLED))
    return Resolution(sorted(eased - impossible.keys()), impossible)


_NOT_AFTER_CANCEL = [str(kind) for kind in After if not is_met(kind, JobState.CANCELLED)]
_DIRECT_DEPENDENTS = """
    SELECT d.job_id, d.on_id, d.kind FROM jobs_dependency d WHERE d.on_id = l.id AND d.kind = ANY(%(kinds)s) OFFSET 0
"""
_DEPENDENTS_OF_LOST = f"""
    WITH RECURSIVE lost AS (
        SELECT id FROM unnest(%(ids)s::bigint[]) AS i (id)
         UNION SELECT n.job_id FROM lost l CROSS JOIN LATERAL ({_DIRECT_DEPENDENTS}) n)
    SELECT n.* FROM lost l CROSS JOIN LATERAL ({_DIRECT_DEPENDENTS}) n ORDER BY n.job_id, n.on_id
"""


def _dependents_of_lost(job_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return the edges of all jobs that depend, directly or through others, on these completing.

    A chain of 10,000 jobs takes 10,000 iterations, so each must use the index, even if statistics suggest a scan."""
    execute("SET LOCAL enable_seqscan = off")
    edges = query(_DEPENDENTS_OF_LOST, {"ids": list(job_ids), "kinds": _NOT_AFTER_CANCEL})
    execute("SET LOCAL enable_seqscan = on")
    return edges


def reinstate(job_id: int, tenant_id: int) -> None:
    """Store the unresolved dependencies of a retried job that ended before they were resolved. 422 if it can never
    start, or if retention has deleted a job on whose end that depends. Resolved dependencies stay resolved."""
    sql = "SELECT depends_on FROM jobs_job WHERE id = %s AND open_dependencies > 0"
    for row in query(sql, [job_id]):
        requested = [Dependency(job=item["job"], kind=After(item["kind"])) for item in row["depends_on"]]
        states = states_of([dependency.job for dependency in requested])
        deleted = [dependency for dependency in requested if dependency.job not in states]
        for dependency in deleted:
            if dependency.kind != After.ANY:
                raise _unknown_end(dependency)
        remaining = unresolved([each for each in requested if each not in deleted], tenant_id, states)
        execute("DELETE FROM jobs_dependency WHERE job_id = %s", [job_id])
        write([DependencyEdge(job_id, int(dependency.job), dependency.kind) for dependency in remaining])
        refresh([job_id])


def refresh(job_ids: Sequence[int]) -> None:
    """Recount the open dependencies of waiting jobs and update their reasons. A job without any is eligible now."""
    if not job_ids:
        return
    # Lock, then count: the count must see the rows that other transactions deleted while this one waited.
    query("SELECT id FROM jobs_job WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE", [list(job_ids)])
    rows = query(_REFRESH, [list(job_ids)])
    if rows:
        events.changed("jobs", [row["id"] for row in rows])
        wake.request_cycle()


_ELIGIBLE = insert_sql("'eligible'", "moved WHERE n = 0")
_REFRESH = f"""
    WITH moved AS (
        UPDATE jobs_job j
           SET open_dependencies = c.n,
               reason = CASE WHEN j.state = 'held' THEN j.reason WHEN c.n = 0 THEN '{Pending.SCHEDULER_BEHIND}'
                             ELSE '{Pending.DEPENDENCY}' END,
               evidence = CASE WHEN j.state = 'held' THEN j.evidence WHEN c.n = 0 THEN '{{}}'
                               ELSE jsonb_build_object('on', CASE WHEN c.n = 1 THEN 'job ' || c.first
                                                                  ELSE c.n || ' jobs, job ' || c.first || ' first' END,
                                                       'jobs', c.n, 'first', c.first) END,
               reason_since = CASE WHEN j.state = 'held' OR (c.n > 0 AND j.reason = '{Pending.DEPENDENCY}')
                                   THEN j.reason_since ELSE now() END,
               eligible_at = CASE WHEN c.n = 0 THEN greatest(j.eligible_at, now()) ELSE j.eligible_at END
          FROM (SELECT w.id, count(d.on_id)::int AS n, min(d.on_id) AS first
                  FROM unnest(%s::bigint[]) AS w (id) LEFT JOIN jobs_dependency d ON d.job_id = w.id GROUP BY w.id) c
         WHERE j.id = c.id AND j.state IN ('pending', 'held') AND j.open_dependencies > 0
        RETURNING j.id, j.attempt, c.n),
    event AS ({_ELIGIBLE})
    SELECT id FROM moved
"""


def _lost_evidence(on: int, kind: str, state: str) -> dict[str, Any]:
    """Return the evidence for a job that can never start because job `on` ended in `state`."""
    return {"on": on, "wanted": ENDED_AS[After(kind)], "ended": state}


def _on(row: dict[str, Any]) -> int:
    return int(row["on_id"])


def _evidence(number: int, first: int) -> dict[str, Any]:
    """Return the same evidence as _REFRESH."""
    phrase = f"job {first}" if number == 1 else f"{number} jobs, job {first} first"
    return {"on": phrase, "jobs": number, "first": first}


def _not_found(job: int | str) -> Problem:
    problem = not_found(f"job {job} of this tenant")
    return Problem(
        404,
        problem.code,
        problem.detail,
        next_step=problem.next_step,
        errors=[FieldError("depends_on", problem.code, problem.detail)],
    )


def _unknown_end(dependency: Dependency) -> Problem:
    message = f"cannot be retried: job {dependency.job}, on which it depends, was deleted some days after its end"
    step = "submit it again without this dependency"
    return Problem(422, "dependency_failed", message, next_step=step)


def _impossible(dependency: Dependency, state: str) -> Problem:
    condition = f"only if that {ENDED_AS[dependency.kind]}"
    message = f"can never start: job {dependency.job} is {state}, and it was to start {condition}"
    return Problem(
        422,
        "dependency_failed",
        message,
        next_step="leave the dependency out, or run that job again first",
        errors=[FieldError("depends_on", "dependency_failed", message)],
    )
