"""What people do to arrays, to all of their elements or a part: cancel, hold, release, retry. The array is locked."""

from collections.abc import Sequence
from typing import Any

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.bus import events
from gpusched.lib.db.sql import as_json, execute, query
from gpusched.protocol import arrays
from gpusched.protocol.arrays import Ranges
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.reasons import EndReason, Pending
from gpusched.protocol.states import FINAL, LIVE, WAITING, JobState
from jobs.actions.retry import retry as again
from jobs.arrays.materialize import UNFINISHED, clear_reason, end_arrays
from jobs.lifecycle import dependencies
from jobs.lifecycle import states as transitions

Row = dict[str, Any]
FAILED = "failed"
ALL = "{(,)}"  # as PostgreSQL writes the set of all numbers
_SEE = "see its state"


def cancel(array: Row, elements: str | None, actor: str) -> str:
    """Of these elements (None: of all) ends those that wait, and stops those that are live."""
    numbers, array_id, by = _numbers(array, elements), array["id"], {"by": actor}
    if array["state"] in FINAL:
        return f"array {array_id} had already ended: {array['state']}"
    chosen = ALL if numbers is None else arrays.multirange(numbers)
    never = _cancel_waiting(array_id, chosen)
    found = _locked(array_id, chosen, UNFINISHED)
    waiting = [row["id"] for row in found if row["state"] in WAITING]
    live = [row["id"] for row in found if row["state"] in LIVE]
    transitions.cancel_waiting(waiting, by, actor)
    stopped = len(transitions.stop(live, EndReason.CANCELLED, by, actor))
    for one in found:
        if one["state"] == JobState.STOPPING:
            stopped += transitions.override_stop(one["id"], EndReason.CANCELLED, by, actor)
    ended = never + len(waiting)
    told = {"reason": EndReason.CANCELLED, **by, **_named(numbers), "cancelled": ended, "stopped": stopped}
    if numbers is not None:
        if ended or stopped:
            _tell(array_id, "part_cancelled", actor, told)
    elif execute(_STOPPING, [EndReason.CANCELLED, as_json(by), array_id]):
        _tell(array_id, "stopping", actor, told)
    else:
        transitions.cancel_waiting([array_id], by, actor)  # of one that waits for other jobs nothing is to be stopped
    clear_reason([array_id])
    end_arrays([array_id])
    events.changed("jobs", [array_id, *waiting, *live])
    return f"array {array_id}: {_counted(ended, 'cancelled')}, {_counted(len(live), 'being stopped')}"


_STOPPING = """
    UPDATE jobs_job SET state = 'stopping', stop_reason = %s, stop_evidence = %s::jsonb, reason = '', evidence = '{}',
           reason_since = now() WHERE id = %s AND state <> 'stopping' AND open_dependencies = 0
"""


def _cancel_waiting(array_id: int, chosen: str) -> int:
    """How many of them will never be jobs now."""
    [row] = query(
        """UPDATE jobs_job a SET array_waiting = o.array_waiting - o.chosen,
                  array_cancelled = o.array_cancelled + o.array_waiting * o.chosen
             FROM (SELECT id, array_waiting, array_cancelled, %s::int4multirange AS chosen FROM jobs_job
                    WHERE id = %s) o
            WHERE a.id = o.id RETURNING jobs_numbers(o.array_waiting * o.chosen) AS n""",
        [chosen, array_id],
    )
    return int(row["n"])


def hold(array: Row, reason: Pending, actor: str) -> str:
    """Keeps what waits from starting; what is live goes on. The hold of an admin takes the place of a user's."""
    if array["state"] not in (JobState.PENDING, JobState.RUNNING, JobState.HELD):
        raise _wrong_state(array, "only an array of which some wait can be held")
    waiting = [row["id"] for row in _locked(array["id"], ALL, "('pending', 'held')")]
    waiting = transitions.hold(waiting, reason, actor)
    [row] = query(
        "UPDATE jobs_job SET state = 'held', reason = %s, evidence = '{}', reason_since = now() WHERE id = %s"
        " RETURNING jobs_numbers(array_waiting) AS n",
        [reason, array["id"]],
    )
    _tell(array["id"], "held", actor, {"reason": reason})
    events.changed("jobs", waiting)
    return f"array {array['id']}: {_counted(row['n'] + len(waiting), 'held')}"


def release(array: Row, reasons: Sequence[Pending], actor: str) -> bool:
    """Lets what was held for one of `reasons` wait for its turn again."""
    rows = query(_RELEASE, [array["id"], list(reasons)])
    if rows:
        held = [row["id"] for row in _locked(array["id"], ALL, "('held')")]
        transitions.release(held, reasons, actor)
        _tell(array["id"], "released", actor, {})
        clear_reason([array["id"]])
        dependencies.refresh([array["id"]])
        events.changed("jobs", held)
    return bool(rows)


# Of an array a that is open: whether any of it was ever placed.
_OPEN = "CASE WHEN EXISTS (SELECT 1 FROM jobs_job e WHERE e.array_id = a.id) THEN 'running' ELSE 'pending' END"
_RELEASE = f"""
    UPDATE jobs_job a SET reason = '{Pending.SCHEDULER_BEHIND}', evidence = '{{}}', reason_since = now(),
           state = {_OPEN}
     WHERE id = %s AND state = 'held' AND reason = ANY(%s) RETURNING id
"""
_REOPEN = f"""
    UPDATE jobs_job a SET array_waiting = array_waiting + array_cancelled * %s::int4multirange,
           array_cancelled = array_cancelled - %s::int4multirange, ended_at = NULL,
           state = {_OPEN},
           reason = '{Pending.SCHEDULER_BEHIND}', evidence = '{{}}', reason_since = now()
     WHERE id = %s
"""

_LACKS_ELEMENTS = """
    SELECT 1 FROM jobs_job a WHERE a.id = %s
       AND a.array_count > jobs_numbers(a.array_waiting) + jobs_numbers(a.array_cancelled)
                           + (SELECT count(*) FROM jobs_job e WHERE e.array_id = a.id)
"""


def retry(array: Row, elements: str, actor: str) -> str:
    """Has these elements run again, each by another attempt: of `3-7,9` those that have ended, or all that `failed`."""
    numbers, array_id = None if elements == FAILED else _numbers(array, elements), array["id"]
    if array["state"] in (JobState.HELD, JobState.STOPPING):
        raise _wrong_state(array, "elements of a held array, or of one that is being stopped, cannot be retried")
    if array["state"] in FINAL and query(_LACKS_ELEMENTS, [array_id]):
        rule = f"elements of array {array_id} are deleted already, because their retention is over"
        raise Problem(409, "wrong_state", rule, next_step="submit it again")
    chosen = ALL if numbers is None else arrays.multirange(numbers)
    states = [JobState.FAILED, JobState.PREEMPTED]
    if numbers is not None:
        states += [JobState.COMPLETED, JobState.CANCELLED]
    ids = again("array_id = %s AND array_index <@ %s::int4multirange", [array_id, chosen], states, actor)
    never = "{}" if numbers is None else chosen
    sql = "SELECT jobs_numbers(array_cancelled * %s::int4multirange) AS n FROM jobs_job WHERE id = %s"
    [row] = query(sql, [never, array_id])
    total = len(ids) + int(row["n"])
    if not total:
        raise Problem(409, "wrong_state", f"none of these elements of array {array_id} has ended so", next_step=_SEE)
    execute(_REOPEN, [never, never, array_id])
    dependencies.decide_again(array_id, array["tenant_id"])
    clear_reason([array_id])
    _tell(array_id, "retried", actor, {**_named(numbers), "retried": total})
    events.changed("jobs", ids)
    return f"array {array_id}: {_counted(total, 'to run again')}"


def require_array(job: Row, elements: str | None) -> None:
    """Refuses to speak of the elements of a job that has none."""
    if elements is not None:
        raise invalid([FieldError("elements", "conflict", f"job {job['id']} is no array; leave it out")])


def _numbers(array: Row, elements: str | None) -> Ranges | None:
    try:
        return None if elements is None else arrays.parse_ranges(elements, array["array_count"])
    except ValueError as error:
        raise invalid([FieldError("elements", "invalid", str(error))]) from error


def _locked(array_id: int, chosen: str, states: str) -> list[Row]:
    """Those of the elements that are jobs in one of these states."""
    return query(
        "SELECT id, state FROM jobs_job WHERE array_id = %s AND array_index <@ %s::int4multirange"
        f" AND state IN {states} ORDER BY id FOR NO KEY UPDATE",
        [array_id, chosen],
    )


def _counted(number: int, what: str) -> str:
    return f"{number} element{' is' if number == 1 else 's are'} {what}"


def _named(numbers: Ranges | None) -> dict[str, str]:
    return {} if numbers is None else {"elements": arrays.format_ranges(numbers)[:1000]}


def _wrong_state(array: Row, rule: str) -> Problem:
    return Problem(409, "wrong_state", f"{rule}; array {array['id']} is {array['state']}", next_step=_SEE)


def _tell(array_id: int, kind: str, actor: str, data: Row) -> None:
    execute(
        "INSERT INTO jobs_jobevent (job_id, at, kind, attempt, actor, data)"
        " VALUES (%s, clock_timestamp(), %s, 0, %s, %s::jsonb)",
        [array_id, kind, actor, as_json(data)],
    )
