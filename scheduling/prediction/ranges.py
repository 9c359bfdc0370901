"""Adapts the ranges of predictions online, so that p10 to p90 covers 80 % of the ends, also after a shift.

The score of an end is its distance from the predicted median in units of the predicted spread, on the logarithmic
scale. A tracker follows the 10 % and the 90 % quantile of the scores by the quantile tracking of Angelopoulos, Candès
and Tibshirani, "Conformal PID Control for Time Series Prediction" (2023), equation (2): q(t+1) = q(t) + eta (err(t) -
alpha). By their proposition 1 the coverage over T ends deviates from 80 % by at most a constant / (eta T), whatever
the data are: no exchangeability is needed. It is the one-parameter form of adaptive conformal inference (Gibbs and
Candès, 2021). Eta is relative to the distance of the tracked quantile, so it needs no scale.
"""

from typing import NamedTuple

LOW, HIGH = 0.1, 0.9
RATE = 0.15
# A normal distribution has 80 % within this many standard deviations.
_START = 1.28
MIN_OFFSET, MAX_OFFSET = 0.02, 50.0


class Tracker(NamedTuple):
    """The range of one group of ends, in units of the predicted spread around the predicted median."""

    low: float = -_START
    high: float = _START
    end_count: int = 0

    def updated(self, score: float) -> "Tracker":
        """Return the tracker after an end. The first ends move it further, since the start is a guess."""
        width = max(self.high - self.low, 0.2)
        step = RATE * width * (1.0 + 4.0 / (1.0 + self.end_count / 10.0))
        low = self.low - step * ((score < self.low) - LOW)
        high = self.high + step * ((score > self.high) - (1.0 - HIGH))
        return Tracker(*_clamped(low, high), self.end_count + 1)


def _clamped(low: float, high: float) -> tuple[float, float]:
    low, high = max(min(low, MAX_OFFSET), -MAX_OFFSET), max(min(high, MAX_OFFSET), -MAX_OFFSET)
    if high - low < MIN_OFFSET:
        middle = (low + high) / 2.0
        low, high = middle - MIN_OFFSET / 2.0, middle + MIN_OFFSET / 2.0
    return low, high
