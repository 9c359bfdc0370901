"""The housekeeping cluster: when each of its tasks last succeeded, and its schedules after the clock was set back."""

from django.utils import timezone

from gpusched.lib.db.sql import execute, query

# Name of a task (scheduling/worker/tasks.py) → minutes from one run to the next.
EVERY_MINUTES = {"mend": 1, "roll_up": 1, "forecast": 1, "learn": 1, "drop_old": 60, "drop_old_jobs": 1}
# django-q2 checks its schedules every 30 s, and tasks wait for each other.
TIMEOUT_SECONDS = 300.0


def task_ages() -> dict[str, float]:
    """Return {task: seconds since it last succeeded}, without tasks that never have."""
    rows = query(
        """SELECT func, extract(epoch FROM clock_timestamp() - max(stopped))::float8 AS age FROM django_q_task
            WHERE success AND func = ANY(%s) GROUP BY func""",
        [_functions()],
    )
    return {row["func"].rpartition(".")[2]: row["age"] for row in rows}


def lag_seconds(ages: dict[str, float]) -> float | None:
    """Return the delay of the latest task in `ages`; None if one has never succeeded."""
    if ages.keys() != EVERY_MINUTES.keys():
        return None
    return max(0.0, *(age - 60 * EVERY_MINUTES[name] for name, age in ages.items()))


def is_working(lag: float | None) -> bool:
    return lag is not None and lag < TIMEOUT_SECONDS


# django-q2 plans a task by the clock of its host, at most one period ahead.
_RUN_NOW = """
    UPDATE django_q_schedule SET next_run = %(now)s
     WHERE name = ANY(%(names)s) AND next_run > %(now)s + make_interval(mins => minutes + 1)
"""
# They would count as the latest, and django-q2 would delete new ones instead of them.
_FORGET = """
    DELETE FROM django_q_task WHERE func = ANY(%(functions)s) AND stopped > %(now)s + interval '1 minute'
"""


def resume_after_clock_step() -> None:
    """Run tasks now that wait for a time before which the clock was set back: otherwise none runs until then."""
    now = timezone.now()
    if execute(_RUN_NOW, {"now": now, "names": list(EVERY_MINUTES)}):
        execute(_FORGET, {"now": now, "functions": _functions()})


# django-q2 keeps all of them. A cycle can fail each second, and a row has several KB.
KEPT_FAILURES = 100
_DROP_FAILURES = """
    DELETE FROM django_q_task WHERE id IN (
        SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY func ORDER BY stopped DESC) AS number
                          FROM django_q_task WHERE NOT success) f WHERE f.number > %s)
"""


def drop_old_failures() -> int:
    """Delete all but the latest failures of each task. Return how many."""
    return execute(_DROP_FAILURES, [KEPT_FAILURES])


def _functions() -> list[str]:
    return [f"scheduling.worker.tasks.{name}" for name in EVERY_MINUTES]
