"""Kill processes that ended jobs left on GPUs, with growing pauses between a limited number of tries. Only processes
proved to be a job's are touched."""

import logging
import time
from collections.abc import Callable, Iterable

from gpusched.agent import processes

logger = logging.getLogger(__name__)
# After the first try. A process that survives four SIGKILLs in half a minute hangs in the kernel.
PAUSES_SECONDS = (2.0, 8.0, 20.0)
Process = tuple[int, int]  # (pid, start): unique even if the pid is reused


class OrphanKiller:
    """Track which processes it tried to kill, and when. Call it once per reading."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tried: dict[Process, tuple[int, float]] = {}  # number of tries, and when the next is due

    def end(self, orphans: Iterable[Process]) -> list[int]:
        """Kill those of `orphans` that are due, and return their pids. `orphans`: all that exist now."""
        now, killed = self._clock(), []
        self._tried = {process: self._tried.get(process, (0, now)) for process in orphans}
        for process, (times, due_at) in self._tried.items():
            if now < due_at:
                continue
            description = processes.describe(process[0])
            if times > len(PAUSES_SECONDS):
                logger.error("%s, left by a job that ended, ignores SIGKILL; its GPU stays out of service", description)
                self._tried[process] = (times, float("inf"))
            else:
                logger.warning("%s was left by a job that ended; it is killed (try %d)", description, times + 1)
                killed += [process[0]] * processes.kill(*process)
                pause = PAUSES_SECONDS[min(times, len(PAUSES_SECONDS) - 1)]
                self._tried[process] = (times + 1, now + pause)
        return killed
