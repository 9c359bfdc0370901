"""Which signals of their jobs agents have not taken yet."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpusched.lib.db.sql import columns, query
from gpusched.protocol.agent_messages import Signal, rank_key
from gpusched.protocol.states import JobState, RankState

# Of each job; whoever is further behind hears of the others with the next answer.
MAX_AT_ONCE = 50
# Of jobs after a number of each; ranks of a gang that are equally far share theirs.
_ASKED = """
    SELECT w.job_id, w.known, e.sequence, e.signal FROM unnest(%s::bigint[], %s::int[]) AS w (job_id, known)
      JOIN jobs_all j ON j.id = w.job_id CROSS JOIN LATERAL (
        SELECT (data->>'sequence')::int AS sequence, data->>'signal' AS signal FROM jobs_events
         WHERE job_id = j.id AND kind = 'signal_sent' AND attempt = j.attempt AND (data->>'sequence')::int > w.known
         ORDER BY id LIMIT %s) e
     ORDER BY e.sequence
"""


def pending_signals(
    rows_of: Mapping[int, Sequence[dict[str, Any]]], taken: Mapping[int, Mapping[str, int]]
) -> dict[int, list[Signal]]:
    """By node, of its assignments (desired.live). `taken`: the latest that its agent has, by key."""
    behind: list[tuple[int, str, tuple[int, int]]] = []
    for node_id, rows in rows_of.items():
        for row in rows:
            key = rank_key(row["job_id"], row["number"], row["rank"])
            known = taken.get(node_id, {}).get(key, 0)
            if row["signal_count"] > known and _is_running(row):
                behind.append((node_id, key, (row["job_id"], known)))
    asked = _asked({since for _, _, since in behind}) if behind else {}
    found: dict[int, list[Signal]] = {}
    for node_id, key, since in behind:
        told = [Signal(key=key, sequence=one["sequence"], signal=one["signal"]) for one in asked.get(since, ())]
        found.setdefault(node_id, []).extend(told)
    return found


def _asked(wanted: Collection[tuple[int, int]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """The signals of a job after a number, by both, ascending."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in query(_ASKED, [*columns(sorted(wanted), 2), MAX_AT_ONCE]):
        found.setdefault((row["job_id"], row["known"]), []).append(row)
    return found


def _is_running(row: dict[str, Any]) -> bool:
    is_current = row["attempt"] == row["number"] and row["job_state"] == JobState.RUNNING
    return bool(is_current and row["state"] == RankState.RUNNING)
