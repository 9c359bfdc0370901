"""Histograms in the database: workers and web processes count, and any web process serves all of them at /metrics."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

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
    rows = []
    for label, values in seconds.items():
        if values:
            counts = [0] * (len(BOUNDS) + 1)
            for value in values:
                counts[bisect_left(BOUNDS, value)] += 1
            rows.append((name, label, str(counts), sum(values)))
    if rows:
        execute(_ADD, columns(rows, 4))


def read(name: str) -> dict[str, tuple[list[int], float]]:
    """Return {label: (counts per bucket, sum of seconds)}."""
    rows = query("SELECT label, counts, total_seconds FROM lib_histogram WHERE name = %s ORDER BY label", [name])
    return {row["label"]: (row["counts"], row["total_seconds"]) for row in rows}
