"""Apply agents' reports of ranks to assignments, devices and jobs in one transaction. `end_ranks` has the steps.

Reports come late, twice and out of order. Each update is conditional: only the first report of a fact counts, and a
report of an older attempt does not change the job."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import columns, prepared
from gpusched.protocol.agent_messages import Ended, RankKey, Report, Started, parse_rank_key
from gpusched.protocol.reasons import NODE_FAULTS, EndReason
from jobs.lifecycle import states
from jobs.lifecycle.attempt_end import AttemptOutcome, exit_class
from jobs.lifecycle.attempts import record_outcomes
from nodes.allocation import allocations
from nodes.health import device_health, missing_users
from nodes.ranks.agent_clock import parse_time, run_seconds
from tenants.billing import ledger

PEAKS = ("rank", "process")
MAX_INT, MAX_LOG_BYTES = (1 << 31) - 1, 1 << 60


@dataclass(frozen=True)
class RankEnd:
    """The end of one rank. `node_id`: the node that it must be assigned to, else the report is ignored. `exit_class`:
    as the agent reported it. `leftovers`: UUID → the processes that are still on that device."""

    key: RankKey
    node_id: int
    at: datetime
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    started_at: datetime | None = None
    detail: str = ""
    peak_memory_mb: int | None = None
    log_bytes: int | None = None
    exit_class: str | None = None
    peak_memory_of: str | None = None
    lasted_seconds: float | None = None
    leftovers: Mapping[str, str] = field(default_factory=dict)


def apply_reports(reports: Iterable[tuple[int, Report]]) -> None:
    """Apply (node id, report) pairs of any number of nodes. Call it inside a transaction."""
    starts: list[tuple[RankKey, int, Started]] = []
    ends: list[RankEnd] = []
    for node_id, report in reports:
        key = parse_rank_key(report.key)
        if key is None:
            continue
        if isinstance(report, Started):
            starts.append((key, node_id, report))
        else:
            ends.append(_rank_end(key, node_id, report))
    states.lock_jobs([start[0][0] for start in starts] + [end.key[0] for end in ends])
    started, ended = _start_ranks(starts), end_ranks(ends)
    events.changed("jobs", started + ended)
    if ended:  # a start frees nothing
        wake.request_cycle()


def end_as_node_fault(lost: Sequence[tuple[RankKey, int, datetime]]) -> None:
    """End ranks (key, node, since when) that their node no longer has, as a node fault rather than the job's."""
    states.lock_jobs([key[0] for key, _, _ in lost])
    events.changed("jobs", end_ranks([RankEnd(key, node_id, at, EndReason.NODE_FAULT) for key, node_id, at in lost]))
    wake.request_cycle()


def _rank_end(key: RankKey, node_id: int, report: Ended) -> RankEnd:
    reason = report.reason if report.reason in list(EndReason) else EndReason.LAUNCH_FAILED
    return RankEnd(
        key,
        node_id,
        parse_time(report.at),
        reason,
        _in_range(report.exit_code, -MAX_INT),
        _in_range(report.signal),
        parse_time(report.started_at) if report.started_at else None,
        (report.detail or "").replace("\x00", "")[:2000],
        _in_range(report.peak_memory_mb),
        min(max(report.log_bytes, 0), MAX_LOG_BYTES),
        report.exit_class,
        report.peak_memory_of if report.peak_memory_of in PEAKS else None,
        run_seconds(report),
        report.left,
    )


def _in_range(value: int | None, minimum: int = 0) -> int | None:
    """Return the value, or None if no column can hold it: one number must not block the report of an end."""
    return value if value is not None and minimum <= value <= MAX_INT else None


# The clock of this server may be ahead of that of the database, which has the other times.
_START = """
    UPDATE nodes_assignment s
       SET state = 'running', started_at = greatest(least(t.at, clock_timestamp()), a.scheduled_at), pid = t.pid,
           missing_since = NULL
      FROM unnest(%s::bigint[], %s::int[], %s::int[], %s::bigint[], %s::timestamptz[], %s::int[])
           AS t (job_id, number, rank, node_id, at, pid)
      JOIN jobs_attempts a ON a.job_id = t.job_id AND a.number = t.number
     WHERE s.job_id = t.job_id AND s.number = t.number AND s.rank = t.rank AND s.node_id = t.node_id
       AND s.state = 'assigned'
    RETURNING s.job_id, s.number, s.rank, s.node_id, s.started_at,
           (SELECT coalesce(array_agg(d.uuid), '{}') FROM nodes_device d
             WHERE d.node_id = s.node_id AND s.device_ids @> to_jsonb(d.id)) AS uuids
"""


def _start_ranks(starts: Sequence[tuple[RankKey, int, Started]]) -> list[int]:
    """Start ranks. Stop the jobs of those that have other devices than they were placed on: a restore of the database
    has undone their start, and they have been placed anew since."""
    if not starts:
        return []
    values = [(*key, node_id, parse_time(r.at), _in_range(r.pid) or 0) for key, node_id, r in starts]
    if not (rows := prepared(_START, columns(values, 6))):
        return []
    started = states.started([(row["job_id"], row["number"], row["started_at"]) for row in rows])
    devices = {(*key, node_id): report.device_uuids for key, node_id, report in starts}
    for row in rows:
        actual = devices[row["job_id"], row["number"], row["rank"], row["node_id"]]
        if actual is not None and set(actual) != set(row["uuids"]):
            states.stop([row["job_id"]], EndReason.SUPERSEDED, {}, "scheduler")
    return started


_END = """
    UPDATE nodes_assignment s
       SET state = 'ended', reason = t.reason, exit_code = t.exit_code, signal = t.signal, detail = t.detail,
           peak_memory_mb = t.peak, log_bytes = t.log_bytes, missing_since = NULL,
           started_at = CASE WHEN t.lasted IS NULL THEN b.began
                             ELSE greatest(a.scheduled_at, least(b.began, e.ended - t.lasted * interval '1 s')) END,
           ended_at = greatest(e.ended, b.began)
      FROM unnest(%s::bigint[], %s::int[], %s::int[], %s::bigint[], %s::timestamptz[], %s::text[], %s::int[], %s::int[],
                  %s::timestamptz[], %s::text[], %s::int[], %s::bigint[], %s::text[], %s::text[], %s::float8[])
           AS t (job_id, number, rank, node_id, at, reason, exit_code, signal, started_at, detail, peak, log_bytes,
                 exit_class, peak_of, lasted)
      JOIN jobs_attempts a ON a.job_id = t.job_id AND a.number = t.number
      JOIN nodes_assignment o ON o.attempt_id = a.id AND o.rank = t.rank
     CROSS JOIN LATERAL (SELECT coalesce(o.started_at, CASE WHEN t.started_at IS NOT NULL
                                THEN greatest(least(t.started_at, clock_timestamp()), a.scheduled_at) END) AS began) b
     CROSS JOIN LATERAL (SELECT CASE WHEN t.lasted IS NULL OR b.began IS NULL THEN least(t.at, clock_timestamp())
                                     ELSE least(b.began + t.lasted * interval '1 s', clock_timestamp()) END AS ended) e
     WHERE s.job_id = t.job_id AND s.number = t.number AND s.rank = t.rank AND s.node_id = t.node_id
       AND s.state <> 'ended'
    RETURNING s.id, s.job_id, s.number, s.rank, s.started_at, s.ended_at, s.reason, s.exit_code, s.signal, s.detail,
           s.node_id, s.log_bytes, s.peak_memory_mb, t.peak_of AS peak_memory_of, t.exit_class
"""


def end_ranks(ends: Sequence[RankEnd]) -> list[int]:
    """End ranks, free their devices, and end or stop their attempts as needed. Return the ids of the changed jobs."""
    # 1. End the assignments. A rank that has ended before drops out here.
    distinct = {(end.key, end.node_id): end for end in ends}
    ended = prepared(_END, columns([_end_row(end) for end in distinct.values()], 15)) if ends else []
    if not ended:
        return []
    # 2. Free what they held, and charge its use.
    ledger.charge([_charge(row) for row in allocations.release([row["id"] for row in ended])])
    # 3. Keep other jobs off nodes without the tenant's Unix user, and off freed devices that still have processes.
    #    In this transaction (A34): the next reading may come a second too late, after the next job was placed.
    missing_users.record([row["id"] for row in ended if row["reason"] == EndReason.NO_ACCOUNT])
    device_health.mark_dirty(_leftovers(ends, ended))
    # 4. Record how each rank ended. A rank that started and ended between two messages was never reported as started.
    states.started([(row["job_id"], row["number"], row["started_at"]) for row in ended if row["started_at"]])
    record_outcomes([(row["job_id"], row["number"], row["rank"], _recorded_outcome(row)) for row in ended])
    # 5. End the attempts whose ranks have all ended, and refund those that ended through no fault of their job.
    attempts = sorted({(row["job_id"], row["number"]) for row in ended})
    finished, failing = _finished_attempts(attempts)
    states.finish(finished)
    ledger.refund([(outcome.job_id, outcome.attempt, outcome.reason) for outcome in finished])
    # 6. Stop the other ranks of the attempts of which a rank failed.
    for job_id, evidence in failing:
        states.stop([job_id], EndReason.RANK_FAILED, evidence, "")
    return [job_id for job_id, _ in attempts]


def _charge(row: dict[str, Any]) -> ledger.Charge:
    """Return the charge for a released device, from the start of its rank to its end."""
    ended: datetime = row["ended_at"]
    return ledger.Charge(
        row["tenant_id"], row["user_id"], row["job_id"], row["attempt"], row["rank"], row["device_id"], row["node"],
        row["gpu_model"], row["memory_mb"], row["gpu_weight"], row["started_at"] or ended, ended, row["reason"],
    )  # fmt: skip


def _leftovers(ends: Sequence[RankEnd], ended: Sequence[dict[str, Any]]) -> list[tuple[int, str, str]]:
    """Return (assignment, UUID, processes) of the devices that are not free although their rank has ended."""
    left = {(*end.key, end.node_id): end.leftovers for end in ends if end.leftovers}
    keys = [(row["job_id"], row["number"], row["rank"], row["node_id"]) for row in ended]
    return [(row["id"], *item) for row, key in zip(ended, keys, strict=True) for item in left.get(key, {}).items()]


def _end_row(end: RankEnd) -> tuple[Any, ...]:
    return (
        *end.key, end.node_id, end.at, end.reason, end.exit_code, end.signal, end.started_at, end.detail,
        end.peak_memory_mb, end.log_bytes, exit_class(end.reason, end.exit_code, end.exit_class), end.peak_memory_of,
        end.lasted_seconds,
    )  # fmt: skip


def _recorded_outcome(row: dict[str, Any]) -> dict[str, Any]:
    names = ("reason", "exit_code", "signal", "started_at", "ended_at", "detail", "log_bytes", "peak_memory_mb",
             "peak_memory_of")  # fmt: skip
    return {**{name: row[name] for name in names}, "class": row["exit_class"]}


_RANKS = """
    SELECT s.job_id, s.number, s.rank, s.state, s.reason, s.exit_code, s.signal, s.detail, s.ended_at, n.name AS node,
           e.outcomes->s.rank::text->>'class' AS class
      FROM nodes_assignment s JOIN nodes_node n ON n.id = s.node_id JOIN jobs_attempts e ON e.id = s.attempt_id
      JOIN unnest(%s::bigint[], %s::int[]) AS a (job_id, number) ON a.job_id = s.job_id AND a.number = s.number
     ORDER BY s.job_id, s.number, s.ended_at, s.rank
"""


def _finished_attempts(
    attempts: Sequence[tuple[int, int]],
) -> tuple[list[AttemptOutcome], list[tuple[int, dict[str, Any]]]]:
    """Return the outcomes of attempts whose ranks have all ended, and the jobs of which a rank failed while others
    run."""
    ranks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in prepared(_RANKS, columns(attempts, 2)):
        ranks.setdefault((row["job_id"], row["number"]), []).append(row)
    finished: list[AttemptOutcome] = []
    failing: list[tuple[int, dict[str, Any]]] = []
    for (job_id, number), rows in ranks.items():
        decisive = _decisive(rows)
        if all(row["state"] == "ended" for row in rows):
            finished.append(_outcome(job_id, number, decisive, max(row["ended_at"] for row in rows), len(rows)))
        elif _failed(decisive):
            failing.append((job_id, {"rank": decisive["rank"], "node": decisive["node"]}))
    return finished, failing


def _decisive(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the rank that decides how the attempt ended: a node fault before a failure, the earliest first."""
    ended = [row for row in rows if row["state"] == "ended"]
    faults = [row for row in ended if row["reason"] in NODE_FAULTS]
    failures = [row for row in ended if _failed(row)]
    return (faults or failures or ended)[0]


def _failed(row: dict[str, Any]) -> bool:
    return bool(row["reason"] != EndReason.EXITED or row["exit_code"] != 0)


def _outcome(job_id: int, number: int, decisive: dict[str, Any], ended_at: datetime, ranks: int) -> AttemptOutcome:
    evidence = {"node": decisive["node"], "exit_code": decisive["exit_code"], "signal": decisive["signal"]}
    if decisive["class"]:
        evidence["class"] = decisive["class"]
    if decisive["detail"]:
        evidence["detail"] = decisive["detail"]
    if ranks > 1:
        evidence["rank"] = decisive["rank"]
    return AttemptOutcome(
        job_id, number, decisive["reason"], ended_at, decisive["exit_code"], decisive["signal"], evidence
    )
