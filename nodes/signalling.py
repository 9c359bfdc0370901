"""Which signals of their jobs agents have not taken yet."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpusched.lib.sql import query
from gpusched.protocol.messages import Signal, key_of
from gpusched.protocol.states import JobState, RankState

# Of each job; whoever is further behind hears of the others with the next answer.
MOST_AT_ONCE = 50
_ASKED = """
    SELECT j.id, e.sequence, e.signal FROM jobs_job j CROSS JOIN LATERAL (
        SELECT (data->>'sequence')::int AS sequence, data->>'signal' AS signal FROM jobs_jobevent
         WHERE job_id = j.id AND kind = 'signal_sent' AND attempt = j.attempt AND (data->>'sequence')::int > %s
         ORDER BY id LIMIT %s) e
     WHERE j.id = %s ORDER BY e.sequence
"""


def unsent(
    rows_of: Mapping[int, Sequence[dict[str, Any]]], taken: Mapping[int, Mapping[str, int]]
) -> dict[int, list[Signal]]:
    """By node, of its assignments (desired.live). `taken`: the latest that its agent has, by key."""
    found: dict[int, list[Signal]] = {}
    for node_id, rows in rows_of.items():
        for row in rows:
            key = key_of(row["job_id"], row["number"], row["rank"])
            known = taken.get(node_id, {}).get(key, 0)
            if row["signal_count"] > known and _is_running(row):
                asked = query(_ASKED, [known, MOST_AT_ONCE, row["job_id"]])
                told = [Signal(key=key, sequence=one["sequence"], signal=one["signal"]) for one in asked]
                found.setdefault(node_id, []).extend(told)
    return found


def _is_running(row: dict[str, Any]) -> bool:
    is_current = row["attempt"] == row["number"] and row["job_state"] == JobState.RUNNING
    return bool(is_current and row["state"] == RankState.RUNNING)
