"""What-if questions about pending jobs: which changes would let them start, and when they will probably start.

They use a snapshot taken after the question, and write nothing. The what-if process computes the answers (client.py),
so that other requests continue."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from django.db import connection

from gpusched.lib.api.problems import Problem
from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import rows
from scheduling.cycle import eras, free_nodes, running_jobs, snapshot
from scheduling.engine.model import Snapshot
from scheduling.engine.whatif import questions
from scheduling.engine.whatif.estimate import Estimate
from scheduling.engine.whatif.questions import Outlook, Present
from scheduling.policy import policy
from scheduling.reservations import bookings
from scheduling.whatif import outcomes
from scheduling.whatif.client import ask, wait_for_batch

logger = logging.getLogger(__name__)
# With more pending jobs than this, only the plan itself is computed.
MAX_JOBS = snapshot.MAX_ASKED_ABOUT
# The use of time limits is learned from this many of the latest attempts; with too few, a default applies.
_LATEST, _MIN_ATTEMPTS, _DEFAULT_USE = 500, 10, 0.5
# Estimates of the whole queue are computed together, at most this often.
_CACHE_SECONDS = 5.0
# … and only for at most this many pending jobs, because no caller requested them.
MAX_BEHIND = 2_000


class _SharedView(NamedTuple):
    """A view, and the time of the monotonic clock before its read."""

    began: float
    present: Present


_views: Cache[None, _SharedView] = Cache()


def take_snapshot(*, released: Sequence[int] = ()) -> Present:
    """Return a view read after this call, once the what-if process is free. Callers that wait share it. `released`:
    held jobs to include as if they were released."""
    if released or connection.in_atomic_block:  # only a transaction itself can see its writes
        return _read(released)
    called = time.monotonic()
    wait_for_batch()
    return _views.get(None, lambda: _SharedView(time.monotonic(), _read()), lambda view: view.began >= called).present


def _read(released: Sequence[int] = ()) -> Present:
    loaded, basis = snapshot.load(is_whole=True, released=released)
    return Present(loaded, basis.policy, basis.now)


def cluster() -> Present:
    """Return a view of nodes, running jobs and reservations, without pending jobs."""
    booked = bookings.load_bookings()
    era = eras.current_era()
    running = bookings.mark_inside(running_jobs.running(era), booked)
    return Present(Snapshot((), running, free_nodes.nodes(era, running), (), bookings=booked), policy(), time.time())


def outlook(job_id: int, *, released: Sequence[int] = ()) -> Outlook | None:
    """Return why a job is pending, which changes would let it start, and when it will probably start. None if it is no
    longer pending. `released`: jobs to include as if they were not held and waited for no others."""
    view = take_snapshot(released=released)
    if all(job.id != job_id for job in view.snapshot.jobs):
        return None
    if len(view.snapshot.jobs) > MAX_JOBS:
        return ask(view, questions.reason, job_id)
    result = ask(view, questions.outlook, job_id, median_limit_use())
    return replace(result, estimate=calibrated(result.estimate, view.now))


# None: too many jobs wait.
_queue_estimates: Cache[None, Mapping[int, Estimate] | None] = Cache(seconds=_CACHE_SECONDS, stale_seconds=inf)


def queue_estimates() -> Mapping[int, Estimate]:
    """Return when each pending job will probably start, some seconds old; the previous estimates while new ones are
    computed. Empty with more than MAX_BEHIND pending jobs."""
    return _queue_estimates.get(None, _estimate_or_previous) or {}


def _estimate_or_previous() -> Mapping[int, Estimate] | None:
    try:
        return _estimate_all()
    except Problem as problem:  # lists work without estimates
        logger.warning("no estimates of the queue: %s", problem)
        return _queue_estimates.last(None, {})


def why_no_queue_estimate() -> str:
    """Return why a pending job is not in `queue_estimates`."""
    if _queue_estimates.last(None, {}) is None:
        return f"no estimates of the whole queue while more than {MAX_BEHIND:,} jobs wait: explain this job alone"
    return "no estimate yet: estimates are computed every few seconds"


def why_no_outlook_estimate() -> str:
    """Return why an outlook has no estimate."""
    return f"no estimate while more than {MAX_JOBS:,} jobs wait"


def calibrated(estimate: Estimate | None, now: float) -> Estimate | None:
    """Return the estimate, calibrated by earlier outcomes; None for None."""
    return None if estimate is None else outcomes.learned_calibration().applied(estimate, now)


def _estimate_all() -> Mapping[int, Estimate] | None:
    """Return calibrated estimates of all pending jobs; None if there are too many."""
    plain = plain_estimates()
    if plain is None:
        return None
    estimates, now = plain
    learned = outcomes.learned_calibration()
    return {job_id: learned.applied(estimate, now) for job_id, estimate in estimates.items()}


def plain_estimates() -> tuple[Mapping[int, Estimate], float] | None:
    """Return uncalibrated estimates of all pending jobs, and their time; None if there are too many."""
    [(waiting,)] = rows("SELECT count(*) FROM jobs_all j WHERE j.is_waiting")
    if waiting == 0:
        return {}, time.time()
    if waiting > MAX_BEHIND:
        return None
    view = take_snapshot()
    if len(view.snapshot.jobs) > MAX_BEHIND:
        return None
    return ask(view, questions.queue, median_limit_use()), view.now


def median_limit_use() -> float:
    """Return the median fraction of the time limit that recent jobs used."""
    [(number, median)] = rows(
        """SELECT count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY used) FROM (
               SELECT extract(epoch FROM a.ended_at - a.started_at)::float8 / j.max_runtime_seconds AS used
                 FROM (SELECT * FROM jobs_attempts ORDER BY id DESC LIMIT %s) a JOIN jobs_all j ON j.id = a.job_id
                WHERE a.reason IN ('exited', 'time_limit') AND a.started_at IS NOT NULL
                  AND j.max_runtime_seconds IS NOT NULL) latest""",
        [_LATEST],
    )
    return min(max(float(median), 0.01), 1.0) if number >= _MIN_ATTEMPTS else _DEFAULT_USE
