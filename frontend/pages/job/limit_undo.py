"""Whether a person can take back the change of a job's time limit that they made last, and to what it goes back."""

from collections.abc import Mapping
from typing import Any

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query
from gpusched.protocol.rest.time_limits import Extension
from scheduling.whatif import extend
from tenants.auth.identity import Identity

# An element's limit that was changed with its array's goes back with the array's.
_LATEST = """
    SELECT actor, attempt, (data->>'from_seconds')::bigint AS was, (data->>'to_seconds')::bigint AS made
      FROM jobs_jobevent WHERE job_id = %s AND kind = 'limit_changed' AND NOT data ? 'array' ORDER BY id DESC LIMIT 1
"""


def undo_of(job: Mapping[str, Any], who: Identity) -> dict[str, Any]:
    """`job`: `id attempt max_runtime_seconds` of it. `minutes` to go back to and `seen`, the limit in seconds that is
    taken back; empty where there is none of theirs, somebody has changed it since, or it would be refused: no way
    leads back to no limit at all, nor to one that has passed."""
    found = query(_LATEST, [job["id"]])
    if not found:
        return {}
    [event] = found
    is_latest = (event["attempt"], event["made"]) == (job["attempt"], job["max_runtime_seconds"])
    if not is_latest or event["actor"] != who.username or event["was"] is None:
        return {}
    minutes = event["was"] / 60
    try:
        extend.allowed(job["id"], Extension(max_runtime_minutes=minutes), who)
    except Problem:
        return {}
    return {"minutes": minutes, "seen": event["made"]}
