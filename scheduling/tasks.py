"""The django-q2 entry points, one line each."""

from django.conf import settings

from gpusched.lib.sql import execute
from jobs import logs
from nodes import health, telemetry
from scheduling import cycle as cycles


def cycle(trigger: str) -> None:
    cycles.run_rested(trigger)


def keep_samples() -> int:
    return telemetry.keep_samples(settings.ENV.sample_seconds)


def mend() -> int:
    return health.give_up_on_dirty(settings.ENV.dirty_minutes)


def drop_old() -> int:
    return (
        telemetry.drop_samples(settings.ENV.sample_retention_days)
        + logs.drop_old(settings.ENV.log_retention_days)
        + execute("DELETE FROM jobs_idempotencykey WHERE created_at < now() - interval '24 hours'")
        + execute(
            "DELETE FROM scheduling_cycle WHERE started_at < now() - make_interval(secs => %s)",
            [settings.ENV.cycle_retention_days * 86400],
        )
    )
