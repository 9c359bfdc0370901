"""Which waiting jobs wait for which jobs to end: kept as rows until decided, counted in the job that waits.

All is done in the transaction that submits or ends a job, so no cycle looks for it and no end is missed: a submit locks
the jobs that it names against ending meanwhile, and an end reads afterwards who has named them."""

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
    """Job `job_id` waits until job `on` ends as `kind` wants it."""

    job_id: int
    on: int
    kind: str


class Resolution(NamedTuple):
    """What follows when jobs have ended: which wait for less now, and which can never start now, with these all that
    wait for them to complete, and so on; each with the evidence."""

    nearer: list[int]
    never: dict[int, dict[str, Any]]


def states_of(job_ids: Iterable[int | str], *, is_locked: bool = True) -> dict[int | str, tuple[int, str]]:
    """(tenant, state) of those of the jobs that exist. `is_locked`: they stay so until the end of the transaction."""
    ids = [job_id for job_id in job_ids if isinstance(job_id, int)]
    lock = "FOR SHARE" if is_locked else ""
    rows = query(f"SELECT id, tenant_id, state FROM jobs_job WHERE id = ANY(%s) ORDER BY id {lock}", [ids])
    return {row["id"]: (row["tenant_id"], row["state"]) for row in rows}


def undecided(
    wanted: Iterable[Dependency], tenant_id: int, states: Mapping[int | str, tuple[int, str]]
) -> list[Dependency]:
    """Those of a new job's dependencies that it must wait for; `states` as `states_of` gives them. A job of another
    tenant is a 404 like one that does not exist; 422 if a job has ended so that the new one could never start."""
    found = []
    for one in wanted:
        owner, state = states.get(one.job, (None, ""))
        if owner != tenant_id:
            raise _not_found(one.job)
        met = is_met(one.kind, state)
        if met is False:
            raise _impossible(one, state)
        if met is None:
            found.append(one)
    return found


def mark_waiting(row: dict[str, Any], undecided: Sequence[Dependency]) -> None:
    """Makes the row of a new job that of one which waits for these."""
    if undecided:
        evidence = _evidence(len(undecided), min(int(one.job) for one in undecided))
        row.update(open_dependencies=len(undecided), reason=Pending.DEPENDENCY, evidence=evidence)


def write(edges: Sequence[DependencyEdge]) -> None:
    """Keeps what new jobs wait for, in the transaction that makes them."""
    execute(
        "INSERT INTO jobs_dependency (job_id, on_id, kind)"
        " SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::text[])",
        columns(edges, 3),
    )


def resolve(ended: Mapping[int, str]) -> Resolution:
    """Takes away what waited for jobs that have ended ({id: final state}), and says what follows."""
    rows = query(
        "DELETE FROM jobs_dependency d USING unnest(%s::bigint[], %s::text[]) AS e (id, state) WHERE d.on_id = e.id"
        " RETURNING d.job_id, d.on_id, d.kind, e.state",
        columns(list(ended.items()), 2),
    )
    lost = [row for row in sorted(rows, key=_on, reverse=True) if not is_met(row["kind"], row["state"])]
    never = {row["job_id"]: _lost_evidence(row["on_id"], row["kind"], row["state"]) for row in lost}
    nearer = {row["job_id"] for row in rows} - never.keys()
    for row in _dependents_of_lost(list(never)) if never else []:
        never.setdefault(row["job_id"], _lost_evidence(row["on_id"], row["kind"], JobState.CANCELLED))
    return Resolution(sorted(nearer - never.keys()), never)


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
    """Who waits for one of these to complete, for one of those, and so on: the edges.

    A line of ten thousand is ten thousand turns, each of which must go by the index, also where a thousand jobs after
    one have taught PostgreSQL that it is not worth it."""
    execute("SET LOCAL enable_seqscan = off")
    edges = query(_DEPENDENTS_OF_LOST, {"ids": list(job_ids), "kinds": _NOT_AFTER_CANCEL})
    execute("SET LOCAL enable_seqscan = on")
    return edges


def reinstate(job_id: int, tenant_id: int) -> None:
    """For a job that ended before what it depends on was decided, and is to wait again: waits for what is undecided
    now. 422 if it could never start. What was decided once stays so."""
    sql = "SELECT depends_on FROM jobs_job WHERE id = %s AND open_dependencies > 0"
    for row in query(sql, [job_id]):
        wanted = [Dependency(job=one["job"], kind=After(one["kind"])) for one in row["depends_on"]]
        left = undecided(wanted, tenant_id, states_of([one.job for one in wanted]))
        execute("DELETE FROM jobs_dependency WHERE job_id = %s", [job_id])
        write([DependencyEdge(job_id, int(one.job), one.kind) for one in left])
        refresh([job_id])


def refresh(job_ids: Sequence[int]) -> None:
    """Counts again what waiting jobs wait for, and says so in their reasons; who waits for nothing more is eligible
    from now on."""
    if not job_ids:
        return
    # Locked first, counted then: what another transaction took away while this one waited for it counts as well.
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
    """Of a job that can never start, since job `on` ended in `state`."""
    return {"on": on, "wanted": ENDED_AS[After(kind)], "ended": state}


def _on(row: dict[str, Any]) -> int:
    return int(row["on_id"])


def _evidence(number: int, first: int) -> dict[str, Any]:
    """The same as _REFRESH makes."""
    said = f"job {first}" if number == 1 else f"{number} jobs, job {first} first"
    return {"on": said, "jobs": number, "first": first}


def _not_found(job: int | str) -> Problem:
    problem = not_found(f"job {job} of this tenant")
    return Problem(
        404,
        problem.code,
        problem.detail,
        next_step=problem.next_step,
        errors=[FieldError("depends_on", problem.code, problem.detail)],
    )


def _impossible(one: Dependency, state: str) -> Problem:
    said = f"can never start: job {one.job} is {state}, and it was to start only if that {ENDED_AS[one.kind]}"
    return Problem(
        422,
        "dependency_failed",
        said,
        next_step="leave the dependency out, or run that job again first",
        errors=[FieldError("depends_on", "dependency_failed", said)],
    )
