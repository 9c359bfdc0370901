"""The rows of topics `queue…`: a window of the waiting jobs in groups, filtered and sorted by the topic."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

from frontend.live.topics import Topic
from frontend.ui.wait_groups import _GROUP, GROUP_ELSE, GROUPS, group_of
from gpusched.lib.db.sql import Row, prepared
from gpusched.lib.times import rfc3339
from gpusched.protocol.arrays import multirange
from jobs.listing import representation
from jobs.listing.queue_position import ORDER, queue_positions
from tenants.auth.page_access import Visible

FIRST_ROWS = 500
# Windows of the page.
WINDOW_ROWS = 200
MAX_ROWS = 500
_WINDOW = re.compile(r"queue(?::(\d{1,7})-(\d{1,7}))?(?:\?(.*))?", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class Window:
    """Matching jobs from `first` to `last` (exclusive, from 0), in an order."""

    first: int = 0
    last: int = FIRST_ROWS
    only: tuple[tuple[str, frozenset[str]], ...] = ()
    text: str = ""
    sort: str = ""
    is_descending: bool = False


# A window without its range, and its viewer.
Selection = tuple[Window, Visible]


@dataclass(frozen=True)
class WindowPage:
    """`ids`: by place among the matches; `groups`: counts of all matches by group."""

    ids: Mapping[int, int]
    groups: list[Row]


@dataclass(frozen=True)
class Queue:
    """The loaded part of the queue. `jobs`, `gpus`: totals of all tenants."""

    jobs: int
    gpus: int
    chosen: Mapping[Selection, WindowPage]
    full: Mapping[int, Row]


SORTS = {
    "submitted": "j.submitted_at",
    "gpus": "j.gpu_count",
    "priority": "j.priority",
    "name": 'lower(j.name) COLLATE "C"',
    "id": "j.id",
}
_CASES = " ".join(
    f"WHEN j.reason IN ({', '.join(repr(str(code)) for code in codes)}) THEN {GROUPS.index(group)}"
    for group, codes in _GROUP.items()
)
_GROUP_SQL = f"CASE WHEN j.state = 'held' THEN {GROUPS.index('held')} {_CASES} ELSE {GROUPS.index(GROUP_ELSE)} END"
# For jobs j: waits for GPUs, not for a user, a time or another job.
IS_WAITING_FOR_GPUS = f"(j.is_waiting AND j.gpu_count > 0 AND {_GROUP_SQL} < {GROUPS.index('you')})"
_TENANT = "j.tenant_id IN (SELECT id FROM tenants_all WHERE {})"
_USER = "j.user_id IN (SELECT id FROM tenants_people WHERE {})"
_FILTERS = {
    "tenant": _TENANT.format("name = ANY(%s)"),
    "user": _USER.format("username = ANY(%s)"),
    "state": "j.state = ANY(%s)",
    "reason": "j.reason = ANY(%s)",
    "group": f"(%s::text[])[1 + {_GROUP_SQL}] IS NOT NULL",
}

_FULL = """
    SELECT j.id, j.name, t.name AS tenant, u.username AS "user", j.state, j.gpu_count, j.gpu_models, j.gpu_memory_mb,
           j.priority, j.submitted_at, j.exit_code, j.signal, j.reason, j.evidence, j.reason_since, j.stop_reason,
           j.stop_evidence, j.max_runtime_seconds, NULL AS placement,
           j.elements_waiting AS elements
      FROM jobs_all j JOIN tenants_all t ON t.id = j.tenant_id JOIN tenants_people u ON u.id = j.user_id
     WHERE j.id = ANY(%s) AND j.is_waiting
"""


@lru_cache(1024)
def window_of(topic: str) -> Window | None:
    """Parse `queue`, `queue:200-400` or `queue:0-100?tenant=nlp&sort=-gpus`; None for another topic."""
    match = _WINDOW.fullmatch(topic)
    if match is None:
        return None
    first, last = int(match[1] or 0), int(match[2] or FIRST_ROWS)
    params = dict(parse_qsl(match[3] or "", keep_blank_values=True))
    if any("\x00" in value for value in params.values()):  # PostgreSQL would fail the load for all viewers
        return None
    sort = params.pop("sort", "")
    text = params.pop("q", "").strip().lower()
    is_known = set(params) <= set(_FILTERS) and sort.removeprefix("-") in ("", *SORTS)
    if not is_known or not first < last <= first + MAX_ROWS:
        return None
    only = tuple((name, frozenset(values.split(","))) for name, values in sorted(params.items()) if values)
    return Window(first, last, only, text, sort.removeprefix("-"), sort.startswith("-"))


def load(windows: Collection[tuple[Window, Visible]]) -> Queue:
    """Load the watched windows. Cost: PostgreSQL counts and sorts the queue, and returns the rows in the windows."""
    spans: dict[Selection, list[tuple[int, int]]] = {}
    for window, visible in windows:
        spans.setdefault(_selection(window, visible), []).append((window.first, window.last))
    counted = {window: _counted(window) for window in {_EVERYTHING, *(window for window, _ in spans)}}
    chosen = {
        (window, visible): WindowPage(_ids(window, visible, sorted(set(ranges))), _groups(counted[window], visible))
        for (window, visible), ranges in spans.items()
    }
    everything = _groups(counted[_EVERYTHING], None)
    ids = sorted({job_id for page in chosen.values() for job_id in page.ids.values()})
    places = queue_positions(ids)
    full = {
        row["id"]: _full(row, places[row["id"]])
        for row in (prepared(_FULL, [ids]) if ids else [])
        if row["id"] in places
    }
    return Queue(_sum(everything, "jobs"), _sum(everything, "gpus"), chosen, full)


def restrict(queue: Queue, window: Window, visible: Visible) -> dict[str, Row]:
    """Return the viewer's jobs in the window by id; `total` counts all tenants, as GET /api/v1/queue does."""
    chosen = queue.chosen[_selection(window, visible)]
    ids = [chosen.ids[place] for place in range(window.first, window.last) if place in chosen.ids]
    # A job that left the queue between the queries is gone in the next load.
    rows = {str(job_id): queue.full[job_id] for job_id in ids if job_id in queue.full}
    total = {
        "jobs": queue.jobs,
        "gpus": queue.gpus,
        "shown": len(rows),
        "rows": _sum(chosen.groups, "rows"),
        "matching": _sum(chosen.groups, "jobs"),
        "groups": chosen.groups,
        "order": [int(key) for key in rows],
    }
    return {**rows, "total": total}


_EVERYTHING = Window(0, 1)


def _selection(window: Window, visible: Visible) -> Selection:
    return replace(window, first=0, last=1), visible


def _ids(window: Window, visible: Visible, spans: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return ids by place, from the first to before the last of each span."""
    condition, params = _condition(window)
    if visible is not None:
        condition, params = f"{condition} AND j.tenant_id = ANY(%s)", [*params, list(visible)]
    order = f"{_GROUP_SQL}, {ORDER}"
    if window.sort:
        order = f"{SORTS[window.sort]} {'DESC' if window.is_descending else ''}, {ORDER}"
    rows = prepared(
        f"""SELECT o.place - 1 AS place, o.id
              FROM unnest(ARRAY(SELECT j.id FROM jobs_all j WHERE j.is_waiting AND {condition}
                                 ORDER BY {order} LIMIT %s))
                   WITH ORDINALITY AS o (id, place)
             WHERE o.place::int - 1 <@ %s::int4multirange""",
        [*params, max(last for _, last in spans), multirange(tuple(spans))],
    )
    return {row["place"]: row["id"] for row in rows}


def _counted(window: Window) -> list[Row]:
    """Count jobs by tenant and group, for all viewers of this window."""
    condition, params = _condition(window)
    return prepared(
        f"""SELECT {_GROUP_SQL} AS number, j.tenant_id, count(*) AS rows, sum(j.weight)::bigint AS jobs,
                   sum(j.weight * j.gpu_count::bigint)::bigint AS gpus
              FROM jobs_all j WHERE j.is_waiting AND {condition} GROUP BY 1, 2""",
        params,
    )


def _groups(counted: Sequence[Row], visible: Visible) -> list[Row]:
    """Sum the counts of the visible tenants by group."""
    by_number: dict[int, Row] = {}
    for row in counted:
        if visible is None or row["tenant_id"] in visible:
            group = by_number.setdefault(
                row["number"], {"group": GROUPS[row["number"]], "rows": 0, "jobs": 0, "gpus": 0}
            )
            for name in ("rows", "jobs", "gpus"):
                group[name] += row[name]
    return [by_number[number] for number in sorted(by_number)]


def _condition(window: Window) -> tuple[str, list[Any]]:
    parts, params = ["true"], list[Any]()
    for name, values in window.only:
        parts.append(_FILTERS[name])
        params.append([group if group in values else None for group in GROUPS] if name == "group" else sorted(values))
    if window.text:
        parts.append(_MATCHES_TEXT)
        params += _searched(window.text) * 4
    return " AND ".join(parts), params


# PostgreSQL may lower-case only ASCII, so other letters of the search text are translated explicitly.
_CONTAINS = "strpos(lower(translate({}, %s, %s)), %s) > 0"
_MATCHES_TEXT = "({})".format(
    " OR ".join((
        _CONTAINS.format("j.id::text"),
        _CONTAINS.format("j.name"),
        _TENANT.format(_CONTAINS.format("name")),
        _USER.format(_CONTAINS.format("username")),
    ))
)  # fmt: skip


def _searched(text: str) -> list[str]:
    """Return the parameters of `_CONTAINS`: upper-case letters, their lower case, and the text."""
    pairs = [(letter.upper(), letter) for letter in sorted(set(text)) if not letter.isascii()]
    single = [(large, small) for large, small in pairs if len(large) == 1]
    return ["".join(large for large, _ in single), "".join(small for _, small in single), text]


def _sum(groups: Sequence[Row], name: str) -> int:
    return sum(group[name] for group in groups)


def _full(row: Row, place: tuple[int, int]) -> Row:
    names = ("id", "name", "tenant", "user", "state", "gpu_count", "gpu_memory_mb", "priority", "elements")
    reason = representation.reason(row)
    return {
        **{name: row[name] for name in names},
        "gpu_model": "|".join(row["gpu_models"]) or None,
        "group": group_of(row["state"], row["reason"]),
        "position": place[0],
        "gpus_ahead": place[1],
        "submitted_at": rfc3339(row["submitted_at"]),
        "reason": reason and {name: reason[name] for name in ("code", "sentence", "next_step", "since")},
    }


TOPICS = (
    Topic(
        "queue",
        lambda requested, _: load([(window, viewer.visible) for window, viewer in requested]),
        lambda queue, window, viewer: restrict(queue, window, viewer.visible),
        key_of=window_of,
        invalidated_by=frozenset({"jobs", "tenants"}),
    ),
)
