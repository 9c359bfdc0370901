"""One conversation with any number of agents: what they say is written in one transaction, what they are to do is
answered from the same."""

import logging
from collections.abc import Mapping, Sequence, Set
from typing import Any

from msgspec.structs import replace

from gpusched import tracing
from gpusched.json_log import job_fields
from gpusched.lib.db.outages import is_outage
from gpusched.lib.db.sql import columns, execute, query, retry_atomic
from gpusched.protocol.agent_messages import Desired, Ended, Signal, Started, Sync, rank_key
from gpusched.protocol.states import RankState
from nodes.health import auto_cordon
from nodes.inventory import removal
from nodes.ranks import agent_clock, checkpoints, fault_attribution, rank_end
from nodes.ranks.desired_state import desired, live_ranks
from nodes.ranks.pending_signals import pending_signals
from nodes.telemetry import readings as telemetry

logger = logging.getLogger(__name__)
# An assignment that runs for us but that its agent has not named for so long is not there (its disk was wiped).
MISSING_SECONDS = 15
SentRuns = Mapping[int, Set[str]]  # node → keys
NOTHING: SentRuns = {}


def process(batch: Sequence[tuple[int, Sync]], told: SentRuns = NOTHING) -> list[Desired]:
    """Takes in (node id, message) pairs and gives the answer to each, in order, once all of it is durable. `told`: what
    nodes were told to run a moment ago, over the connection that they still have."""
    with tracing.span("agent.sync", {"gpusched.messages": len(batch)}):
        return retry_atomic(lambda: _process(batch, told))


def process_leniently(node_id: int, sync: Sync, told: SentRuns = NOTHING) -> Desired:
    """One message, of which something may not be fit to be written: the rest of it is, above all that the node is
    alive. What was not is said to the agent, which says it again; a rank whose end cannot be written ends by its
    absence."""
    try:
        return process([(node_id, sync)], told)[0]
    except Exception as error:
        if is_outage(error):
            raise
        logger.exception("a message of node %d cannot be written as a whole", node_id)
    bare = replace(sync, reports=[], readings=[], saved={}, facts=None)
    answer = process([(node_id, bare)], told)[0]
    parts = [replace(bare, reports=[one]) for one in sync.reports]
    parts += [replace(bare, readings=[one]) for one in sync.readings]
    parts += [replace(bare, facts=sync.facts), replace(bare, saved=sync.saved)]
    written: list[Desired] = []
    for part in parts:
        try:
            written += process([(node_id, part)], told)
        except Exception as error:
            if is_outage(error):
                raise
            logger.exception("not written of node %d: %.300r", node_id, part)
    return replace(
        answer,
        acknowledged=[key for one in written for key in one.acknowledged],
        started=[key for one in written for key in one.started],
        error=None if len(written) == len(parts) else "not all of it could be written",
    )


def push(node_ids: Sequence[int], job_ids: Sequence[int], told: SentRuns = NOTHING) -> dict[int, Desired]:
    """What to tell, unasked, to `node_ids` and to the nodes on which `job_ids` run."""
    nodes = set(node_ids)
    if job_ids:
        rows = query(
            "SELECT DISTINCT node_id FROM nodes_assignment WHERE job_id = ANY(%s) AND state <> 'ended'", [list(job_ids)]
        )
        nodes |= {row["node_id"] for row in rows}
    rows_of = live_ranks(sorted(nodes))
    signals = pending_signals(rows_of, {})
    answers = {n: replace(one, signals=signals.get(n, [])) for n, one in desired(rows_of, {}, told).items()}
    return {n: answer for n, answer in answers.items() if answer.assignments or answer.limits or answer.signals}


def _process(batch: Sequence[tuple[int, Sync]], told: SentRuns) -> list[Desired]:
    heard = [
        (node_id, agent_clock.to_server_time(report, sync.at)) for node_id, sync in batch for report in sync.reports
    ]
    if not heard:
        # Readings and signs of life alone need not wait for the disk: a second later they are told again.
        execute("SET LOCAL synchronous_commit = off")
    readings = [(node_id, reading) for node_id, sync in batch for reading in sync.readings]
    heard = fault_attribution.attribute_faults(heard, readings)
    # What was read before an end says nothing against the look after it.
    left = {(node_id, uuid) for node_id, report in heard if isinstance(report, Ended) for uuid in report.left}
    readings = [(n, replace(r, occupancy=None) if (n, r.uuid) in left else r) for n, r in readings]
    rank_end.apply_reports(heard)
    checkpoints.record_checkpoints(
        [(node_id, key, agent_clock.at_here(at, sync.at)) for node_id, sync in batch for key, at in sync.saved.items()]
    )
    for node_id, sync in batch:
        if sync.facts is not None:
            telemetry.store_facts(node_id, sync.facts)
    if readings:
        telemetry.store_readings(readings)
    latest = dict(batch)
    rows_of = live_ranks(sorted(latest))
    faulted = _watch_missing(rows_of, latest)
    _keep_limits(rows_of, latest)
    known = telemetry.record_heartbeats(
        [
            (node_id, sync.boot_id[:64], _is_clean(rows_of[node_id], sync), agent_clock.clock_offset(sync.at))
            for node_id, sync in latest.items()
        ]
    )
    faulted |= {
        node_id
        for node_id, report in heard
        if isinstance(report, Ended) and report.reason in auto_cordon.NODE_FAULT_REASONS
    }
    if faulted:
        auto_cordon.cordon_faulty(faulted)
    held = {node_id: _unsettled(sync) for node_id, sync in latest.items()}
    answers = desired(rows_of, held, told, {node_id: sync.limits for node_id, sync in latest.items()})
    signals = pending_signals(rows_of, {node_id: sync.signalled for node_id, sync in latest.items()})
    return [
        _answer(answers[node_id], signals.get(node_id, []), sync)
        if node_id in known
        else Desired(seq=sync.seq, error=removal.REFUSAL)
        for node_id, sync in batch
    ]


def _unsettled(sync: Sync) -> list[str]:
    ended = {report.key for report in sync.reports if isinstance(report, Ended)}
    return [key for key in sync.held if key not in ended]


def _answer(orders: Desired, signals: list[Signal], sync: Sync) -> Desired:
    return Desired(
        seq=sync.seq,
        assignments=orders.assignments,
        limits=orders.limits,
        signals=signals,
        acknowledged=[r.key for r in sync.reports if isinstance(r, Ended)],
        started=[r.key for r in sync.reports if isinstance(r, Started)],
    )


def _key(row: dict[str, Any]) -> str:
    return rank_key(row["job_id"], row["number"], row["rank"])


def _keys(rows: list[dict[str, Any]]) -> set[str]:
    return {_key(row) for row in rows}


def _is_clean(rows: list[dict[str, Any]], sync: Sync) -> bool:
    """No process lives there of an attempt that is over for us."""
    ended = {report.key for report in sync.reports if isinstance(report, Ended)}
    return set(sync.running) - ended <= _keys(rows)


def _keep_limits(rows_of: dict[int, list[dict[str, Any]]], latest: dict[int, Sync]) -> None:
    """Notes which of the changed time limits are in force where they run, as the agents say; never a version that there
    is not, nor one before that is known."""
    told = [
        (row["id"], min(latest[node_id].limits.get(_key(row), 0), row["limit_version"]), row["limit_in_force"])
        for node_id, rows in rows_of.items()
        if latest[node_id].limits
        for row in rows
    ]
    if fresh := [(assignment_id, version) for assignment_id, version, known in told if version > known]:
        execute(
            "UPDATE nodes_assignment s SET limit_version = t.version FROM unnest(%s::bigint[], %s::int[])"
            " AS t (id, version) WHERE s.id = t.id AND s.limit_version < t.version",
            columns(fresh, 2),
        )


def _watch_missing(rows_of: dict[int, list[dict[str, Any]]], latest: dict[int, Sync]) -> set[int]:
    """Ends what runs for us but not for its agent, for a while now, as a fault of the node; gives such nodes."""
    absent: list[int] = []
    present: list[int] = []
    by_id: dict[int, tuple[rank_end.RankKey, int]] = {}
    for node_id, rows in rows_of.items():
        running = set(latest[node_id].running)
        for row in rows:
            if row["state"] == RankState.RUNNING:
                key = (row["job_id"], row["number"], row["rank"])
                by_id[row["id"]] = (key, node_id)
                (present if "{}.{}.{}".format(*key) in running else absent).append(row["id"])
    if not absent and not present:
        return set()
    over = query(
        """UPDATE nodes_assignment SET missing_since = CASE WHEN id = ANY(%(absent)s)
                  THEN coalesce(missing_since, clock_timestamp()) END
            WHERE id = ANY(%(all)s) AND (id = ANY(%(absent)s)) <> (missing_since IS NOT NULL)
               OR id = ANY(%(absent)s) AND missing_since < clock_timestamp() - make_interval(secs => %(most)s)
        RETURNING id, missing_since, missing_since < clock_timestamp() - make_interval(secs => %(most)s) AS is_over""",
        {"absent": absent, "all": absent + present, "most": MISSING_SECONDS},
    )
    gone = [row for row in over if row["is_over"]]
    if gone:
        concerned = job_fields(by_id[row["id"]][0][0] for row in gone)
        logger.warning("%d ranks run for us but not for their agents", len(gone), extra=concerned)
        rank_end.end_as_node_fault([(*by_id[row["id"]], row["missing_since"]) for row in gone])
    return {by_id[row["id"]][1] for row in gone}
