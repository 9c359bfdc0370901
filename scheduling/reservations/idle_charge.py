"""Charge idle reserved time to the owner of the reservation, so that each moment of a reserved device is in the ledger
once: as use of a job, or as reserved.

What a rank has used is known when it ends. So the idle time of a device is charged up to now, or up to the placement of
the job that holds it now."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from gpusched.lib.db.sql import columns, execute, query
from tenants.billing import ledger

# While a reservation lasts, each entry of its ledger covers at least this time.
SETTLE_SECONDS = 600.0

# One statement, and so one moment: a job that ends meanwhile holds the device still, or its use is in the ledger.
_DUE = """
    SELECT d.id, d.reservation_id, d.device_id, d.starts_at, d.ends_at, d.charged_to, d.pieces, r.tenant_id, r.user_id,
           coalesce(n.name, '') AS node, coalesce(v.model, '') AS gpu_model,
           (SELECT sum(o.pieces) FROM scheduling_reserveddevice o
             WHERE o.reservation_id = d.reservation_id AND o.device_id = d.device_id) AS entries,
           least(d.ends_at, %(now)s, (
               SELECT min(a.scheduled_at) FROM nodes_allocations l JOIN nodes_ranks s ON s.id = l.assignment_id
                 JOIN jobs_attempts a ON a.id = s.attempt_id WHERE l.device_id = d.device_id)) AS until,
           (SELECT coalesce(jsonb_agg(jsonb_build_array(
                       extract(epoch FROM u.started_at), extract(epoch FROM u.ended_at), u.gpus)), '[]')
              FROM tenants_all t JOIN tenants_usage u ON u.tenant_id = t.id  -- the index of the ledger starts there
             WHERE u.device_id = d.device_id AND u.cause <> 'reserved' AND u.ended_at > d.charged_to
               AND u.started_at < d.ends_at AND u.started_at < u.ended_at) AS uses
      FROM scheduling_reserveddevice d JOIN scheduling_reservation r ON r.id = d.reservation_id
      LEFT JOIN nodes_all n ON n.id = d.node_id LEFT JOIN nodes_devices v ON v.id = d.device_id
     WHERE NOT d.is_settled AND d.charged_to < %(now)s AND (d.ends_at <= %(now)s OR d.charged_to <= %(since)s)
     ORDER BY d.id
"""
_SETTLED = """
    UPDATE scheduling_reserveddevice d
       SET charged_to = t.until, pieces = t.pieces, is_settled = t.until >= d.ends_at
      FROM unnest(%s::bigint[], %s::timestamptz[], %s::int[]) AS t (id, until, pieces) WHERE d.id = t.id
"""


class Piece(NamedTuple):
    """Idle time of a device, and the part of the device that was idle."""

    started_at: datetime
    ended_at: datetime
    gpus: float


def settle(now: datetime) -> int:
    """Charge the idle time that is due, with the lock RESERVATIONS held since before `now`. Return the number of
    entries."""
    due = query(_DUE, {"now": now, "since": now - timedelta(seconds=SETTLE_SECONDS)})
    charges: list[ledger.Charge] = []
    settled: list[tuple[int, datetime, int]] = []
    # A device that was lost and chosen again has several rows, and their entries have different numbers.
    added = Counter[tuple[int, int]]()
    for row in due:
        until = max(row["until"], row["charged_to"])
        pieces = idle_pieces(row["charged_to"], until, row["uses"])
        device = row["reservation_id"], row["device_id"]
        charges += [_charge(row, piece, n) for n, piece in enumerate(pieces, row["entries"] + added[device])]
        added[device] += len(pieces)
        settled.append((row["id"], until, row["pieces"] + len(pieces)))
    ledger.charge(charges)
    if settled:
        execute(_SETTLED, columns(settled, 3))
    return len(charges)


def idle_pieces(start: datetime, end: datetime, uses: Sequence[Sequence[float]]) -> list[Piece]:
    """Return the idle time between two moments. `uses`: (start, end, part of the device), seconds since the epoch."""
    if start >= end:
        return []
    zone, first, last = start.tzinfo, start.timestamp(), end.timestamp()
    moments = {first, last, *(moment for use in uses for moment in use[:2] if first < moment < last)}
    ordered = sorted(moments)
    pieces: list[Piece] = []
    for since, until in pairwise(ordered):
        idle = 1.0 - sum(part for began, ended, part in uses if began < until and ended > since)
        if idle < 1e-9:
            continue
        a = start if since == first else datetime.fromtimestamp(since, zone)
        b = end if until == last else datetime.fromtimestamp(until, zone)
        if pieces and pieces[-1].ended_at == a and abs(pieces[-1].gpus - idle) < 1e-9:
            pieces[-1] = pieces[-1]._replace(ended_at=b)
        else:
            pieces.append(Piece(a, b, idle))
    return pieces


def _charge(row: dict[str, Any], piece: Piece, number: int) -> ledger.Charge:
    return ledger.Charge(
        row["tenant_id"], row["user_id"], 0, row["reservation_id"], number, row["device_id"], row["node"],
        row["gpu_model"], None, piece.gpus, piece.started_at, piece.ended_at, ledger.RESERVED,
    )  # fmt: skip
