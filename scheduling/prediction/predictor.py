"""Predicts run times from the ends of similar jobs: the narrow keys, shrunk towards the wider ones."""

from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from typing import NamedTuple

from scheduling.prediction.ends import MIN_SECONDS, Summary, decayed
from scheduling.prediction.keys import TEMPLATE_KEY, TENANT_KEYS, JobKind, keys_of
from scheduling.prediction.ranges import Tracker
from scheduling.prediction.survival import shape_of, survivors_quantile

# For each key from narrow to wide: the weight of ends at which it counts as much as all wider keys together. Runs of
# one command differ little from each other and much from those of other commands, so few of them count for much.
_PRIORS = (0.15, 0.3, 3.0, 5.0, 1.0)
# The spread that is assumed for a key, worth this many ends, until its own ends show it.
_SPREADS, _SPREAD_WORTH = (0.4, 0.6, 1.5, 1.8, 2.0), 3.0
# Groups of predictions whose ranges adapt together: by the weight of the ends with the same template.
_GROUP_BOUNDS = (0.4, 1.5, 4.5, 12.0)


class Estimate(NamedTuple):
    """The median and spread of the logarithm of a run time. `level`: the narrowest key with ends, an index of the keys;
    `end_count`: how many ends it has. `group`: the group of its range."""

    median: float
    spread: float
    level: int
    end_count: int
    group: int


class Prediction(NamedTuple):
    """A run time in seconds: half of such jobs take at most `p50`, one of ten at most `p10` and nine at most `p90`."""

    p10: float
    p50: float
    p90: float
    level: int
    end_count: int


# Jobs are ordered by less than the mean of the lognormal distribution, exp(median + spread^2 / 2), since wide spreads
# come from few ends: with half of the exponent the mean wait in benchmarks/prediction.py was the shortest.
_MEAN_PART = 0.25
# The p90 of a normal distribution in standard deviations.
_P90 = 1.2816
# Without a time limit, ten years: a guess from few failures may be absurd.
MAX_SECONDS = 10 * 365 * 86400.0

Find = Callable[[str], Summary | None]


def estimate(find: Find, keys: Sequence[str], now: float) -> Estimate | None:
    """Return the estimate from the summaries of the keys, narrow to wide; None without any end."""
    median = spread = 0.0
    level, count, template_weight = -1, 0, 0.0
    for number in range(len(keys) - 1, -1, -1):
        summary = find(keys[number])
        if summary is None:
            continue
        if summary.weight == 0.0 and level >= 0:
            median = max(median, summary.median)
            continue
        weight = decayed(summary, now)
        own = (summary.weight * summary.spread + _SPREAD_WORTH * _SPREADS[number]) / (summary.weight + _SPREAD_WORTH)
        part = 1.0 if level < 0 else weight / (weight + _PRIORS[number])
        median += part * (summary.median - median)
        spread += part * (own - spread)
        level, count = number, summary.end_count
        if number <= TEMPLATE_KEY:
            template_weight = weight
    if level < 0:
        return None
    return Estimate(median, spread, level, count, sum(template_weight >= bound for bound in _GROUP_BOUNDS))


def predict(basis: Estimate, tracker: Tracker, limit_seconds: float | None) -> Prediction:
    """Return the prediction in seconds, between 10 s and the time limit."""
    low, high = (
        clamped(exp(min(basis.median + offset * basis.spread, 25.0)), limit_seconds)
        for offset in (min(tracker.low, 0.0), max(tracker.high, 0.0))
    )
    return Prediction(low, clamped(exp(basis.median), limit_seconds), high, basis.level, basis.end_count)


def clamped(seconds: float, limit_seconds: float | None) -> float:
    """Return the seconds between 10 s and the time limit. A shorter limit goes before the 10 s."""
    seconds = min(max(seconds, MIN_SECONDS), MAX_SECONDS)
    return seconds if limit_seconds is None else min(seconds, limit_seconds)


def given_elapsed(prediction: Prediction, elapsed: float, limit_seconds: float | None) -> Prediction:
    """Return the prediction of a job that has run for so long: the quantiles of those that survive as long."""
    if elapsed <= 0.0:
        return prediction
    shape = shape_of(prediction.p50, max(prediction.p90, prediction.p50))
    quantiles = [
        clamped(survivors_quantile(prediction.p50, shape, elapsed, part), limit_seconds) for part in (0.1, 0.5, 0.9)
    ]
    return prediction._replace(p10=quantiles[0], p50=quantiles[1], p90=quantiles[2])


def score(basis: Estimate, seconds: float) -> float:
    """Return the distance of a run time from the median, in units of the spread."""
    return (log(max(seconds, MIN_SECONDS)) - basis.median) / basis.spread


def order_seconds(basis: Estimate, sibling_seconds: float, limit_seconds: float | None) -> float:
    """Return the run time by which jobs are ordered. `sibling_seconds`: how long the first running job with the same
    template has run; until one has ended, its age is all that is known of a new command."""
    seconds = exp(min(basis.median + _MEAN_PART * basis.spread**2, 25.0))
    if basis.group == 0 and sibling_seconds > 0.0:
        shape = shape_of(1.0, exp(min(_P90 * basis.spread, 25.0)))
        seconds = survivors_quantile(seconds, shape, sibling_seconds, 0.5)
    return clamped(seconds, limit_seconds)


class Predictor:
    """Predictions from summaries and trackers in memory. `trackers`: by (tenant, group)."""

    def __init__(self, summaries: Mapping[str, Summary], trackers: Mapping[tuple[int, int], Tracker]) -> None:
        self._summaries, self._trackers = summaries, trackers

    def order_seconds(
        self, keys: Sequence[str], now: float, limit_seconds: float | None, sibling_seconds: float = 0.0
    ) -> float | None:
        """Return the run time by which a job with these keys is ordered; None without any end."""
        basis = estimate(self._summaries.get, keys, now)
        return None if basis is None else order_seconds(basis, sibling_seconds, limit_seconds)

    def end_seconds(
        self, keys: Sequence[str], tenant_id: int, now: float, elapsed: float, limit_seconds: float | None
    ) -> float | None:
        """Return the run time after which a job that has run for `elapsed` seconds probably ends. None without any end,
        and for a job that has outlived its p90: too little is known then to wait for it."""
        basis = estimate(self._summaries.get, keys, now)
        if basis is None:
            return None
        prediction = predict(basis, self._trackers.get((tenant_id, basis.group), Tracker()), limit_seconds)
        if elapsed >= prediction.p90:
            return None
        return given_elapsed(prediction, elapsed, limit_seconds).p50

    def predict(self, kind: JobKind, now: float, limit_seconds: float | None = None) -> Prediction | None:
        """Return the prediction to show. It uses no end of another tenant."""
        basis = estimate(self._summaries.get, keys_of(kind)[:TENANT_KEYS], now)
        if basis is None:
            return None
        return predict(basis, self._trackers.get((kind.tenant_id, basis.group), Tracker()), limit_seconds)
