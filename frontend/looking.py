"""One look at the database for all pages: what is there now, and how it differs from the last look, as messages."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from frontend import feed
from frontend.topics import View


@dataclass(frozen=True)
class News:
    """`rows` None: there is no such job for these viewers. Messages are ready but for topic and number."""

    rows: feed.Rows | None
    snapshot: str | None
    delta: str | None


def look(views: Collection[View], before: Mapping[View, feed.Rows], wanted: Collection[View]) -> dict[View, News]:
    """`before`: the rows of the last look; `wanted`: views of which somebody waits for a snapshot."""
    loaded = feed.load(views)
    news = {}
    for view in views:
        rows = feed.restrict(loaded, *view)
        snapshot = _json('"snapshot":', rows) if rows is not None and view in wanted else None
        delta = _delta(before[view], rows) if rows is not None and view in before else None
        news[view] = News(rows, snapshot, delta)
    return news


def _delta(before: feed.Rows, after: feed.Rows) -> str | None:
    """None when nothing has changed."""
    changed = {key: row for key, row in after.items() if before.get(key) != row}
    gone = [key for key in before if key not in after]
    if not changed and not gone:
        return None
    return _json('"set":', changed)[:-1] + _json(',"gone":', gone)


def _json(name: str, value: object) -> str:
    return f"{name}{msgspec.json.encode(value).decode()}}}"
