"""The times at which an endpoint got requests after a pause, and how likely the next ones are. Pure.

Times are seconds since the epoch, hours of the week UTC.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

STEP_SECONDS = 60.0
# Requests that come sooner after the end of the one before are no arrival: the replica is still there.
MIN_GAP_SECONDS = 10.0
WEEK_SECONDS = 7 * 86_400.0
WEEKS = 5
_HOURS = 168
# An arrival of another week counts if it was within one of these of the same time of the week: the narrow one for work
# that a timer starts, the wide one for people.
_NEAR_SECONDS = (60.0, 180.0)
# The gaps of all hours count like so many of the same hour of the week.
_PRIOR_GAPS = 4.0


class Arrival(NamedTuple):
    """A request after a gap. `gap_seconds`: since the end of the request before it."""

    at: float
    gap_seconds: float


class Chances:
    """The estimate of the next arrival from those of the last weeks."""

    def __init__(self, arrivals: Sequence[Arrival], now: float) -> None:
        recent = [arrival for arrival in arrivals if now - WEEKS * WEEK_SECONDS < arrival.at <= now]
        self.number = len(recent)
        first = min([arrival.at for arrival in recent], default=now)
        self._weeks = max((now - first) / WEEK_SECONDS, 1.0)
        self._all = sorted([arrival.gap_seconds for arrival in recent])
        self._by_hour: dict[int, list[float]] = {}
        self._times = sorted([(arrival.at % WEEK_SECONDS, int(arrival.at // WEEK_SECONDS)) for arrival in recent])
        for arrival in recent:
            idle_since = arrival.at - arrival.gap_seconds
            self._by_hour.setdefault(hour_of_week(idle_since), []).append(arrival.gap_seconds)
        for gaps in self._by_hour.values():
            gaps.sort()

    def after_gap(self, idle_since: float, now: float) -> float:
        """Return the chance that the next arrival comes within a step, by the histogram of the gaps that began in this
        hour of the week; those of all hours stand in where it has few."""
        age = now - idle_since
        own, own_left = _within(self._by_hour.get(hour_of_week(idle_since), ()), age)
        every, every_left = _within(self._all, age)
        prior = every / every_left if every_left else 0.0
        return (own + _PRIOR_GAPS * prior) / (own_left + _PRIOR_GAPS)

    def at_time(self, now: float) -> float:
        """Return the chance of an arrival within a step, by the weeks in which one came near this time of the week."""
        middle = (now + STEP_SECONDS / 2) % WEEK_SECONDS
        return max([self._near(middle, near) for near in _NEAR_SECONDS])

    def _near(self, middle: float, near: float) -> float:
        first = bisect_left(self._times, (middle - near, -1))
        last = bisect_left(self._times, (middle + near, -1))
        weeks = len({week for _, week in self._times[first:last]})
        return weeks / (self._weeks + 1.0) * STEP_SECONDS / (2 * near)

    def next_step(self, idle_since: float, now: float) -> float:
        """Return the chance of an arrival within a step from now."""
        return max(self.after_gap(idle_since, now), self.at_time(now))


def hour_of_week(at: float) -> int:
    return int(at // 3600) % _HOURS


def _within(gaps: Sequence[float], age: float) -> tuple[int, int]:
    """Return how many of the sorted gaps end within a step after this age, and how many last at least as long."""
    first = bisect_left(gaps, age)
    return bisect_right(gaps, age + STEP_SECONDS) - first, len(gaps) - first
