"""Recorded readings of the GPUs of one attempt, reduced to the resolution of a chart."""

from datetime import UTC, datetime

from django.conf import settings

from gpusched.lib.db.sql import Row, query
from nodes.telemetry.samples import ROLLUP_SECONDS

READINGS = ("utilisation_percent", "memory_used_mb", "temperature_celsius", "power_watts")
MAX_DEVICES = 32
MAX_POINTS = 240
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_ATTEMPT = """
    SELECT number, placement, extract(epoch FROM coalesce(started_at, scheduled_at))::float8 AS from_at,
           extract(epoch FROM coalesce(ended_at, clock_timestamp()))::float8 AS until_at,
           ended_at IS NULL AS is_live
      FROM jobs_attempts WHERE job_id = %s AND number = coalesce(%s, (
           SELECT max(number) FROM jobs_attempts WHERE job_id = %s))
"""
# Means over equal parts of the attempt: of samples, and of roll-ups where samples are deleted.
_MEANS = {"utilisation_percent": "utilisation_mean", "memory_used_mb": "memory_mean",
          "temperature_celsius": "temperature_mean", "power_watts": "power_mean"}  # fmt: skip
_READINGS = """
    SELECT device_id, floor((extract(epoch FROM at) - %(from)s) / %(step)s)::int AS place, {means} FROM (
        SELECT device_id, at, {names} FROM nodes_samples
         WHERE device_id = ANY(%(devices)s) AND at BETWEEN to_timestamp(%(from)s) AND to_timestamp(%(until)s)
         UNION ALL
        SELECT device_id, at, {rolled} FROM nodes_rollups
         WHERE device_id = ANY(%(devices)s) AND at >= to_timestamp(%(from)s) AND at < %(first)s) kept
     GROUP BY 1, 2 ORDER BY 1, 2
""".format(
    means=", ".join(f"avg({name})::float8 AS {name}" for name in READINGS),
    names=", ".join(READINGS),
    rolled=", ".join(_MEANS[name] for name in READINGS),
)
# Roll-ups count before the first sample; if samples start with the attempt, none do.
_FIRST = """
    SELECT coalesce(min(at), to_timestamp(%(until)s)) AS at,
           coalesce(min(at) > to_timestamp(%(from)s) + interval '10 minutes', true) AS is_late
      FROM nodes_samples
     WHERE device_id = ANY(%(devices)s) AND at BETWEEN to_timestamp(%(from)s) AND to_timestamp(%(until)s)
"""
# By UUID, as placed: a device can have moved to another node since.
_DEVICES = "SELECT id, uuid, memory_mb FROM nodes_devices WHERE uuid = ANY(%s)"


def readings(job_id: int, number: int | None = None) -> Row | None:
    """Return readings of an attempt (None: the latest) until its end or now, or None if it does not exist.

    `devices`: at most MAX_DEVICES, each with `times` (seconds since the epoch) and a list for each of READINGS, null if
    unknown; `step`: seconds between two times."""
    attempts = query(_ATTEMPT, [job_id, number, job_id])
    if not attempts:
        return None
    attempt = attempts[0]
    placed = [
        {"rank": rank["rank"], "node": rank["node"], **{key: device.get(key) for key in ("index", "uuid", "model")}}
        for rank in attempt["placement"]
        for device in rank["devices"]
    ]
    visible = placed[:MAX_DEVICES]
    devices = (
        {row["uuid"]: row for row in query(_DEVICES, [[device_placed["uuid"] for device_placed in visible]])}
        if visible
        else {}
    )
    span = max(attempt["until_at"] - attempt["from_at"], 1.0)
    step = max(settings.ENV.sample_seconds, span / MAX_POINTS)
    params = {
        "from": attempt["from_at"],
        "until": attempt["until_at"],
        "devices": [row["id"] for row in devices.values()],
    }
    rows, step = _load(params, step)
    return {
        "attempt": attempt["number"],
        "from": attempt["from_at"],
        "until": attempt["until_at"],
        "is_live": attempt["is_live"],
        "step": step,
        "gpus": len(placed),
        "devices": [
            _device(device_placed, devices.get(device_placed["uuid"]), rows, attempt["from_at"], step)
            for device_placed in visible
        ],
    }


def _load(params: Row, step: float) -> tuple[list[Row], float]:
    """Return the rows and their step."""
    if not params["devices"]:
        return [], step
    [first] = query(_FIRST, params)
    if first["is_late"]:
        step = max(step, float(ROLLUP_SECONDS))
    at = first["at"] if first["is_late"] else _EPOCH
    rows = query(_READINGS, {**params, "step": step, "first": at})
    return rows, step


def _device(placed: Row, device: Row | None, rows: list[Row], from_at: float, step: float) -> Row:
    device_rows = [row for row in rows if device is not None and row["device_id"] == device["id"]]
    return {
        **{name: placed[name] for name in ("rank", "node", "index", "model")},
        "memory_mb": device["memory_mb"] if device else None,
        "times": [round(from_at + (row["place"] + 0.5) * step, 1) for row in device_rows],
        **{name: [None if row[name] is None else round(row[name], 1) for row in device_rows] for name in READINGS},
    }
