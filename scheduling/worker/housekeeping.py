"""Whether the housekeeping cluster works: when each of its tasks last ended well."""

from gpusched.lib.db.sql import query

# Name of a task (scheduling/worker/tasks.py) → minutes from one run to the next.
EVERY_MINUTES = {"mend": 1, "roll_up": 1, "forecast": 1, "drop_old": 60, "drop_old_jobs": 1}
# django-q2 looks at its schedules each 30 s, and one task waits for another.
TIMEOUT_SECONDS = 300.0


def task_ages() -> dict[str, float]:
    """Task → seconds since it last ended without an error; what has not yet is not there."""
    rows = query(
        """SELECT func, extract(epoch FROM clock_timestamp() - max(stopped))::float8 AS age FROM django_q_task
            WHERE success AND func = ANY(%s) GROUP BY func""",
        [[f"scheduling.worker.tasks.{name}" for name in EVERY_MINUTES]],
    )
    return {row["func"].rpartition(".")[2]: row["age"] for row in rows}


def lag_seconds(found: dict[str, float]) -> float | None:
    """By how much the task that is most late is late, of `ages()`; None: one has never ended well."""
    if found.keys() != EVERY_MINUTES.keys():
        return None
    return max(0.0, *(age - 60 * EVERY_MINUTES[name] for name, age in found.items()))


def is_working(lag: float | None) -> bool:
    return lag is not None and lag < TIMEOUT_SECONDS
