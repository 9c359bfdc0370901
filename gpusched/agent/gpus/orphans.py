"""Ends what ended jobs left on GPUs: processes that are proved to be theirs, again and again with longer pauses, then
no more. What anybody else runs is never touched."""

import logging
import time
from collections.abc import Callable, Iterable

from gpusched.agent import processes

logger = logging.getLogger(__name__)
# After the first try. What does not end of four SIGKILLs in half a minute hangs in the kernel, or is not ours to end.
PAUSES_SECONDS = (2.0, 8.0, 20.0)
Process = tuple[int, int]  # (pid, start): never another's


class OrphanKiller:
    """Remembers which processes it tried to end, and when. To be asked once per reading."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tried: dict[Process, tuple[int, float]] = {}  # how often, and when next

    def end(self, found: Iterable[Process]) -> list[int]:
        """Kills those of the processes whose turn it is; gives their pids. `found`: all that are there now."""
        now, killed = self._clock(), []
        self._tried = {one: self._tried.get(one, (0, now)) for one in found}
        for one, (times, due_at) in self._tried.items():
            if now < due_at:
                continue
            who = processes.describe(one[0])
            if times > len(PAUSES_SECONDS):
                logger.error("%s, left by a job that ended, ignores SIGKILL; its GPU stays out of service", who)
                self._tried[one] = (times, float("inf"))
            else:
                logger.warning("%s was left by a job that ended; it is killed (try %d)", who, times + 1)
                killed += [one[0]] * processes.kill(*one)
                pause = PAUSES_SECONDS[min(times, len(PAUSES_SECONDS) - 1)]
                self._tried[one] = (times + 1, now + pause)
        return killed
