"""Entry points of django-q2."""

import logging
from collections.abc import Sequence

from django.conf import settings

from gpusched import tracing
from gpusched.lib.db.outages import is_temporary, summary
from gpusched.lib.db.sql import execute, retry_atomic
from jobs import retention as job_retention
from jobs.lifecycle import clock_steps as job_clock_steps
from jobs.logs import store
from jobs.submit import idempotency
from nodes import retention
from nodes.health import auto_cordon, clock_steps, device_health, missing_users
from nodes.telemetry import samples
from scheduling.cycle import run as cycles
from scheduling.history import learning
from scheduling.reservations import recurrence
from scheduling.whatif import forecasting
from scheduling.worker import chores, housekeeping, leadership, thermal_moves
from tenants.auth.page_access import drop_expired_sessions

# A standby waits this long in one task. It is longer than most ticks, so that the next task is there, and shorter than
# the timeout of tasks.
STANDBY_SECONDS = 60.0

logger = logging.getLogger(__name__)


def cycle(trigger: str) -> None:
    """Run a cycle and the chores if this worker leads, or soon does. Another leader has received the same wake-up.

    A temporary error of the database ends the task, and the next tick repeats it."""
    tracing.start("gpusched-worker")  # here, because django-q2 forks a new process from time to time
    try:
        _lead(trigger)
    except Exception as error:
        if not is_temporary(error):
            raise
        logger.warning("no cycle: %s", summary(error))


def _lead(trigger: str) -> None:
    if (term := leadership.wait_for_term(STANDBY_SECONDS)) is None:
        return
    with leadership.fenced(term):
        cycles.run_paced(trigger)
        chores.run_due()


def mend() -> int:
    return (
        clock_steps.begin_anew()
        + device_health.quarantine_stale_dirty(settings.ENV.dirty_minutes)
        + retry_atomic(auto_cordon.uncordon_due)
        + thermal_moves.move_off_hot_gpus()
        + recurrence.extend_series()
        + job_clock_steps.end_waits_of_the_future()
    )


def roll_up() -> int:
    rows = samples.roll_up()
    return rows + samples.drop_old(settings.ENV.sample_retention_days, settings.ENV.rollup_retention_days)


def forecast() -> int:
    return forecasting.note()


def learn() -> int:
    return learning.learn()


def drop_old() -> int:
    return (
        missing_users.drop_old()
        + housekeeping.drop_old_failures()
        + idempotency.drop_old_keys()
        + drop_expired_sessions()
        + execute(
            "DELETE FROM scheduling_recordedcycle WHERE %s > 0 AND decided_at < now() - make_interval(secs => %s)",
            [settings.ENV.cycle_retention_days, settings.ENV.cycle_retention_days * 86400],
        )
        + execute(
            "DELETE FROM scheduling_cycle WHERE %s > 0 AND started_at < now() - make_interval(secs => %s)",
            [settings.ENV.cycle_retention_days, settings.ENV.cycle_retention_days * 86400],
        )
        # Last: a storage of logs may be down, or refuse to delete anything.
        + store.drop_old(settings.ENV.log_retention_days)
    )


def drop_old_jobs() -> int:
    return job_retention.run(_delete_related)


def _delete_related(job_ids: Sequence[int], attempt_ids: Sequence[int]) -> None:
    retention.delete_assignments(attempt_ids)
    retention.delete_idle_records(job_ids)
    for table in ("scheduling_claim", "scheduling_forecast", "scheduling_reservationuse"):
        execute(f"DELETE FROM {table} WHERE job_id = ANY(%s::bigint[])", [list(job_ids)])
