"""Asks the engine what would be, about jobs that wait: what would cure their reasons, and when they will start.

On a fresh snapshot; nothing is written. In the web process, one question at a time: a plan is a second of one processor
at worst, and requests must go on."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpusched.lib.sql import rows
from jobs.counting import WAITS
from scheduling import snapshot
from scheduling.engine.counterfactual import Step, obstacles, reason_of
from scheduling.engine.estimate import Estimate, estimates
from scheduling.engine.model import ELEMENT, Policy, Snapshot
from scheduling.engine.planner import plan
from scheduling.policy import policy

turn = threading.Lock()
# With more waiting jobs than this only the plan itself is made, and no other is tried.
MOST_JOBS = snapshot.MOST_ASKED_ABOUT
# How much of their time limits jobs use is learned from so many of the latest attempts; fewer say nothing.
_LATEST, _ENOUGH, _UNKNOWN = 500, 10, 0.5
# Estimates of the whole queue are made together, at most so often.
_FRESH_SECONDS = 5.0
# … and only while no more than this wait: nobody asked for them. A changed limit is judged by so many of the first.
MOST_BEHIND, QUEUE_WORK, MOST_FORESEEN = 2_000, 10_000, 20


class Present(NamedTuple):
    """The cluster at this moment."""

    snapshot: Snapshot
    policy: Policy
    now: float


@dataclass(frozen=True)
class Outlook:
    """What is known of a waiting job. `steps`: its reason, then what else stands in its way."""

    steps: Sequence[Step]
    estimate: Estimate | None


def present(*, held: Sequence[int] = ()) -> Present:
    """Read now. `held`: held jobs, to be seen as if they were released."""
    loaded, seen = snapshot.load(is_whole=True, held=held)
    return Present(loaded, seen.policy, seen.now)


def cluster() -> Present:
    """Nodes and what runs, whoever waits."""
    running = snapshot.running()
    return Present(Snapshot((), running, snapshot.nodes(running), ()), policy(), time.time())


def outlook(job_id: int, *, is_held: bool = False) -> Outlook | None:
    """Why a waiting job waits, what would cure that, and when it will probably start; None: it waits no more."""
    with turn:
        here = present(held=[job_id] if is_held else ())
        if all(job.id != job_id for job in here.snapshot.jobs):
            return None
        if len(here.snapshot.jobs) > MOST_JOBS:
            reason = reason_of(plan(*here), job_id)
            return Outlook([Step(reason, None, False)] if reason else [], None)
        steps = obstacles(*here, job_id)
        return Outlook(steps, estimates(*here, [job_id], typical=typical())[job_id])


@dataclass
class _Foreseen:
    until: float = 0.0
    is_too_many: bool = False
    found: Mapping[int, Estimate] = field(default_factory=dict)


_foreseen = _Foreseen()


def foresee() -> Mapping[int, Estimate]:
    """When each waiting job will probably start; some seconds old. Empty while more than MOST_BEHIND wait."""
    with turn:
        if time.monotonic() > _foreseen.until:
            found = _foresee_all()
            _foreseen.is_too_many, _foreseen.found = found is None, found or {}
            _foreseen.until = time.monotonic() + _FRESH_SECONDS
        return _foreseen.found


def why_unforeseen() -> str:
    """Why a job that waits is not in what `foresee` found."""
    if _foreseen.is_too_many:
        return f"no estimates of the whole queue while more than {MOST_BEHIND:,} jobs wait: ask about this one alone"
    return "no estimate yet: it is worked out every few seconds"


def why_unseen() -> str:
    """Why an outlook has no estimate."""
    return f"no estimate while more than {MOST_JOBS:,} jobs wait"


def _foresee_all() -> Mapping[int, Estimate] | None:
    """None: too many wait."""
    [(waiting,)] = rows(f"SELECT count(*) FROM jobs_job j WHERE {WAITS}")
    if waiting == 0:
        return {}
    if waiting > MOST_BEHIND:
        return None
    here = present()
    if len(here.snapshot.jobs) > MOST_BEHIND:
        return None
    ids = [job.id for job in here.snapshot.jobs if job.id < ELEMENT]
    return estimates(*here, ids, typical=typical(), work=QUEUE_WORK)


def typical() -> float:
    """The part of its time limit that a job used in the median, of late."""
    [(number, median)] = rows(
        """SELECT count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY used) FROM (
               SELECT extract(epoch FROM a.ended_at - a.started_at)::float8 / j.max_runtime_seconds AS used
                 FROM (SELECT * FROM jobs_attempt ORDER BY id DESC LIMIT %s) a JOIN jobs_job j ON j.id = a.job_id
                WHERE a.reason IN ('exited', 'time_limit') AND a.started_at IS NOT NULL
                  AND j.max_runtime_seconds IS NOT NULL) latest""",
        [_LATEST],
    )
    return min(max(float(median), 0.01), 1.0) if number >= _ENOUGH else _UNKNOWN
