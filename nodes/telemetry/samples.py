"""Store samples of all devices, GPU-seconds by status and by holder, and 5-minute roll-ups; delete old ones.

One tick writes samples and both counts, so that they agree: for each device it counts the time since the previous tick
as the present status. The four counters therefore always add up to GPUs times wall time, also across restarts and
pauses of the worker."""

import time
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from gpusched.lib.db.sql import execute, query, retry_atomic
from nodes.health.gpu_status import GPU_STATUS, GPU_STATUSES, HOLDERS, IS_HELD, IS_REPLACED

ROLLUP_SECONDS = 300
# After a long pause, one call makes up for at most this many periods.
MAX_PERIODS = 36
# Rows of one DELETE, and the time of one run: 8,000 GPUs have 32,000 new samples a minute, the time between two runs.
MAX_DROPPED, DROP_SECONDS = 20_000, 10.0

# Also after a clock that was far ahead, maybe by years: nothing would be counted before that time.
_BEGIN = """
    INSERT INTO nodes_gpuclock (id, counted_until, busy, held_idle, free, unavailable)
    VALUES (1, coalesce(%(now)s::timestamptz, clock_timestamp()), 0, 0, 0, 0)
    ON CONFLICT (id) DO UPDATE SET counted_until = excluded.counted_until
     WHERE nodes_gpuclock.counted_until > excluded.counted_until + interval '10 min'
"""
# A device that is neither read nor held has no sample, but its time is counted.
_TICK = """
    WITH clock AS (
        SELECT counted_until, coalesce(%(now)s::timestamptz, clock_timestamp()) AS now
          FROM nodes_gpuclock WHERE id = 1 FOR UPDATE),
    look AS (
        SELECT d.id, c.now, {cell} AS cell, {held} AS is_held,
               greatest(extract(epoch FROM c.now - greatest(c.counted_until, d.known_since)), 0)::float8 AS seconds,
               CASE WHEN r.read_at > c.now - interval '30 seconds' THEN r.device_id END AS read_id
          FROM clock c CROSS JOIN nodes_device d JOIN nodes_node n ON n.id = d.node_id
          LEFT JOIN nodes_reading r ON r.device_id = d.id {holders}
         WHERE c.now >= c.counted_until + make_interval(secs => %(least)s) AND NOT {replaced}),
    kept AS (
        INSERT INTO nodes_sample (device_id, at, cell, seconds, utilisation_percent, memory_used_mb,
                                  temperature_celsius, power_watts)
        SELECT l.id, l.now, l.cell, l.seconds, r.utilisation_percent, r.memory_used_mb, r.temperature_celsius,
               r.power_watts
          FROM look l LEFT JOIN nodes_reading r ON r.device_id = l.read_id
         WHERE l.read_id IS NOT NULL OR l.is_held ORDER BY l.id
        ON CONFLICT (device_id, at) DO NOTHING),
    spent AS (
        INSERT INTO nodes_heldday (day, tenant_id, user_id, gpu_model, held_seconds, idle_seconds)
        SELECT (l.now AT TIME ZONE 'UTC')::date, h.tenant_id, h.user_id, h.gpu_model, sum(l.seconds * h.gpu_weight),
               coalesce(sum(l.seconds * h.gpu_weight) FILTER (WHERE l.cell = 'held_idle'), 0)
          FROM look l JOIN nodes_held h ON h.device_id = l.id
         WHERE l.seconds > 0 GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
        ON CONFLICT (day, tenant_id, user_id, gpu_model) DO UPDATE
           SET held_seconds = nodes_heldday.held_seconds + excluded.held_seconds,
               idle_seconds = nodes_heldday.idle_seconds + excluded.idle_seconds),
    total AS (SELECT max(now) AS now, {sums} FROM look)
    UPDATE nodes_gpuclock g SET counted_until = t.now, {added} FROM total t WHERE g.id = 1 AND t.now IS NOT NULL
""".format(
    cell=GPU_STATUS,
    held=IS_HELD,
    replaced=IS_REPLACED,
    holders=HOLDERS,
    sums=", ".join(f"coalesce(sum(seconds) FILTER (WHERE cell = '{cell}'), 0) AS {cell}" for cell in GPU_STATUSES),
    added=", ".join(f"{cell} = g.{cell} + t.{cell}" for cell in GPU_STATUSES),
)


def take_samples(minimum_seconds: float, now: datetime | None = None) -> bool:
    """Store a sample of each device and count its time. Do nothing and return False if the last tick was less than
    `minimum_seconds` ago: another worker's, or the clock was set back."""
    return retry_atomic(lambda: _tick({"least": minimum_seconds, "now": now}))


def _tick(params: dict[str, Any]) -> bool:
    # A crash of the database loses a sample at most, and the next tick counts its time.
    execute("SET LOCAL synchronous_commit = off")
    if execute(_BEGIN, params):
        return False  # counting begins now
    return bool(execute(_TICK, params))


def gpu_seconds() -> dict[str, float]:
    """Return {status: GPU-seconds} since counting began."""
    rows = query("SELECT busy, held_idle, free, unavailable FROM nodes_gpuclock WHERE id = 1")
    return rows[0] if rows else dict.fromkeys(GPU_STATUSES, 0.0)


_BY = {
    "tenant": "t.name",
    "user": "coalesce(u.username, 'user ' || h.user_id)",
    "model": "h.gpu_model",
    "day": "to_char(h.day, 'YYYY-MM-DD')",
}


def held_gpu_seconds(tenant_ids: Sequence[int], since: date, until: date, by: str) -> list[dict[str, Any]]:
    """Return the GPU-seconds that jobs of these tenants held from one day to another (both included), as `day key
    held_seconds idle_seconds`. `by`: tenant, user, model or day."""
    return query(
        f"""SELECT to_char(h.day, 'YYYY-MM-DD') AS day, {_BY[by]} AS key, sum(h.held_seconds) AS held_seconds,
                   sum(h.idle_seconds) AS idle_seconds
              FROM nodes_heldday h JOIN tenants_all t ON t.id = h.tenant_id
               LEFT JOIN tenants_people u ON u.id = h.user_id
             WHERE h.tenant_id = ANY(%s) AND h.day BETWEEN %s AND %s GROUP BY 1, 2 ORDER BY 1, 2""",
        [list(tenant_ids), since, until],
    )


_SHORT = {"utilisation_percent": "utilisation", "memory_used_mb": "memory", "temperature_celsius": "temperature",
          "power_watts": "power"}  # fmt: skip
_STATISTICS = [(f"{short}_{suffix}", f"{function}(s.{name})") for name, short in _SHORT.items()
               for suffix, function in (("min", "min"), ("mean", "avg"), ("max", "max"))]  # fmt: skip
# A tick after a pause of the worker may count more seconds than the period has.
_ROLL_UP = """
    INSERT INTO nodes_rollup (device_id, at, samples, held_seconds, busy_seconds, {names})
    SELECT s.device_id, date_bin(%(period)s, s.at, 'epoch') AS period, count(*),
           least(coalesce(sum(s.seconds) FILTER (WHERE s.cell IN ('busy', 'held_idle')), 0), %(seconds)s),
           least(coalesce(sum(s.seconds) FILTER (WHERE s.cell = 'busy'), 0), %(seconds)s), {statistics}
      FROM nodes_sample s WHERE s.at >= %(since)s AND s.at < %(until)s GROUP BY s.device_id, period
     ORDER BY s.device_id, period
    ON CONFLICT (device_id, at) DO NOTHING
""".format(names=", ".join(name for name, _ in _STATISTICS), statistics=", ".join(value for _, value in _STATISTICS))
# From the first sample without a roll-up to the end of the last complete period.
_DUE = """
    SELECT since, least(since + %(most)s * %(period)s::interval,
                        date_bin(%(period)s, coalesce(%(now)s::timestamptz, clock_timestamp()), 'epoch')) AS until
      FROM (SELECT date_bin(%(period)s, min(at), 'epoch') AS since FROM nodes_sample
             WHERE at >= coalesce((SELECT max(at) + %(period)s::interval FROM nodes_rollup
                                    WHERE at <= coalesce(%(now)s::timestamptz, clock_timestamp())), '-infinity')) s
"""


def roll_up(now: datetime | None = None) -> int:
    """Write the roll-ups of complete periods that have none. Return how many rows. `at` is the start of the period.
    Unknown values do not count."""
    return retry_atomic(lambda: _roll_up(now))


def _roll_up(now: datetime | None) -> int:
    # Wait for a tick in progress: its samples may belong to the period that has just ended.
    query("SELECT 1 FROM nodes_gpuclock WHERE id = 1 FOR UPDATE")
    period = f"{ROLLUP_SECONDS} seconds"
    [due] = query(_DUE, {"period": period, "most": MAX_PERIODS, "now": now})
    if due["since"] is None or due["since"] >= due["until"]:
        return 0
    return execute(_ROLL_UP, {"period": period, "seconds": ROLLUP_SECONDS, **due})


def drop_old(sample_days: float, rollup_days: float) -> int:
    """Delete samples, roll-ups and incidents older than these days (0: none), for at most about DROP_SECONDS. Return
    how many."""
    until = time.monotonic() + DROP_SECONDS
    old = (("nodes_sample", "at", sample_days), ("nodes_rollup", "at", rollup_days),
           ("nodes_incident", "until", rollup_days))  # fmt: skip
    return sum(_drop(table, at, days, until) for table, at, days in old if days)


def _drop(table: str, at: str, days: float, until: float) -> int:
    sql = (
        f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE {at} < now() - make_interval(secs => %s)"
        f" ORDER BY {at} LIMIT %s)"
    )
    count = 0
    while True:
        deleted = execute(sql, [days * 86400, MAX_DROPPED])
        count += deleted
        if deleted < MAX_DROPPED or time.monotonic() > until:
            return count


def history(device_id: int, resolution: str, since: datetime, limit: int) -> list[dict[str, Any]]:
    """Return samples (`raw`) or roll-ups (`5m`) of a device from `since` on, oldest first."""
    raw = ["cell", "seconds", *_SHORT]
    rolled = ["samples", "held_seconds", "busy_seconds", *(name for name, _ in _STATISTICS)]
    names, table = (raw, "nodes_sample") if resolution == "raw" else (rolled, "nodes_rollup")
    return query(
        f"SELECT at, {', '.join(names)} FROM {table} WHERE device_id = %s AND at >= %s ORDER BY at LIMIT %s",
        [device_id, since, limit],
    )
