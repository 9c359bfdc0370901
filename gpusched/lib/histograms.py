"""Histograms in the database: workers and web processes count, and any web process serves all of them at /metrics."""

import threading
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from gpusched.lib.db.sql import columns, execute, query

BOUNDS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
    7200.0,
    86400.0,
)

_ADD = """
    INSERT INTO lib_histogram AS h (name, label, counts, total_seconds)
    SELECT t.name, t.label, ARRAY(SELECT jsonb_array_elements_text(t.counts)::bigint), t.total
      FROM unnest(%s::text[], %s::text[], %s::jsonb[], %s::float8[]) AS t (name, label, counts, total)
     ORDER BY t.name, t.label
    ON CONFLICT (name, label) DO UPDATE
       SET total_seconds = h.total_seconds + excluded.total_seconds,
           counts = ARRAY(SELECT a + b FROM unnest(h.counts, excluded.counts) WITH ORDINALITY AS u (a, b, n) ORDER BY n)
"""


def observe(name: str, seconds: Mapping[str, Sequence[float]]) -> None:
    """Add observations {label: [seconds, …]} to the histogram `name`, inside the caller's transaction."""
    pending = Pending()
    for label, values in seconds.items():
        for value in values:
            pending.add(name, label, value)
    pending.flush()


class Pending:
    """Observations of this process that are not in the database yet. Any thread may add some.

    For what happens hundreds of times a second: one write for all of them is cheap, and takes no lock that another
    process waits for. A process that is killed loses what it has not flushed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._totals: dict[tuple[str, str], float] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, name: str, label: str, value: float) -> None:
        """Add an observation to the histogram `name`."""
        bucket = bisect_left(BOUNDS, value)
        with self._lock:
            self._counts.setdefault((name, label), [0] * (len(BOUNDS) + 1))[bucket] += 1
            self._totals[name, label] = self._totals.get((name, label), 0.0) + value

    def flush(self) -> None:
        """Write the observations. They stay pending if that fails."""
        with self._lock:
            counts, totals, self._counts, self._totals = self._counts, self._totals, {}, {}
        if not counts:
            return
        try:
            execute(_ADD, columns([(*key, str(counts[key]), totals[key]) for key in counts], 4))
        except BaseException:
            with self._lock:
                for key, more in counts.items():
                    known = self._counts.get(key, [0] * len(more))
                    self._counts[key] = [a + b for a, b in zip(known, more, strict=True)]
                    self._totals[key] = self._totals.get(key, 0.0) + totals[key]
            raise


# The web process flushes it once a second (serving/hub.py).
pending = Pending()


def read(name: str) -> dict[str, tuple[list[int], float]]:
    """Return {label: (counts per bucket, sum of seconds)}."""
    rows = query("SELECT label, counts, total_seconds FROM lib_histogram WHERE name = %s ORDER BY label", [name])
    return {row["label"]: (row["counts"], row["total_seconds"]) for row in rows}


def drop(name: str, labels: Collection[str]) -> None:
    """Delete observations of things that no longer exist."""
    execute("DELETE FROM lib_histogram WHERE name = %s AND label = ANY(%s)", [name, list(labels)])
