"""Totals of ended jobs by state and of attempts by reason. Triggers keep them, so that no query counts the history.

Each statement that ends jobs appends a row, which takes no lock that another one waits for. Housekeeping adds the rows
up. Unfinished jobs are few, and are counted (jobs/listing/counts.py)."""

import pgtrigger
from django.db import models

from gpusched.lib.db.sql import execute, query
from gpusched.protocol.states import FINAL

# For IN in SQL.
FINAL_STATES = ", ".join(f"'{state}'" for state in sorted(FINAL))
# Subtracts the old rows and adds the new ones; the rest cancels out. No join, for the reason in jobs/models.py.
_ADD = "INSERT INTO jobs_tally (kind, word, n) SELECT"
_JOBS_CHANGED = f"""
    {_ADD} 'job', c.state, sum(c.n) FROM (
        SELECT state, 1 AS n FROM new_jobs WHERE state IN ({FINAL_STATES})
         UNION ALL SELECT state, -1 FROM old_jobs WHERE state IN ({FINAL_STATES})) c
     GROUP BY c.state HAVING sum(c.n) <> 0;
    RETURN NULL;
"""
_JOBS_DELETED = f"""
    {_ADD} 'job', state, -count(*) FROM old_jobs WHERE state IN ({FINAL_STATES}) GROUP BY state;
    RETURN NULL;
"""
_ATTEMPTS_ENDED = f"""
    {_ADD} 'attempt', c.reason, sum(c.n) FROM (
        SELECT reason, 1 AS n FROM new_attempts WHERE ended_at IS NOT NULL
         UNION ALL SELECT reason, -1 FROM old_attempts WHERE ended_at IS NOT NULL) c
     GROUP BY c.reason HAVING sum(c.n) <> 0;
    RETURN NULL;
"""
_ATTEMPTS_DELETED = f"""
    {_ADD} 'attempt', reason, -count(*) FROM old_attempts WHERE ended_at IS NOT NULL GROUP BY reason;
    RETURN NULL;
"""


def _referencing(**tables: str) -> pgtrigger.Referencing:
    return pgtrigger.Referencing(**tables)  # type: ignore[no-untyped-call]


def _statement(name: str, operation: pgtrigger.Operation, func: str, **tables: str) -> pgtrigger.Trigger:
    return pgtrigger.Trigger(
        name=name, level=pgtrigger.Statement, when=pgtrigger.After, operation=operation,
        referencing=_referencing(**tables), func=func,
    )  # fmt: skip


OF_JOBS = (
    _statement("tally_changed", pgtrigger.Update, _JOBS_CHANGED, old="old_jobs", new="new_jobs"),
    _statement("tally_deleted", pgtrigger.Delete, _JOBS_DELETED, old="old_jobs"),
    # For rows that are inserted finished, such as an import. For others PostgreSQL checks only the condition.
    pgtrigger.Trigger(
        name="tally_inserted", when=pgtrigger.After, operation=pgtrigger.Insert,
        condition=pgtrigger.Condition(f"NEW.state IN ({FINAL_STATES})"),
        func=f"{_ADD} 'job', NEW.state, 1; RETURN NULL;",
    ),
)  # fmt: skip
OF_ATTEMPTS = (
    _statement("tally_ended", pgtrigger.Update, _ATTEMPTS_ENDED, old="old_attempts", new="new_attempts"),
    _statement("tally_deleted", pgtrigger.Delete, _ATTEMPTS_DELETED, old="old_attempts"),
    pgtrigger.Trigger(
        name="tally_inserted", when=pgtrigger.After, operation=pgtrigger.Insert,
        condition=pgtrigger.Condition("NEW.ended_at IS NOT NULL"),
        func=f"{_ADD} 'attempt', NEW.reason, 1; RETURN NULL;",
    ),
)  # fmt: skip


class Tally(models.Model):
    """`n` more jobs (`kind`) that ended in state `word`, or attempts for that reason. Totals are sums over the rows."""

    kind = models.CharField(max_length=10)
    word = models.CharField(max_length=30)
    n = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.n} of {self.kind} {self.word}"


def attempts_by_reason() -> dict[str, int]:
    """Return {reason: ended attempts}."""
    rows = query("SELECT word, sum(n)::bigint AS n FROM jobs_tally WHERE kind = 'attempt' GROUP BY word")
    return {row["word"]: row["n"] for row in rows}


def fold_counters() -> None:
    """Add up the appended rows. Concurrent runs are harmless: only one of them deletes a row."""
    execute(
        "WITH removed AS (DELETE FROM jobs_tally RETURNING kind, word, n)"
        " INSERT INTO jobs_tally (kind, word, n) SELECT kind, word, sum(n) FROM removed GROUP BY kind, word"
        " HAVING sum(n) <> 0"
    )
