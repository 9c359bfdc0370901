"""The rows of topics `queue…`: a window of the waiting jobs in groups, filtered and sorted as the topic says."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from frontend.access import Visible
from gpusched.lib.sql import query
from gpusched.lib.sql import rows as tuples
from gpusched.lib.times import rfc3339
from gpusched.protocol.reasons import Pending
from jobs import representation
from jobs.counting import WAITS, WEIGHT

Row = dict[str, Any]
FIRST_ROWS = 500
MOST_ROWS = 500
_MOST_TEXT = 200
_WINDOW = re.compile(r"queue(?::(\d{1,7})-(\d{1,7}))?(?:\?(.*))?", re.ASCII | re.DOTALL)

# On what a job waits, in the order in which the page shows it.
GROUPS = ("next", "quota", "capacity", "you", "held")
_GROUP = {
    "next": (Pending.STARTING, Pending.SCHEDULER_BEHIND, Pending.RECLAIM_PENDING),
    "quota": (Pending.QUOTA_WAIT, Pending.TENANT_LIMIT, Pending.BUDGET, Pending.USER_CAP),
    "you": (
        Pending.NEVER_FITS,
        Pending.CONSTRAINT,
        Pending.NOT_BEFORE,
        Pending.RETRY_BACKOFF,
        Pending.DEPENDENCY,
        Pending.MAX_PARALLEL,
    ),
}
_GROUP_OF = {str(code): group for group, codes in _GROUP.items() for code in codes}


class Waiting(NamedTuple):
    """As much of a waiting job as it takes to choose and to count; in the order of the queue. `jobs`: as how many it
    counts; an array as its elements that wait."""

    id: int
    tenant_id: int
    tenant: str
    user: str
    state: str
    reason: str
    gpu_count: int
    priority: int
    submitted_at: float
    name: str
    jobs: int

    @property
    def gpus(self) -> int:
        return self.gpu_count * self.jobs

    @property
    def group(self) -> str:
        return group_of(self.state, self.reason)


@dataclass(frozen=True)
class Window:
    """Jobs number `first` to `last` (exclusive, from 0) of those that fit, in an order."""

    first: int = 0
    last: int = FIRST_ROWS
    only: tuple[tuple[str, frozenset[str]], ...] = ()
    text: str = ""
    sort: str = ""
    is_descending: bool = False


@dataclass
class Queue:
    """All that wait, with their places, and in full those that somebody sees."""

    waiting: Sequence[Waiting]
    gpus_ahead: Sequence[int]
    full: dict[int, Row] = field(default_factory=dict)
    _chosen: dict[tuple[Window, Visible], tuple[list[int], list[Row]]] = field(default_factory=dict)

    def chosen(self, window: Window, visible: Visible) -> tuple[list[int], list[Row]]:
        """Places in the queue of the window's jobs, and how many of all that fit are in each group."""
        if (window, visible) not in self._chosen:
            self._chosen[window, visible] = _choose(self.waiting, window, visible)
        return self._chosen[window, visible]


_SORTS: dict[str, Callable[[Waiting], Any]] = {
    "submitted": lambda job: job.submitted_at,
    "gpus": lambda job: job.gpu_count,
    "priority": lambda job: job.priority,
    "name": lambda job: job.name.casefold(),
    "id": lambda job: job.id,
}
_FILTERS = ("tenant", "user", "state", "reason", "group")

# The same order as GET /api/v1/queue.
_WAITING = f"""
    SELECT j.id, j.tenant_id, t.name, u.username, j.state, j.reason, j.gpu_count, j.priority,
           extract(epoch FROM j.submitted_at)::float8, j.name, {WEIGHT}
      FROM jobs_job j JOIN tenants_tenant t ON t.id = j.tenant_id JOIN auth_user u ON u.id = j.user_id
     WHERE {WAITS} ORDER BY j.priority DESC, j.submitted_at, j.id
"""
_FULL = f"""
    SELECT j.id, j.name, t.name AS tenant, u.username AS "user", j.state, j.gpu_count, j.gpu_models, j.gpu_memory_mb,
           j.priority, j.submitted_at, j.exit_code, j.signal, j.reason, j.evidence, j.reason_since, j.stop_reason,
           j.stop_evidence, j.max_runtime_seconds, NULL AS placement,
           jobs_numbers(j.array_waiting) AS elements
      FROM jobs_job j JOIN tenants_tenant t ON t.id = j.tenant_id JOIN auth_user u ON u.id = j.user_id
     WHERE j.id = ANY(%s) AND {WAITS}
"""


def group_of(state: str, code: str) -> str:
    """On what a waiting job waits: one of GROUPS."""
    return "held" if state == "held" else _GROUP_OF.get(code, "capacity")


@lru_cache(1024)
def window_of(topic: str) -> Window | None:
    """What `queue`, `queue:200-400` or `queue:0-100?tenant=nlp&sort=-gpus` asks for; None: no such topic."""
    found = _WINDOW.fullmatch(topic)
    if found is None or len(topic) > _MOST_TEXT:
        return None
    first, last = int(found[1] or 0), int(found[2] or FIRST_ROWS)
    asked = dict(parse_qsl(found[3] or "", keep_blank_values=True))
    sort = asked.pop("sort", "")
    text = asked.pop("q", "").strip().casefold()
    is_known = set(asked) <= set(_FILTERS) and sort.removeprefix("-") in ("", *_SORTS)
    if not is_known or not first < last <= first + MOST_ROWS:
        return None
    only = tuple((name, frozenset(values.split(","))) for name, values in sorted(asked.items()) if values)
    return Window(first, last, only, text, sort.removeprefix("-"), sort.startswith("-"))


def load(windows: Collection[tuple[Window, Visible]]) -> Queue:
    """`windows`: what is watched, and by whom."""
    waiting = [Waiting(*row) for row in tuples(_WAITING)]
    ahead = [0, *accumulate(job.gpus for job in waiting)]
    queue = Queue(waiting, ahead)
    seen = {waiting[at].id for window, visible in windows for at in queue.chosen(window, visible)[0]}
    queue.full = {row["id"]: _full(row) for row in query(_FULL, [sorted(seen)])} if seen else {}
    return queue


def restrict(queue: Queue, window: Window, visible: Visible) -> dict[str, Row]:
    """The viewer's jobs in the window by id; `total` counts everybody's, as GET /api/v1/queue does."""
    chosen, groups = queue.chosen(window, visible)
    rows: dict[str, Row] = {}
    for at in chosen:
        job = queue.waiting[at]
        # One that has left the queue between the two questions is gone with the next look.
        if full := queue.full.get(job.id):
            rows[str(job.id)] = {**full, "group": job.group, "position": at + 1, "gpus_ahead": queue.gpus_ahead[at]}
    total = {
        "jobs": sum(job.jobs for job in queue.waiting),
        "gpus": queue.gpus_ahead[-1],
        "shown": len(rows),
        "matching": sum(group["jobs"] for group in groups),
        "groups": groups,
        "order": [int(key) for key in rows],
    }
    return {**rows, "total": total}


def _choose(waiting: Sequence[Waiting], window: Window, visible: Visible) -> tuple[list[int], list[Row]]:
    buckets: dict[str, list[int]] = {group: [] for group in GROUPS}
    for at in _fitting(waiting, window, visible):
        buckets[waiting[at].group].append(at)
    groups = [
        {
            "group": group,
            "jobs": sum(waiting[at].jobs for at in places),
            "gpus": sum(waiting[at].gpus for at in places),
        }
        for group, places in buckets.items()
        if places
    ]
    order = [at for places in buckets.values() for at in places]
    if window.sort:
        sort = _SORTS[window.sort]
        order.sort()
        order.sort(key=lambda at: sort(waiting[at]), reverse=window.is_descending)
    return order[window.first : window.last], groups


def _fitting(waiting: Sequence[Waiting], window: Window, visible: Visible) -> Iterator[int]:
    allowed = None if visible is None else frozenset(visible)
    for at, job in enumerate(waiting):
        if allowed is not None and job.tenant_id not in allowed:
            continue
        if all(getattr(job, name) in values for name, values in window.only) and _says(job, window.text):
            yield at


def _says(job: Waiting, text: str) -> bool:
    return not text or any(text in part.casefold() for part in (str(job.id), job.name, job.user, job.tenant))


def _full(row: Row) -> Row:
    names = ("id", "name", "tenant", "user", "state", "gpu_count", "gpu_memory_mb", "priority", "elements")
    reason = representation.reason(row)
    return {
        **{name: row[name] for name in names},
        "gpu_model": "|".join(row["gpu_models"]) or None,
        "submitted_at": rfc3339(row["submitted_at"]),
        "reason": reason and {name: reason[name] for name in ("code", "sentence", "next_step", "since")},
    }
