"""Insert jobs for array elements when they are placed, and end arrays whose elements have all ended."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import as_json, columns, prepared, query, retry_atomic
from gpusched.protocol import arrays
from gpusched.protocol.reasons import EndReason, Pending
from gpusched.protocol.states import LIVE, JobState
from jobs.lifecycle import array_states, states
from jobs.lifecycle.array_states import UNFINISHED
from jobs.listing.representation import elements_by_state


@dataclass
class Materialized:
    """`created`: by array, the jobs of its next elements in order. `refused`: existing jobs of elements that
    `max_parallel` does not allow."""

    created: dict[int, list[int]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)


# --- elements become jobs ---------------------------------------------------------------------------------------------

# Only the agent needs the payload, so it stays with the array: a script is not copied 100,000 times.
_COPIED_COLUMNS = """
    tenant_id, user_id, priority, gpu_count, gpu_memory_mb, gpu_memory_auto, gpu_models, gpu_sharing, cpu_milli,
    memory_mb, gang_scheduling, ranks, workload_class, max_runtime_seconds, has_default_limit, predicted_seconds,
    preemptible, requeue, max_retries, retry_on, grace_seconds, not_before, eligible_at, labels, node_selector,
    node_affinity, tolerations, topology, anti_affinity, reservation, submitted_at"""
_INSERT_ELEMENTS = f"""
    INSERT INTO jobs_job ({_COPIED_COLUMNS}, array_id, array_index, name, payload, state, attempt, retries_used, reason,
                          evidence, reason_since, stop_reason, stop_evidence)
    SELECT {_COPIED_COLUMNS}, n.of_array, n.number, left(name, 190) || '[' || n.number || ']', '{{}}', 'pending', 0, 0,
           '{Pending.SCHEDULER_BEHIND}', '{{}}', now(), '', '{{}}'
      FROM unnest(%s::bigint[], %s::int[]) WITH ORDINALITY AS n (of_array, number, turn)
      JOIN jobs_job a ON a.id = n.of_array ORDER BY n.turn
    RETURNING id, array_id, array_index
"""


def materialize(requested: Mapping[int, int], existing: Mapping[int, Collection[int]] | None = None) -> Materialized:
    """Insert pending jobs for the next elements of arrays: `requested` by array. `existing`: by array, the jobs of
    elements that will be placed with them. Observes `max_parallel`; skips arrays that are held or over. Call it in a
    transaction, which keeps the arrays locked."""
    existing = existing or {}
    result, numbers = Materialized(), dict[int, list[int]]()
    for row in _lock(sorted({*requested, *existing})):
        maximum = row["array_max_parallel"]
        capacity = arrays.MAX_ELEMENTS if maximum is None else max(maximum - row["live"], 0)
        listed = sorted(existing.get(row["id"], ()))
        result.refused.update(listed[capacity:])
        is_open = row["state"] in (JobState.PENDING, JobState.RUNNING)
        number = min(requested.get(row["id"], 0), max(capacity - len(listed), 0)) if is_open else 0
        if chosen := list(islice(arrays.numbers(arrays.from_multirange(row["waiting"])), number)):
            numbers[row["id"]] = chosen
    if numbers:
        rows = [(array_id, number) for array_id, chosen in numbers.items() for number in chosen]
        for row in sorted(query(_INSERT_ELEMENTS, columns(rows, 2)), key=_position_in_array):
            result.created.setdefault(row["array_id"], []).append(row["id"])
        are_left = array_states.start(
            {array_id: arrays.multirange(arrays.to_ranges(chosen)) for array_id, chosen in numbers.items()}
        )
        array_states.clear_reason(numbers)
        events.changed("jobs", numbers)
        if are_left:
            wake.request_cycle()  # more of them may fit than the cycle considered
    return result


def _lock(array_ids: Sequence[int]) -> list[dict[str, Any]]:
    rows = query(
        "SELECT id, state, array_max_parallel, array_waiting::text AS waiting FROM jobs_job"
        " WHERE id = ANY(%s) AND array_count IS NOT NULL ORDER BY id FOR NO KEY UPDATE",
        [list(array_ids)],
    )
    # A separate statement: the one that waited for the lock would count by its older snapshot.
    live = query(
        "SELECT array_id, count(*) AS n FROM jobs_job WHERE array_id = ANY(%s) AND state = ANY(%s) GROUP BY array_id",
        [[row["id"] for row in rows], sorted(LIVE)],
    )
    counts = {row["array_id"]: row["n"] for row in live}
    return [{**row, "live": counts.get(row["id"], 0)} for row in rows]


def _position_in_array(row: dict[str, Any]) -> tuple[int, int]:
    return row["array_id"], row["array_index"]


# --- the end of an array ----------------------------------------------------------------------------------------------

_ALL_ENDED = f"""
    SELECT a.id, a.state, a.stop_reason, a.stop_evidence, jobs_numbers(a.array_cancelled) AS cancelled
      FROM jobs_job a
     WHERE a.array_count IS NOT NULL AND a.state IN {UNFINISHED} AND isempty(a.array_waiting)
       AND NOT EXISTS (SELECT 1 FROM jobs_job e WHERE e.array_id = a.id AND e.state IN {UNFINISHED})
"""


def end_finished_arrays() -> list[int]:
    """End arrays whose elements have all ended, in each cycle: every end of a job requests one. Return their ids."""
    ids = [row["id"] for row in prepared(_ALL_ENDED)]
    return retry_atomic(lambda: end_arrays(ids)) if ids else []


def end_arrays(array_ids: Iterable[int]) -> list[int]:
    """End those of the arrays whose elements have all ended. Return their ids."""
    ids = sorted(array_ids)
    states.lock_jobs(ids)
    finished = query(f"{_ALL_ENDED} AND a.id = ANY(%s)", [ids])  # read again now that they are locked
    counts = elements_by_state(ids)
    ended = [_final_state(row, counts.get(row["id"], {})) for row in finished]
    if ended:
        array_states.end(ended)
        states.resolve_dependents({array_id: state for array_id, state, _, _ in ended})
        events.changed("jobs", [array_id for array_id, *_ in ended])
    return [array_id for array_id, *_ in ended]


def _final_state(row: dict[str, Any], counts: Mapping[str, int]) -> tuple[int, str, str, str]:
    """Return (array, state, reason, evidence): failed if an element failed or was preempted for good, completed if all
    completed, else cancelled."""
    ends = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.PREEMPTED)
    evidence = {str(state): counts.get(state, 0) for state in ends}
    evidence["cancelled"] += row["cancelled"]
    is_failed = evidence["failed"] or evidence["preempted"]
    state = JobState.FAILED if is_failed else JobState.CANCELLED if evidence["cancelled"] else JobState.COMPLETED
    if state == JobState.CANCELLED and row["stop_reason"]:
        return row["id"], state, row["stop_reason"], as_json({**row["stop_evidence"], **evidence})
    return row["id"], state, EndReason.ARRAY_ENDED, as_json(evidence)
