"""All events in one order for followers: no id is skipped, whichever transaction commits first."""

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
# The maximum number of events that one answer examines, however few of them the reader may see.
MAX_LOOKED_AT = 20_000
_MAX_REMEMBERED = 64

# The channel of a person's action; otherwise the agent that reported it, or the scheduler.
VIA = """CASE WHEN e.via <> '' OR e.actor NOT IN ('', 'scheduler') THEN e.via
              WHEN e.kind = 'started' OR e.kind = 'ended' AND e.data->>'reason' NOT IN ('node_lost', 'array_ended')
              THEN 'agent' ELSE 'scheduler' END AS via"""
# A transaction locks the table before its row gets an id, and releases the lock after the row is visible. PostgreSQL
# reads the locks after taking the statement's snapshot: a transaction that is not among them has ended, and the next
# statement sees its rows.
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
       AND (%(tenant)s::bigint IS NULL OR j.tenant_id = %(tenant)s)
       AND (%(kinds)s::text[] IS NULL OR e.kind = ANY(%(kinds)s))
     ORDER BY e.id LIMIT %(limit)s
"""


class Frontier:
    """The id up to which all events are settled: committed, or rolled back for good.

    Transactions get ids before they commit: 11 can be visible before 10, and a reader that continues from 11 would
    never see 10. So an id is settled once all transactions have ended that were writing events when it was first
    observed. (Later writers get later ids.) Such a transaction delays events while it lasts, but loses none.
    Transactions that write no events do not matter, however long they last."""

    def __init__(self) -> None:
        self.settled = 0
        self._lock = threading.Lock()
        self._observed: deque[tuple[int, frozenset[str]]] = deque()

    @property
    def is_waiting(self) -> bool:
        """Return whether observed events are not settled yet."""
        return bool(self._observed)

    def advance(self) -> int:
        """Poll, and return the last settled id."""
        with self._lock:
            [now] = query(_NEWEST_AND_RUNNING)
            running = frozenset(now["running"])
            newest = self._observed[-1][0] if self._observed else self.settled
            if now["newest"] > newest and len(self._observed) < _MAX_REMEMBERED:
                self._observed.append((now["newest"], running))
            while self._observed and not self._observed[0][1] & running:
                self.settled = self._observed.popleft()[0]
            return self.settled


frontier = Frontier()


def newest_id() -> int:
    """Return the id after which all events are new. Not the settled one: in a process without such requests for long,
    that is old until no event is being written, and the reader would get all of the meantime."""
    [newest] = query("SELECT coalesce(max(id), 0) AS id FROM jobs_jobevent")
    return int(newest["id"])


# Not the newest row: retention may have deleted its job.
_LAST_ID = "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('jobs_jobevent', 'id')::regclass), 0) AS id"


def require_issued(since: int) -> None:
    """Raise 400 for an id that no event has had yet: the reader would get nothing until the ids reach it."""
    # Another process may have returned an id that is not settled in this one.
    if since <= frontier.settled:
        return
    [last] = query(_LAST_ID)
    if since > last["id"]:
        message = f"no event has had the id {since} yet, the latest is {last['id']}: was the database restored?"
        step = f"continue with since={last['id']}, or since=0 to read all events again"
        raise Problem(400, "invalid", message, next_step=step, errors=[FieldError("since", "out_of_range", message)])


@dataclass(frozen=True)
class Reader:
    """A reader of events: the tenants `visible` to it (None: all), and its filters. `tenant`: an id, since a tenant can
    be renamed while the reader waits."""

    visible: tuple[int, ...] | None
    tenant: int | None = None
    kinds: tuple[str, ...] | None = None
    limit: int = 100


def read(reader: Reader, since: int) -> dict[str, Any]:
    """Return up to `limit` events after the id `since`, oldest first. `next_since` continues from there; `more`: there
    are events to examine already, even if none matched this time."""
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
    rows = query(_AFTER, params) if since < until else []
    is_admin = reader.visible is None
    items = [
        {**row, "at": rfc3339(row["at"]), "data": visible_evidence(row["data"], is_admin=is_admin)} for row in rows
    ]
    reached = items[-1]["id"] if len(items) == reader.limit else max(since, until)
    return {"items": items, "next_since": reached, "more": reached < settled}


def tenants_between(since: int, until: int) -> Sequence[int]:
    """Return the ids of the tenants that have events after `since`, up to `until`."""
    rows = query(
        """SELECT DISTINCT j.tenant_id FROM jobs_jobevent e JOIN jobs_job j ON j.id = e.job_id
            WHERE e.id > %s AND e.id <= %s""",
        [since, until],
    )
    return [row["tenant_id"] for row in rows]
