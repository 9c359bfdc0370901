"""Find signals sent to jobs that their agents have not acknowledged yet."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpusched.lib.db.sql import columns, query
from gpusched.protocol.agent_messages import Signal, rank_key
from gpusched.protocol.states import JobState, RankState

# Per job; the next answer carries the others.
MAX_AT_ONCE = 50
# Signals of jobs after a sequence number each. Ranks of a gang with the same number share the rows.
_SIGNALS = """
    SELECT w.job_id, w.known, e.sequence, e.signal FROM unnest(%s::bigint[], %s::int[]) AS w (job_id, known)
      JOIN jobs_all j ON j.id = w.job_id CROSS JOIN LATERAL (
        SELECT (data->>'sequence')::int AS sequence, data->>'signal' AS signal FROM jobs_events
         WHERE job_id = j.id AND kind = 'signal_sent' AND attempt = j.attempt AND (data->>'sequence')::int > w.known
         ORDER BY id LIMIT %s) e
     ORDER BY e.sequence
"""


def pending_signals(
    rows_of: Mapping[int, Sequence[dict[str, Any]]], acknowledged: Mapping[int, Mapping[str, int]]
) -> dict[int, list[Signal]]:
    """Return signals by node for its live ranks. `acknowledged`: the agent's latest sequence number by rank key."""
    outdated: list[tuple[int, str, tuple[int, int]]] = []
    for node_id, rows in rows_of.items():
        for row in rows:
            key = rank_key(row["job_id"], row["number"], row["rank"])
            latest = acknowledged.get(node_id, {}).get(key, 0)
            if row["signal_count"] > latest and _is_running(row):
                outdated.append((node_id, key, (row["job_id"], latest)))
    sent_signals = _load_signals({since for _, _, since in outdated}) if outdated else {}
    pending: dict[int, list[Signal]] = {}
    for node_id, key, since in outdated:
        signals = [Signal(key=key, sequence=s["sequence"], signal=s["signal"]) for s in sent_signals.get(since, ())]
        pending.setdefault(node_id, []).extend(signals)
    return pending


def _load_signals(jobs: Collection[tuple[int, int]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Return the signals after each (job, sequence number), ascending."""
    signals: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in query(_SIGNALS, [*columns(sorted(jobs), 2), MAX_AT_ONCE]):
        signals.setdefault((row["job_id"], row["known"]), []).append(row)
    return signals


def _is_running(row: dict[str, Any]) -> bool:
    is_current = row["attempt"] == row["number"] and row["job_state"] == JobState.RUNNING
    return bool(is_current and row["state"] == RankState.RUNNING)
