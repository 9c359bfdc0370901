"""After the clock of the database was set back: what runs is still charged for as long as it ran (A53).

A run time is the difference of two readings of that clock, and no agent is trusted to report a longer one. So the times
of what runs are set back with the clock. A step forward needs nothing: agents report how long their ranks ran."""

import logging
import time
from datetime import timedelta

from django.db import DatabaseError, connections

from gpusched.lib.bus import events
from gpusched.lib.db.sql import query, retry_atomic
from jobs.lifecycle import clock_steps as job_clock_steps
from nodes.ranks import clock_steps as rank_clock_steps

logger = logging.getLogger(__name__)


class DatabaseClock:
    """The clock of the database. It is set back together with that of this host if both are one machine."""

    def __init__(self) -> None:
        """Call it before the process forks: a fork would share its connection."""
        self._ahead = _seconds_ahead()
        connections.close_all()

    def host_was_set_back(self, seconds: float) -> None:
        """Move the times of what runs back if the clock of the database was set back with this host's."""
        try:
            self._follow(seconds)
        except DatabaseError:
            logger.exception("the clock was set back by %.1f s; what runs now will be charged too little", seconds)
        finally:
            connections.close_all()

    def _follow(self, seconds: float) -> None:
        before, self._ahead = self._ahead, _seconds_ahead()
        if abs(self._ahead - before) > seconds / 2:
            logger.warning("the clock of this host was set back by %.1f s, that of the database was not", seconds)
            return
        jobs = retry_atomic(lambda: _move_live_back(timedelta(seconds=seconds)))
        logger.warning("the clock was set back by %.1f s; the times of %d live jobs move with it", seconds, len(jobs))


def _move_live_back(by: timedelta) -> list[int]:
    jobs = job_clock_steps.move_live_back(by)
    rank_clock_steps.move_live_back(jobs, by)
    events.changed("jobs", jobs)
    return jobs


def _seconds_ahead() -> float:
    """Return by how many seconds the clock of the database is ahead of this host's: the quickest of three answers."""
    return min(_compared() for _ in range(3))[1]


def _compared() -> tuple[float, float]:
    """Return how long the database took to answer, and how far its clock was ahead."""
    began, now = time.monotonic(), time.time()
    [row] = query("SELECT extract(epoch FROM clock_timestamp())::float8 AS now")
    return time.monotonic() - began, row["now"] - now
