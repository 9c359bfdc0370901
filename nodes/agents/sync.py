"""Process messages of any number of agents in one transaction, and answer them with orders read in the same one."""

import logging
from collections.abc import Mapping, Sequence, Set
from typing import Any

from django.db import IntegrityError
from msgspec.structs import replace
from psycopg.errors import ForeignKeyViolation

from gpusched import tracing
from gpusched.json_log import job_fields
from gpusched.lib.db.outages import is_outage
from gpusched.lib.db.sql import columns, execute, prepared, query, retry_atomic
from gpusched.protocol.agent_messages import Desired, Ended, RankKey, Report, Signal, Started, Sync
from gpusched.protocol.states import RankState
from nodes.health import auto_cordon
from nodes.inventory import copies, removal, rotation
from nodes.ranks import agent_clock, checkpoints, fault_attribution, rank_end
from nodes.ranks.desired_state import desired, key_of, live_ranks
from nodes.ranks.pending_signals import pending_signals
from nodes.telemetry import readings as telemetry

logger = logging.getLogger(__name__)
# A running assignment that its agent has not listed for this long is gone (the node's disk was wiped).
MISSING_SECONDS = 15
SentRuns = Mapping[int, Set[str]]  # node → keys
NO_RUNS: SentRuns = {}


def process(batch: Sequence[tuple[int, Sync]], sent_runs: SentRuns = NO_RUNS) -> list[Desired]:
    """Write (node id, message) pairs. Return the answer to each, in order, once all of them are durable. `sent_runs`:
    the run orders sent to nodes a moment ago over their present connection."""
    with tracing.span("agent.sync", {"gpusched.messages": len(batch)}):
        try:
            return retry_atomic(lambda: _process(batch, sent_runs))
        except IntegrityError as error:
            if not isinstance(error.__cause__, ForeignKeyViolation):
                raise
            # A GPU was retired between its reading and the commit.
            return retry_atomic(lambda: _process(batch, sent_runs))


def process_leniently(node_id: int, sync: Sync, sent_runs: SentRuns = NO_RUNS) -> Desired:
    """Process one message, of which PostgreSQL may reject a part: write the other parts, above all that the node is
    alive. The answer names the error, so that the agent sends the message again. A rank whose end cannot be written
    ends once the agent no longer lists it."""
    try:
        return process([(node_id, sync)], sent_runs)[0]
    except Exception as error:
        if is_outage(error):
            raise
        logger.exception("a message of node %d cannot be written as a whole", node_id)
    bare = replace(sync, reports=[], readings=[], saved={}, facts=None)
    answer = process([(node_id, bare)], sent_runs)[0]
    parts = [replace(bare, saved=sync.saved), *(replace(bare, reports=[report]) for report in sync.reports)]
    parts += [replace(bare, readings=[reading]) for reading in sync.readings]
    parts += [replace(bare, facts=sync.facts)]
    written: list[Desired] = []
    for part in parts:
        try:
            written += process([(node_id, part)], sent_runs)
        except Exception as error:
            if is_outage(error):
                raise
            logger.exception("not written of node %d: %.300r", node_id, part)
    return replace(
        answer,
        acknowledged=[key for orders in written for key in orders.acknowledged],
        started=[key for orders in written for key in orders.started],
        error=None if len(written) == len(parts) else "not all of it could be written",
    )


def push(node_ids: Sequence[int], job_ids: Sequence[int], sent_runs: SentRuns = NO_RUNS) -> dict[int, Desired]:
    """Return the orders to push to `node_ids` and to the nodes on which `job_ids` run."""
    nodes = set(node_ids)
    if job_ids:
        rows = query(
            "SELECT DISTINCT node_id FROM nodes_assignment WHERE job_id = ANY(%s) AND state <> 'ended'", [list(job_ids)]
        )
        nodes |= {row["node_id"] for row in rows}
    rows_of = live_ranks(sorted(nodes))
    signals = pending_signals(rows_of, {})
    answers = {n: replace(orders, signals=signals.get(n, [])) for n, orders in desired(rows_of, {}, sent_runs).items()}
    return {n: answer for n, answer in answers.items() if answer.assignments or answer.limits or answer.signals}


def _process(batch: Sequence[tuple[int, Sync]], sent_runs: SentRuns) -> list[Desired]:
    accepted = copies.accepted(batch)
    if all(accepted):
        return _process_accepted(batch, sent_runs)
    kept = [entry for entry, is_accepted in zip(batch, accepted, strict=True) if is_accepted]
    answers = iter(_process_accepted(kept, sent_runs) if kept else [])
    return [
        next(answers) if is_accepted else Desired(seq=sync.seq, error=copies.REFUSAL)
        for (_, sync), is_accepted in zip(batch, accepted, strict=True)
    ]


def _process_accepted(batch: Sequence[tuple[int, Sync]], sent_runs: SentRuns) -> list[Desired]:
    # 1. Write what the messages contain.
    reports = _store(batch)
    # 2. Compare what runs on the nodes with what should; mark the nodes alive.
    latest = dict(batch)
    rows_of = live_ranks(sorted(latest))
    missing = {node_id: _absent(rows, latest[node_id]) for node_id, rows in rows_of.items()}
    faulty = _watch_missing(rows_of, latest)
    _record_limits(rows_of, latest)
    existing = telemetry.record_heartbeats(
        [(node_id, sync.boot_id[:64], agent_clock.clock_offset(sync.at)) for node_id, sync in latest.items()]
    )
    twins = _bring_back([node_id for node_id, heartbeat in existing.items() if not heartbeat.is_online], latest)
    rotating = {node_id for node_id, heartbeat in existing.items() if heartbeat.is_rotation_asked}
    offers = [(node_id, sync.next_credential_hash) for node_id, sync in batch if node_id in rotating]
    stored = rotation.store_offers(offers)
    # 3. Take faulty nodes out of service.
    reasons = auto_cordon.NODE_FAULT_REASONS
    faulty |= {node_id for node_id, report in reports if isinstance(report, Ended) and report.reason in reasons}
    if faulty:
        auto_cordon.cordon_faulty(faulty)
    disks = ((node_id, auto_cordon.unusable_disk(sync.facts)) for node_id, sync in batch if node_id in existing)
    if unusable := {node_id: became for node_id, became in disks if became}:
        auto_cordon.cordon_unusable(unusable)
    # 4. Answer with the orders that follow.
    agent_keys = {node_id: _unsettled(sync) for node_id, sync in latest.items()}
    orders = desired(rows_of, agent_keys, sent_runs, {node_id: sync.limits for node_id, sync in latest.items()})
    signals = pending_signals(rows_of, {node_id: sync.signalled for node_id, sync in latest.items()})
    return [
        replace(
            _answer(orders[node_id], signals.get(node_id, []), sync, missing.get(node_id, [])),
            rotate=node_id in rotating,
            next_credential_hash=sync.next_credential_hash if (node_id, sync.next_credential_hash) in stored else "",
            error=twins.get(node_id),
        )
        if node_id in existing
        else Desired(seq=sync.seq, error=removal.REFUSAL)
        for node_id, sync in batch
    ]


def _store(batch: Sequence[tuple[int, Sync]]) -> list[tuple[int, Report]]:
    """Write reports, checkpoints, facts and readings. Return the reports, by this server's clock and with failures of
    devices attributed."""
    reports = [
        (node_id, agent_clock.to_server_time(report, sync.at)) for node_id, sync in batch for report in sync.reports
    ]
    if not reports:
        # Heartbeats and readings alone need not wait for the disk: the agent sends newer ones a second later.
        execute("SET LOCAL synchronous_commit = off")
    readings = [(node_id, reading) for node_id, sync in batch for reading in sync.readings]
    reports = fault_attribution.attribute_faults(reports, readings)
    # Before the reports: the end of an attempt is final.
    checkpoints.record_checkpoints(
        [
            (node_id, key, agent_clock.text_to_server_time(at, sync.at))
            for node_id, sync in batch
            for key, at in sync.saved.items()
        ]
    )
    rank_end.apply_reports(reports)
    for node_id, sync in batch:
        if sync.facts is not None:
            telemetry.store_facts(node_id, sync.facts)
    if readings:
        # Occupancy that was read before the rank ended must not override the check after its end.
        left = {(node_id, uuid) for node_id, report in reports if isinstance(report, Ended) for uuid in report.left}
        telemetry.store_readings([(n, replace(r, occupancy=None) if (n, r.uuid) in left else r) for n, r in readings])
    return reports


def _unsettled(sync: Sync) -> list[str]:
    ended = {report.key for report in sync.reports if isinstance(report, Ended)}
    return [key for key in sync.held if key not in ended]


def _answer(orders: Desired, signals: list[Signal], sync: Sync, missing: list[str]) -> Desired:
    return Desired(
        seq=sync.seq,
        assignments=orders.assignments,
        limits=orders.limits,
        signals=signals,
        acknowledged=[r.key for r in sync.reports if isinstance(r, Ended)],
        started=[r.key for r in sync.reports if isinstance(r, Started)],
        missing=missing,
    )


def _absent(rows: list[dict[str, Any]], sync: Sync) -> list[str]:
    """Return the ranks that run by the database and that the agent does not list. After a restore, the agent may have
    reported their ends to the database as it was later, and reports them again."""
    running = set(sync.running)
    return [key for row in rows if row["state"] == RankState.RUNNING and (key := key_of(row)) not in running]


def _bring_back(away: list[int], latest: Mapping[int, Sync]) -> dict[int, str]:
    """Mark these nodes online, except for those on which processes of ended attempts still run: their devices must not
    go to other jobs yet. The nodes are locked. Their ranks are read now, because a cycle that lost a node may have
    ended them while this transaction waited for the lock. Return those whose GPUs another node offers, and why."""
    if not away:
        return {}
    rows_of, twins = live_ranks(away), copies.twins(away)
    clean = [node_id for node_id in away if _is_clean(rows_of[node_id], latest[node_id])]
    telemetry.mark_online([node_id for node_id in clean if node_id not in twins])
    return {node_id: f"{refusal}; {copies.TWIN_STEP}" for node_id, refusal in twins.items()}


def _is_clean(rows: list[dict[str, Any]], sync: Sync) -> bool:
    """Return whether no process of an ended attempt is left on the node."""
    ended = {report.key for report in sync.reports if isinstance(report, Ended)}
    return set(sync.running) - ended <= {key_of(row) for row in rows}


def _record_limits(rows_of: dict[int, list[dict[str, Any]]], latest: dict[int, Sync]) -> None:
    """Record which version of a changed time limit is in force for each rank, as its agent reports it. Never a version
    that does not exist, nor an older one than recorded."""
    versions = [
        (row["id"], min(latest[node_id].limits.get(key_of(row), 0), row["limit_version"]), row["limit_in_force"])
        for node_id, rows in rows_of.items()
        if latest[node_id].limits
        for row in rows
    ]
    if newer := [(assignment_id, version) for assignment_id, version, current in versions if version > current]:
        execute(
            "UPDATE nodes_assignment s SET limit_version = t.version FROM unnest(%s::bigint[], %s::int[])"
            " AS t (id, version) WHERE s.id = t.id AND s.limit_version < t.version",
            columns(newer, 2),
        )


def _watch_missing(rows_of: dict[int, list[dict[str, Any]]], latest: dict[int, Sync]) -> set[int]:
    """End ranks that their agents have not listed for MISSING_SECONDS, as a node fault. Return these nodes."""
    absent: list[int] = []
    present: list[int] = []
    by_id: dict[int, tuple[RankKey, int]] = {}
    for node_id, rows in rows_of.items():
        running = set(latest[node_id].running)
        for row in rows:
            if row["state"] == RankState.RUNNING:
                key = (row["job_id"], row["number"], row["rank"])
                by_id[row["id"]] = (key, node_id)
                (present if "{}.{}.{}".format(*key) in running else absent).append(row["id"])
    if not absent and not present:
        return set()
    rows_changed = prepared(
        """UPDATE nodes_assignment SET missing_since = CASE WHEN id = ANY(%(absent)s)
                  THEN coalesce(missing_since, clock_timestamp()) END
            WHERE id = ANY(%(all)s) AND (id = ANY(%(absent)s)) <> (missing_since IS NOT NULL)
               OR id = ANY(%(absent)s) AND missing_since < clock_timestamp() - make_interval(secs => %(most)s)
        RETURNING id, missing_since, missing_since < clock_timestamp() - make_interval(secs => %(most)s) AS is_over""",
        {"absent": absent, "all": absent + present, "most": MISSING_SECONDS},
    )
    overdue = [row for row in rows_changed if row["is_over"]]
    if overdue:
        concerned = job_fields(by_id[row["id"]][0][0] for row in overdue)
        logger.warning("ended %d running ranks that their agents no longer list", len(overdue), extra=concerned)
        rank_end.end_as_node_fault([(*by_id[row["id"]], row["missing_since"]) for row in overdue])
    return {by_id[row["id"]][1] for row in overdue}
