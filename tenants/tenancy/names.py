"""The names that a tenant has had, each with its time: what was recorded under a name is this tenant's only then."""

from dataclasses import dataclass
from datetime import datetime

from gpusched.lib.db.sql import query


@dataclass(frozen=True)
class Span:
    """A name from `since` until before `until`; None: to this day."""

    name: str
    since: datetime
    until: datetime | None


# The history of the row is written by a trigger, so it has every name.
_NAMES = """
    SELECT name, at FROM (
        SELECT pgh_id, name, pgh_created_at AS at, lag(name) OVER (ORDER BY pgh_id) AS previous
          FROM tenants_tenantevent WHERE pgh_obj_id = %s) e
     WHERE previous IS DISTINCT FROM name ORDER BY pgh_id
"""


def spans(tenant_id: int) -> list[Span]:
    """Return the names of a tenant, oldest first."""
    rows = query(_NAMES, [tenant_id])
    ends = [row["at"] for row in rows[1:]]
    return [Span(row["name"], row["at"], end) for row, end in zip(rows, [*ends, None], strict=False)]


# Its members are such accounts: no person who happens to have the name is taken for one.
GROUP = "service accounts"
