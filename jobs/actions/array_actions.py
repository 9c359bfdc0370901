"""What people do to arrays, to all of their elements or a part: cancel, hold, release, retry. The array is locked."""

from collections.abc import Sequence
from typing import Any

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.bus import events
from gpusched.lib.db.sql import query
from gpusched.protocol import arrays
from gpusched.protocol.arrays import Ranges
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.reasons import EndReason, Pending
from gpusched.protocol.states import FINAL, LIVE, WAITING, JobState
from jobs.arrays.materialize import end_arrays
from jobs.events.record import record_event
from jobs.lifecycle import array_states, dependencies
from jobs.lifecycle import states as transitions
from jobs.lifecycle.array_states import UNFINISHED, clear_reason

Row = dict[str, Any]
ALL_FAILED = "failed"
ALL_NUMBERS = "{(,)}"  # as PostgreSQL writes the set of all numbers
_NEXT_STEP = "see its state"


def cancel(array: Row, elements: str | None, actor: str) -> str:
    """Of these elements (None: of all) ends those that wait, and stops those that are live."""
    numbers, array_id, by = _parse_elements(array, elements), array["id"], {"by": actor}
    if array["state"] in FINAL:
        return f"array {array_id} had already ended: {array['state']}"
    chosen = ALL_NUMBERS if numbers is None else arrays.multirange(numbers)
    never = array_states.cancel_waiting(array_id, chosen)
    found = _lock_elements(array_id, chosen, UNFINISHED)
    waiting = [row["id"] for row in found if row["state"] in WAITING]
    live = [row["id"] for row in found if row["state"] in LIVE]
    transitions.cancel_waiting(waiting, by, actor)
    stopped = len(transitions.stop(live, EndReason.CANCELLED, by, actor))
    for one in found:
        if one["state"] == JobState.STOPPING:
            stopped += transitions.override_stop(one["id"], EndReason.CANCELLED, by, actor)
    ended = never + len(waiting)
    told = {"reason": EndReason.CANCELLED, **by, **_named_elements(numbers), "cancelled": ended, "stopped": stopped}
    if numbers is not None:
        if ended or stopped:
            record_event([array_id], "part_cancelled", actor, told)
    elif array_states.stop(array_id, EndReason.CANCELLED, by):
        record_event([array_id], "stopping", actor, told)
    else:
        transitions.cancel_waiting([array_id], by, actor)  # of one that waits for other jobs nothing is to be stopped
    clear_reason([array_id])
    end_arrays([array_id])
    events.changed("jobs", [array_id, *waiting, *live])
    return f"array {array_id}: {_count_sentence(ended, 'cancelled')}, {_count_sentence(len(live), 'being stopped')}"


def hold(array: Row, reason: Pending, actor: str) -> str:
    """Keeps what waits from starting; what is live goes on. The hold of an admin takes the place of a user's."""
    if array["state"] not in (JobState.PENDING, JobState.RUNNING, JobState.HELD):
        raise _wrong_state(array, "only an array of which some wait can be held")
    waiting = [row["id"] for row in _lock_elements(array["id"], ALL_NUMBERS, "('pending', 'held')")]
    waiting = transitions.hold(waiting, reason, actor)
    number = array_states.hold(array["id"], reason) + len(waiting)
    record_event([array["id"]], "held", actor, {"reason": reason})
    events.changed("jobs", waiting)
    return f"array {array['id']}: {_count_sentence(number, 'held')}"


def release(array: Row, reasons: Sequence[Pending], actor: str) -> bool:
    """Lets what was held for one of `reasons` wait for its turn again."""
    is_released = array_states.release(array["id"], reasons)
    if is_released:
        held = [row["id"] for row in _lock_elements(array["id"], ALL_NUMBERS, "('held')")]
        transitions.release(held, reasons, actor)
        record_event([array["id"]], "released", actor, {})
        clear_reason([array["id"]])
        dependencies.refresh([array["id"]])
        events.changed("jobs", held)
    return is_released


_LACKS_ELEMENTS = """
    SELECT 1 FROM jobs_job a WHERE a.id = %s
       AND a.array_count > jobs_numbers(a.array_waiting) + jobs_numbers(a.array_cancelled)
                           + (SELECT count(*) FROM jobs_job e WHERE e.array_id = a.id)
"""


def retry(array: Row, elements: str, actor: str) -> str:
    """Has these elements run again, each by another attempt: of `3-7,9` those that have ended, or all that `failed`."""
    numbers, array_id = None if elements == ALL_FAILED else _parse_elements(array, elements), array["id"]
    if array["state"] in (JobState.HELD, JobState.STOPPING):
        raise _wrong_state(array, "elements of a held array, or of one that is being stopped, cannot be retried")
    if array["state"] in FINAL and query(_LACKS_ELEMENTS, [array_id]):
        rule = f"elements of array {array_id} are deleted already, because their retention is over"
        raise Problem(409, "wrong_state", rule, next_step="submit it again")
    chosen = ALL_NUMBERS if numbers is None else arrays.multirange(numbers)
    states = [JobState.FAILED, JobState.PREEMPTED]
    if numbers is not None:
        states += [JobState.COMPLETED, JobState.CANCELLED]
    ids = transitions.retry_elements(array_id, chosen, states, actor)
    never = "{}" if numbers is None else chosen
    sql = "SELECT jobs_numbers(array_cancelled * %s::int4multirange) AS n FROM jobs_job WHERE id = %s"
    [row] = query(sql, [never, array_id])
    total = len(ids) + int(row["n"])
    if not total:
        raise Problem(409, "wrong_state", f"none of these elements of array {array_id} has ended so", next_step=_NEXT_STEP)
    array_states.reopen(array_id, never)
    dependencies.reinstate(array_id, array["tenant_id"])
    clear_reason([array_id])
    record_event([array_id], "retried", actor, {**_named_elements(numbers), "retried": total})
    events.changed("jobs", ids)
    return f"array {array_id}: {_count_sentence(total, 'to run again')}"


def require_array(job: Row, elements: str | None) -> None:
    """Refuses to speak of the elements of a job that has none."""
    if elements is not None:
        raise invalid([FieldError("elements", "conflict", f"job {job['id']} is no array; leave it out")])


def _parse_elements(array: Row, elements: str | None) -> Ranges | None:
    try:
        return None if elements is None else arrays.parse_ranges(elements, array["array_count"])
    except ValueError as error:
        raise invalid([FieldError("elements", "invalid", str(error))]) from error


def _lock_elements(array_id: int, chosen: str, states: str) -> list[Row]:
    """Those of the elements that are jobs in one of these states."""
    return query(
        "SELECT id, state FROM jobs_job WHERE array_id = %s AND array_index <@ %s::int4multirange"
        f" AND state IN {states} ORDER BY id FOR NO KEY UPDATE",
        [array_id, chosen],
    )


def _count_sentence(number: int, what: str) -> str:
    return f"{number} element{' is' if number == 1 else 's are'} {what}"


def _named_elements(numbers: Ranges | None) -> dict[str, str]:
    return {} if numbers is None else {"elements": arrays.format_ranges(numbers)[:1000]}


def _wrong_state(array: Row, rule: str) -> Problem:
    return Problem(409, "wrong_state", f"{rule}; array {array['id']} is {array['state']}", next_step=_NEXT_STEP)
