"""What would be, about jobs that wait: what would cure their reasons, and when they will start.

Of the cluster as it is after the question came; nothing is written. The what-if process answers it (client.py), so that
requests go on."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from django.db import connection

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import rows
from scheduling.cycle import snapshot
from scheduling.engine.model import Snapshot
from scheduling.engine.whatif import questions
from scheduling.engine.whatif.estimate import Estimate
from scheduling.engine.whatif.questions import Outlook, Present
from scheduling.policy import policy
from scheduling.whatif import outcomes
from scheduling.whatif.client import ask, wait_for_batch

logger = logging.getLogger(__name__)
# With more waiting jobs than this only the plan itself is made, and no other is tried.
MAX_JOBS = snapshot.MAX_ASKED_ABOUT
# How much of their time limits jobs use is learned from so many of the latest attempts; fewer say nothing.
_LATEST, _ENOUGH, _UNKNOWN = 500, 10, 0.5
# Estimates of the whole queue are made together, at most so often.
_CACHE_SECONDS = 5.0
# … and only while no more than this wait: nobody asked for them.
MAX_BEHIND = 2_000


class _Read(NamedTuple):
    """`number`: how many reads had begun when it did, itself among them."""

    number: int
    present: Present | None


_reading = threading.Lock()
_begun = 0
_latest = _Read(0, None)


def take_snapshot(*, held: Sequence[int] = ()) -> Present:
    """Read after this was called, once the adviser is free, by whoever comes first: those who wait share it. `held`:
    held jobs, to be seen as if they were released."""
    global _begun, _latest
    is_shared = not (held or connection.in_atomic_block)  # what a transaction has written only it may see
    first = _begun + 1
    if is_shared:
        wait_for_batch()
    with _reading:
        if is_shared and _latest.present is not None and _latest.number >= first:
            return _latest.present
        _begun += 1
        number = _begun
        loaded, seen = snapshot.load(is_whole=True, held=held)
        found = Present(loaded, seen.policy, seen.now)
        if is_shared:
            _latest = _Read(number, found)
        return found


def cluster() -> Present:
    """Nodes and what runs, whoever waits."""
    running = snapshot.running()
    return Present(Snapshot((), running, snapshot.nodes(running), ()), policy(), time.time())


def outlook(job_id: int, *, is_held: bool = False) -> Outlook | None:
    """Why a waiting job waits, what would cure that, and when it will probably start; None: it waits no more."""
    here = take_snapshot(held=[job_id] if is_held else ())
    if all(job.id != job_id for job in here.snapshot.jobs):
        return None
    if len(here.snapshot.jobs) > MAX_JOBS:
        return ask(here, questions.reason, job_id)
    found = ask(here, questions.outlook, job_id, median_limit_use())
    return replace(found, estimate=calibrated(found.estimate, here.now))


@dataclass
class _Foreseen:
    until: float = 0.0
    is_too_many: bool = False
    found: Mapping[int, Estimate] = field(default_factory=dict)


_foreseen = _Foreseen()
_foreseeing = threading.Lock()


def queue_estimates() -> Mapping[int, Estimate]:
    """When each waiting job will probably start; some seconds old, or as it was while that is worked out. Empty while
    more than MAX_BEHIND wait."""
    if time.monotonic() > _foreseen.until and _foreseeing.acquire(blocking=False):
        try:
            found = _foresee_all()
            _foreseen.is_too_many, _foreseen.found = found is None, found or {}
        except Problem as problem:  # a list is there without it
            logger.warning("no estimates of the queue: %s", problem)
        finally:
            _foreseen.until = time.monotonic() + _CACHE_SECONDS
            _foreseeing.release()
    return _foreseen.found


def why_unforeseen() -> str:
    """Why a job that waits is not in what `foresee` found."""
    if _foreseen.is_too_many:
        return f"no estimates of the whole queue while more than {MAX_BEHIND:,} jobs wait: ask about this one alone"
    return "no estimate yet: it is worked out every few seconds"


def why_unseen() -> str:
    """Why an outlook has no estimate."""
    return f"no estimate while more than {MAX_JOBS:,} jobs wait"


def calibrated(estimate: Estimate | None, now: float) -> Estimate | None:
    """Return the estimate as earlier ones turned out; None for none."""
    return None if estimate is None else outcomes.learnt().applied(estimate, now)


def _foresee_all() -> Mapping[int, Estimate] | None:
    """None: too many wait."""
    plain = plain_estimates()
    if plain is None:
        return None
    found, now = plain
    learnt = outcomes.learnt()
    return {job_id: learnt.applied(estimate, now) for job_id, estimate in found.items()}


def plain_estimates() -> tuple[Mapping[int, Estimate], float] | None:
    """Return the uncalibrated estimates of all waiting jobs and the moment they are of; None: too many wait."""
    [(waiting,)] = rows("SELECT count(*) FROM jobs_all j WHERE j.is_waiting")
    if waiting == 0:
        return {}, time.time()
    if waiting > MAX_BEHIND:
        return None
    here = take_snapshot()
    if len(here.snapshot.jobs) > MAX_BEHIND:
        return None
    return ask(here, questions.queue, median_limit_use()), here.now


def median_limit_use() -> float:
    """The part of its time limit that a job used in the median, of late."""
    [(number, median)] = rows(
        """SELECT count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY used) FROM (
               SELECT extract(epoch FROM a.ended_at - a.started_at)::float8 / j.max_runtime_seconds AS used
                 FROM (SELECT * FROM jobs_attempts ORDER BY id DESC LIMIT %s) a JOIN jobs_all j ON j.id = a.job_id
                WHERE a.reason IN ('exited', 'time_limit') AND a.started_at IS NOT NULL
                  AND j.max_runtime_seconds IS NOT NULL) latest""",
        [_LATEST],
    )
    return min(max(float(median), 0.01), 1.0) if number >= _ENOUGH else _UNKNOWN
