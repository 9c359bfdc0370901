"""The names of a tenant over time: an entry recorded under a name belongs to the tenant that had it then."""

from dataclasses import dataclass
from datetime import datetime

from gpusched.lib.db.sql import query


@dataclass(frozen=True)
class Span:
    """A name from `since` until before `until`; None: until now."""

    name: str
    since: datetime
    until: datetime | None


# A trigger writes the row's history, so it has every name.
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


# Only members of this group are service accounts, whatever the names of other users.
GROUP = "service accounts"
