"""Periodic work of the cycles' worker, each at its own pace: samples, idle and unstarted jobs, budgets."""

import logging
import time
from collections.abc import Callable

from django.conf import settings

from gpusched.lib.cache import Cache
from jobs.listing import tally
from nodes import held_idle
from nodes.ranks import recovery
from nodes.telemetry import samples
from scheduling import policy
from scheduling.cycle import recorded_cycles
from scheduling.reservations import lifecycle, regular
from scheduling.worker.leadership import LeadershipLost
from tenants.billing import budgets

logger = logging.getLogger(__name__)
REVIEW_SECONDS = 30.0
TRIM_SECONDS = 60.0
STARTS_SECONDS = 10.0
RESERVATIONS_SECONDS = 1.0
REGULAR_SECONDS = 1800.0
# Another worker may have run a little earlier.
TICK_TOLERANCE = 0.8

_last_runs: Cache[str, float] = Cache(max_entries=32)


def run_due() -> None:
    """Run the work that is due. Call it often, between cycles. A failure is logged and retried at its next turn."""
    env = settings.ENV
    _each(env.sample_seconds, "samples", lambda: samples.take_samples(TICK_TOLERANCE * env.sample_seconds))
    _each(RESERVATIONS_SECONDS, "reservations", lambda: lifecycle.review(held_idle.from_policy(policy.values())))
    _each(REGULAR_SECONDS, "regular tenants", regular.book_regular)
    _each(STARTS_SECONDS, "unstarted jobs", recovery.end_unstarted)
    _each(REVIEW_SECONDS, "budgets", budgets.note_crossings)
    _each(REVIEW_SECONDS, "tallies", tally.fold_counters)
    _each(TRIM_SECONDS, "recorded cycles", recorded_cycles.trim)
    _each(REVIEW_SECONDS, "idle jobs", lambda: held_idle.review(held_idle.from_policy(policy.values())))


def _each(seconds: float, name: str, work: Callable[[], object]) -> None:
    now = time.monotonic()
    if now - _last_runs.last(name, float("-inf")) < seconds:
        return
    _last_runs.put(name, now)
    try:
        work()
    except LeadershipLost:
        raise
    except Exception:
        logger.exception("upkeep: %s", name)
