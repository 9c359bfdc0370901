"""Represent reservations for the API and the pages."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339

# `used_gpus`: those that jobs in it hold now, alone or together.
_RESERVATIONS = """
    SELECT r.id, t.name AS tenant, p.username AS "user", r.gpus, r.gpu_models, r.gpu_memory_mb, r.node_selector,
           r.one_node, r.starts_at, r.ends_at, r.recurrence, r.series_id, r.is_hard, r.is_lease, r.source,
           r.confidence, r.note, r.state, r.problem, r.created_at, r.claimed_at, r.ended_at, r.is_no_show,
           (SELECT coalesce(array_agg(u.username ORDER BY u.username), '{}') FROM tenants_people u
             WHERE u.id = ANY(r.user_ids)) AS users,
           d.devices, j.jobs, j.used_gpus
      FROM scheduling_reservation r JOIN tenants_all t ON t.id = r.tenant_id
      LEFT JOIN tenants_people p ON p.id = r.user_id
     CROSS JOIN LATERAL (
           SELECT coalesce(jsonb_agg(jsonb_build_object('node', n.name, 'index', v.index, 'model', v.model)
                                     ORDER BY n.name, v.index), '[]') AS devices
             FROM scheduling_reserveddevice d JOIN nodes_devices v ON v.id = d.device_id
             JOIN nodes_all n ON n.id = v.node_id
            WHERE d.reservation_id = r.id AND (d.is_live OR NOT r.is_hard OR d.ends_at = r.ends_at)) d
     CROSS JOIN LATERAL (
           SELECT coalesce(array_agg(DISTINCT j.id ORDER BY j.id), '{}') AS jobs,
                  count(DISTINCT l.device_id) AS used_gpus
             FROM scheduling_reservationuse u JOIN jobs_all j ON j.id = u.job_id AND j.attempt = u.attempt
             JOIN nodes_ranks s ON s.job_id = j.id AND s.number = u.attempt AND s.state <> 'ended'
             LEFT JOIN nodes_allocations l ON l.assignment_id = s.id
            WHERE u.reservation_id = r.id) j
     WHERE (%(ids)s::bigint[] IS NULL OR r.id = ANY(%(ids)s))
       AND (%(visible)s::bigint[] IS NULL OR r.tenant_id = ANY(%(visible)s))
       AND (%(states)s::text[] IS NULL OR r.state = ANY(%(states)s))
       AND (%(start)s::timestamptz IS NULL OR r.ends_at > %(start)s)
       AND (%(end)s::timestamptz IS NULL OR r.starts_at < %(end)s)
       AND (%(before)s::bigint IS NULL OR r.id < %(before)s)
     ORDER BY r.id DESC LIMIT %(limit)s
"""


def represent_reservations(
    visible: Sequence[int] | None,
    ids: Sequence[int] | None = None,
    *,
    states: Sequence[str] | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    before: int | None = None,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """Return reservations of these tenants (None: all), newest first. `start`, `end`: those that overlap with this
    time; `before`: with a smaller id."""
    params = {
        "ids": None if ids is None else list(ids),
        "visible": None if visible is None else list(visible),
        "states": None if states is None else list(states),
        "start": start,
        "end": end,
        "before": before,
        "limit": limit,
    }
    return [_represent(row) for row in query(_RESERVATIONS, params)]


def _represent(row: dict[str, Any]) -> dict[str, Any]:
    times = ("starts_at", "ends_at", "created_at", "claimed_at", "ended_at")
    plain = (
        "id", "tenant", "user", "users", "gpus", "gpu_memory_mb", "node_selector", "one_node", "source", "confidence",
        "note", "state", "problem", "is_no_show", "devices", "jobs", "used_gpus",
    )  # fmt: skip
    return {
        **{name: row[name] for name in plain},
        **{name: rfc3339(row[name]) for name in times},
        "gpu_model": "|".join(row["gpu_models"]) or None,
        "recurrence": row["recurrence"] or None,
        "series": row["series_id"],
        "kind": "hard" if row["is_hard"] else "soft",
        "lease": row["is_lease"],
    }
