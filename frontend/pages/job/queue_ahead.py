"""The jobs ahead of a waiting one: by size, and the nearest visible ones."""

from collections.abc import Collection
from typing import Any

from gpusched.lib.db.sql import query

MAX_NAMED = 5
MAX_SIZES = 8

_AHEAD = """
    FROM jobs_all j, jobs_all me
   WHERE me.id = %(job)s AND j.is_waiting AND j.state <> 'held' AND j.id <> me.id
     AND (-j.priority, j.submitted_at, j.id) < (-me.priority, me.submitted_at, me.id)
"""
_SIZES = f"SELECT j.gpu_count AS gpus, sum(j.weight)::bigint AS jobs {_AHEAD} GROUP BY 1 ORDER BY 1 DESC"
_NEAREST = f"""
    SELECT j.id, j.name, j.gpu_count, j.priority, j.tenant_id, j.submitted_at {_AHEAD}
       AND (%(visible)s::bigint[] IS NULL OR j.tenant_id = ANY(%(visible)s))
     ORDER BY j.priority, j.submitted_at DESC, j.id DESC LIMIT %(most)s
"""


def ahead_of(job_id: int, visible: Collection[int] | None) -> dict[str, Any]:
    """Return `jobs` and `gpus` of all tenants ahead; `sizes`: jobs by GPU count, largest first, and the rest as
    `other`; `nearest`: the closest jobs ahead of tenants in `visible` (None: all)."""
    sizes = query(_SIZES, {"job": job_id})
    largest, other = sizes[:MAX_SIZES], sizes[MAX_SIZES:]
    params = {"job": job_id, "visible": None if visible is None else list(visible), "most": MAX_NAMED}
    return {
        "jobs": sum(row["jobs"] for row in sizes),
        "gpus": sum(row["jobs"] * row["gpus"] for row in sizes),
        "sizes": largest,
        "other": sum(row["jobs"] for row in other),
        "nearest": query(_NEAREST, params),
    }
