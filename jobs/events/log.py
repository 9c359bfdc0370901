"""The events of all jobs in one order, for who follows along: none is skipped, whichever transaction ends first."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from jobs.redaction import visible_evidence

KINDS = (
    "submitted", "scheduled", "started", "stopping", "ended", "requeued", "retried", "held", "released", "eligible",
    "limit_changed", "signal_sent", "cancelled", "part_cancelled", "preempting", "idle_warning", "idle_would_end",
    "idle_over",
)  # fmt: skip
# So many are looked at for one answer, however few of them the reader may see.
MAX_LOOKED_AT = 20_000
_MAX_REMEMBERED = 64

# Who did it: the way of a person, else the agent that told it, or the scheduler.
VIA = """CASE WHEN e.via <> '' OR e.actor NOT IN ('', 'scheduler') THEN e.via
              WHEN e.kind = 'started' OR e.kind = 'ended' AND e.data->>'reason' NOT IN ('node_lost', 'array_ended')
              THEN 'agent' ELSE 'scheduler' END AS via"""
# Who writes a row has locked the table before its id is given out, and lets go of it after the row can be seen. Locks
# are looked at after the statement's snapshot is taken: who is not among them has ended, and the next statement sees
# it.
_NEWEST_AND_RUNNING = """
    SELECT coalesce((SELECT max(id) FROM jobs_jobevent), 0) AS newest,
           ARRAY(SELECT virtualtransaction FROM pg_locks
                  WHERE relation = 'jobs_jobevent'::regclass AND granted AND pid IS DISTINCT FROM pg_backend_pid()
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                    AND mode NOT IN ('AccessShareLock', 'RowShareLock', 'ShareUpdateExclusiveLock', 'ShareLock')
                ) AS running
"""
_AFTER = f"""
    SELECT e.id, e.at, e.job_id, t.name AS tenant, j.name, e.kind, e.attempt, e.actor, {VIA}, e.data
      FROM jobs_jobevent e JOIN jobs_job j ON j.id = e.job_id JOIN tenants_all t ON t.id = j.tenant_id
     WHERE e.id > %(since)s AND e.id <= %(until)s AND (%(visible)s::int[] IS NULL OR j.tenant_id = ANY(%(visible)s))
       AND (%(tenant)s::text IS NULL OR t.name = %(tenant)s) AND (%(kinds)s::text[] IS NULL OR e.kind = ANY(%(kinds)s))
     ORDER BY e.id LIMIT %(limit)s
"""


class Frontier:
    """Up to which id all events are known, committed or never to come.

    Ids are given out before their transactions commit: 11 can be there while 10 is still to come, and who has read on
    from 11 would never see 10. So an id counts once all transactions have ended that were writing events when it was
    first seen. (One that is given ids later has later ones.) Such a transaction delays events while it lasts; it never
    loses one. Others, however long, do not matter."""

    def __init__(self) -> None:
        self.settled = 0
        self._first: int | None = None
        self._lock = threading.Lock()
        self._seen: deque[tuple[int, frozenset[str]]] = deque()

    @property
    def is_waiting(self) -> bool:
        """Whether something has been seen that does not count yet."""
        return bool(self._seen)

    def advance(self) -> int:
        """Looks, and gives the last id that counts."""
        with self._lock:
            [now] = query(_NEWEST_AND_RUNNING)
            running = frozenset(now["running"])
            if self._first is None:
                self._first = now["newest"]
            newest = self._seen[-1][0] if self._seen else self.settled
            if now["newest"] > newest and len(self._seen) < _MAX_REMEMBERED:
                self._seen.append((now["newest"], running))
            while self._seen and not self._seen[0][1] & running:
                self.settled = self._seen.popleft()[0]
            return self.settled

    def now(self) -> int:
        """Looks, and gives the id after which all is new. While the first look of this process does not count yet,
        that is the newest that it saw: what counts is 0 until then, and from there all history would be told."""
        return max(self.advance(), self._first or 0)


frontier = Frontier()


# Not the newest row: that may be of a job that was deleted by its age.
_LAST_ID = "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('jobs_jobevent', 'id')::regclass), 0) AS id"


def require_issued(since: int) -> None:
    """400 for an id that no event has had yet: nothing would be told after it until the ids have come so far."""
    # Another process may have told of one that does not count here yet.
    if since <= frontier.settled:
        return
    [last] = query(_LAST_ID)
    if since > last["id"]:
        said = f"no event has had the id {since} yet, the latest is {last['id']}: was the database restored?"
        step = f"go on with since={last['id']}, or since=0 to read all events again"
        raise Problem(400, "invalid", said, next_step=step, errors=[FieldError("since", "out_of_range", said)])


@dataclass(frozen=True)
class Reader:
    """Who reads: `visible` are the tenants whose jobs they may see (None: all); the others are their wishes."""

    visible: tuple[int, ...] | None
    tenant: str | None = None
    kinds: tuple[str, ...] | None = None
    limit: int = 100


def read(reader: Reader, since: int) -> dict[str, Any]:
    """Up to `limit` events after the id `since`, oldest first; `next_since` goes on from there, and `more` says that
    there is something to look at already, even if nothing was found this time."""
    settled = frontier.advance()
    until = min(settled, since + MAX_LOOKED_AT)
    params = {
        "since": since,
        "until": until,
        "visible": None if reader.visible is None else list(reader.visible),
        "tenant": reader.tenant,
        "kinds": None if reader.kinds is None else list(reader.kinds),
        "limit": reader.limit,
    }
    found = query(_AFTER, params) if since < until else []
    is_admin = reader.visible is None
    items = [
        {**row, "at": rfc3339(row["at"]), "data": visible_evidence(row["data"], is_admin=is_admin)} for row in found
    ]
    reached = items[-1]["id"] if len(items) == reader.limit else max(since, until)
    return {"items": items, "next_since": reached, "more": reached < settled}


def tenants_between(since: int, until: int) -> Sequence[int]:
    """Ids of the tenants that have events after `since`, up to `until`."""
    found = query(
        """SELECT DISTINCT j.tenant_id FROM jobs_jobevent e JOIN jobs_job j ON j.id = e.job_id
            WHERE e.id > %s AND e.id <= %s""",
        [since, until],
    )
    return [row["tenant_id"] for row in found]
