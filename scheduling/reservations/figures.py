"""The figures of reservations for metrics."""

from typing import NamedTuple

from gpusched.lib.db.sql import query

_FIGURES = """
    SELECT (SELECT count(*) FROM scheduling_reservation WHERE state = 'planned') AS planned,
           (SELECT count(*) FROM scheduling_reservation WHERE state = 'active') AS active,
           count(DISTINCT d.id) AS gpus, count(DISTINCT d.id) FILTER (WHERE u.id IS NOT NULL) AS used
      FROM scheduling_reserveddevice d
      LEFT JOIN nodes_allocations l ON l.device_id = d.device_id
      LEFT JOIN nodes_ranks s ON s.id = l.assignment_id
      LEFT JOIN scheduling_reservationuse u
        ON u.reservation_id = d.reservation_id AND u.job_id = s.job_id AND u.attempt = s.number
     WHERE d.is_live AND d.starts_at <= now() AND d.ends_at > now()
"""


class Figures(NamedTuple):
    """Reservations by state, and the GPUs that are reserved now (hard), used by jobs of their owners or idle."""

    planned: int
    active: int
    used_gpus: int
    idle_gpus: int


def figures() -> Figures:
    """Return the present figures."""
    [row] = query(_FIGURES)
    return Figures(row["planned"], row["active"], row["used"], row["gpus"] - row["used"])
