"""Actions on arrays or some of their elements: cancel, hold, release, retry. The caller has locked the array."""

from collections.abc import Sequence

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.bus import events
from gpusched.lib.db.sql import Row, query
from gpusched.protocol import arrays
from gpusched.protocol.arrays import Ranges
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.reasons import EndReason, Pending
from gpusched.protocol.states import FINAL, LIVE, WAITING, JobState
from jobs.arrays.materialize import end_arrays
from jobs.events.record import record_event
from jobs.lifecycle import array_states, dependencies, states
from jobs.lifecycle.array_states import UNFINISHED, clear_reason

ALL_FAILED = "failed"
ALL_NUMBERS = "{(,)}"  # PostgreSQL's multirange of all numbers
_NEXT_STEP = "see its state"


def cancel(array: Row, elements: str | None, actor: str) -> str:
    """Cancel the waiting ones of these elements (None: all), and stop the live ones."""
    numbers, array_id, by = _parse_elements(array, elements), array["id"], {"by": actor}
    if array["state"] in FINAL:
        return f"array {array_id} had already ended: {array['state']}"
    chosen = ALL_NUMBERS if numbers is None else arrays.multirange(numbers)
    cancelled = array_states.cancel_waiting(array_id, chosen)
    rows = _lock_elements(array_id, chosen, UNFINISHED)
    waiting = [row["id"] for row in rows if row["state"] in WAITING]
    live = [row["id"] for row in rows if row["state"] in LIVE]
    states.cancel_waiting(waiting, by, actor)
    stopped = len(states.stop(live, EndReason.CANCELLED, by, actor))
    for row in rows:
        if row["state"] == JobState.STOPPING:
            stopped += states.override_stop(row["id"], EndReason.CANCELLED, by, actor)
    ended = cancelled + len(waiting)
    data = {"reason": EndReason.CANCELLED, **by, **_named_elements(numbers), "cancelled": ended, "stopped": stopped}
    if numbers is not None:
        if ended or stopped:
            record_event([array_id], "part_cancelled", actor, data)
    elif array_states.stop(array_id, EndReason.CANCELLED, by):
        record_event([array_id], "stopping", actor, data)
    else:
        states.cancel_waiting([array_id], by, actor)  # an array that waits for other jobs has nothing to stop
    clear_reason([array_id])
    end_arrays([array_id])
    events.changed("jobs", [array_id, *waiting, *live])
    return f"array {array_id}: {_count_sentence(ended, 'cancelled')}, {_count_sentence(len(live), 'being stopped')}"


def hold(array: Row, reason: Pending, actor: str) -> str:
    """Keep waiting elements from starting; live ones continue, and are held if they return to the queue. An admin's
    hold replaces a user's."""
    if array["state"] not in (JobState.PENDING, JobState.RUNNING, JobState.HELD):
        raise _wrong_state(array, "only an array with waiting elements can be held")
    # Locks the live ones, too: one whose attempt ends at this moment waits here, or is held by its end.
    unfinished = [row["id"] for row in _lock_elements(array["id"], ALL_NUMBERS, UNFINISHED)]
    waiting = states.hold(unfinished, reason, actor)
    number = array_states.hold(array["id"], reason) + len(waiting)
    record_event([array["id"]], "held", actor, {"reason": reason})
    events.changed("jobs", waiting)
    return f"array {array['id']}: {_count_sentence(number, 'held')}"


def release(array: Row, reasons: Sequence[Pending], actor: str) -> bool:
    """Let an array that is held for one of `reasons` wait again. Return whether it was."""
    is_released = array_states.release(array["id"], reasons)
    if is_released:
        held_ids = [row["id"] for row in _lock_elements(array["id"], ALL_NUMBERS, "('held')")]
        states.release(held_ids, reasons, actor)
        record_event([array["id"]], "released", actor, {})
        clear_reason([array["id"]])
        dependencies.refresh([array["id"]])
        events.changed("jobs", held_ids)
    return is_released


_LACKS_ELEMENTS = """
    SELECT 1 FROM jobs_job a WHERE a.id = %s
       AND a.array_count > jobs_numbers(a.array_waiting) + jobs_numbers(a.array_cancelled)
                           + (SELECT count(*) FROM jobs_job e WHERE e.array_id = a.id)
"""


def retry(array: Row, elements: str, actor: str) -> str:
    """Rerun elements as new attempts: the ended ones of `3-7,9`, or all that `failed`."""
    numbers, array_id = None if elements == ALL_FAILED else _parse_elements(array, elements), array["id"]
    if array["state"] in (JobState.HELD, JobState.STOPPING):
        raise _wrong_state(array, "elements of a held or stopping array cannot be retried")
    if array["state"] in FINAL and query(_LACKS_ELEMENTS, [array_id]):
        rule = f"elements of array {array_id} are already deleted, because their retention is over"
        raise Problem(409, "wrong_state", rule, next_step="submit it again")
    chosen = ALL_NUMBERS if numbers is None else arrays.multirange(numbers)
    retriable = [JobState.FAILED, JobState.PREEMPTED]
    if numbers is not None:
        retriable += [JobState.COMPLETED, JobState.CANCELLED]
    ids = states.retry_elements(array_id, chosen, retriable, actor)
    reopened = "{}" if numbers is None else chosen
    sql = "SELECT jobs_numbers(array_cancelled * %s::int4multirange) AS n FROM jobs_job WHERE id = %s"
    [row] = query(sql, [reopened, array_id])
    total = len(ids) + int(row["n"])
    if not total:
        rule = f"none of these elements of array {array_id} has ended in a state that can be retried"
        raise Problem(409, "wrong_state", rule, next_step=_NEXT_STEP)
    array_states.reopen(array_id, reopened)
    dependencies.reinstate(array_id, array["tenant_id"])
    clear_reason([array_id])
    record_event([array_id], "retried", actor, {**_named_elements(numbers), "retried": total})
    events.changed("jobs", ids)
    return f"array {array_id}: {_count_sentence(total, 'to run again')}"


def require_array(job: Row, elements: str | None) -> None:
    """Raise 400 for `elements` of a job that is no array."""
    if elements is not None:
        raise invalid([FieldError("elements", "conflict", f"job {job['id']} is not an array; leave it out")])


def require_no_array(job_id: int, job: Row, next_step: str) -> None:
    """Raise 409 for an array, in whose place its elements run."""
    if job["array_count"] is not None:
        detail = f"job {job_id} is an array, which does not run itself"
        raise Problem(409, "wrong_state", detail, next_step=next_step)


def _parse_elements(array: Row, elements: str | None) -> Ranges | None:
    try:
        return None if elements is None else arrays.parse_ranges(elements, array["array_count"])
    except ValueError as error:
        raise invalid([FieldError("elements", "invalid", str(error))]) from error


def _lock_elements(array_id: int, chosen: str, in_states: str) -> list[Row]:
    """Lock the `chosen` elements that are jobs in one of these states."""
    return query(
        "SELECT id, state FROM jobs_job WHERE array_id = %s AND array_index <@ %s::int4multirange"
        f" AND state IN {in_states} ORDER BY id FOR NO KEY UPDATE",
        [array_id, chosen],
    )


def _count_sentence(number: int, outcome: str) -> str:
    return f"{number} element{' is' if number == 1 else 's are'} {outcome}"


def _named_elements(numbers: Ranges | None) -> dict[str, str]:
    return {} if numbers is None else {"elements": arrays.format_ranges(numbers)[:1000]}


def _wrong_state(array: Row, rule: str) -> Problem:
    return Problem(409, "wrong_state", f"{rule}; array {array['id']} is {array['state']}", next_step=_NEXT_STEP)
