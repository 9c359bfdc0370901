"""The last ends under one key, and their summary: the median and spread of the logarithm of the run time.

An attempt that was stopped, or that failed early, is a censored observation: it would have run at least that long. The
quantiles are those of the Kaplan-Meier estimator with weights (Kaplan and Meier, 1958), with Efron's convention that
the largest value counts as observed.
"""

from collections.abc import Sequence
from math import exp, log
from typing import NamedTuple

MAX_ENDS = 50
# Under a key that spans users: at most this many of each user, so that a user cannot crowd out the others.
MAX_ENDS_PER_USER = 5
HALF_LIFE_SECONDS = 14 * 86400.0
# Under a key of one command, each end counts this much less for the median than the one after it: commands change with
# their code and data. Other keys mix commands, whose order tells nothing.
RECENCY = 0.98
MIN_SECONDS = 10.0
_DECAY = log(2.0) / HALF_LIFE_SECONDS


class End(NamedTuple):
    """The end of an attempt. `value`: the logarithm of its run time in seconds, or of a size. `is_observed` False: it
    was stopped before it ended by itself."""

    at: float
    value: float
    is_observed: bool
    user_id: int


class Summary(NamedTuple):
    """The ends under one key, as of the latest, `at`. `weight`: their number, each decayed to that time; 0 if none is
    observed, then `median` is only a lower bound. `median`, `spread`: of the logarithms; the spread is the median
    distance from the median, scaled to a standard deviation."""

    at: float
    end_count: int
    weight: float
    median: float
    spread: float


def run_end(at: float, seconds: float, is_observed: bool, user_id: int) -> End:
    """Return the end of an attempt that ran for this long."""
    return End(at, log(max(seconds, MIN_SECONDS)), is_observed, user_id)


def appended(ends: Sequence[End], end: End, *, spans_users: bool) -> tuple[End, ...]:
    """Return the last ends with this one, the oldest first. An end that is already among them is not added again."""
    if end in ends:
        return tuple(ends)
    kept = sorted([*ends, end])
    if spans_users:
        excess = sum(other.user_id == end.user_id for other in kept) - MAX_ENDS_PER_USER
        if excess > 0:
            oldest = [other for other in kept if other.user_id == end.user_id][:excess]
            kept = [other for other in kept if other not in oldest]
    return tuple(kept[-MAX_ENDS:])


def summary_of(ends: Sequence[End], *, spans_users: bool, recency: float = 1.0) -> Summary:
    """Return the summary of at least one end, the oldest first. Under a key that spans users, each user has the same
    total weight at most, however many ends it has. `recency`: see RECENCY."""
    at = max(end.at for end in ends)
    weights = [exp(_DECAY * (end.at - at)) for end in ends]
    if spans_users:
        counts: dict[int, int] = {}
        for end in ends:
            counts[end.user_id] = counts.get(end.user_id, 0) + 1
        weights = [weight / counts[end.user_id] for weight, end in zip(weights, ends, strict=True)]
    recent = [weight * recency ** (len(ends) - number) for number, weight in enumerate(weights, 1)]
    median = censored_quantile(
        [(e.value, not e.is_observed, weight) for e, weight in zip(ends, recent, strict=True)], 0.5
    )
    # All ends alike: the range is to cover the run times of the next change, too.
    distances = [
        (abs(e.value - median), False, weight) for e, weight in zip(ends, weights, strict=True) if e.is_observed
    ]
    spread = 1.4826 * censored_quantile(distances, 0.5) if len(distances) > 1 else 0.0
    # Censored ends count less: they tell only a lower bound.
    total = sum(weight * (1.0 if end.is_observed else 0.5) for weight, end in zip(weights, ends, strict=True))
    return Summary(at, len(ends), total if distances else 0.0, median, spread)


def censored_quantile(observations: Sequence[tuple[float, bool, float]], part: float) -> float:
    """Return the quantile of (value, is censored, weight), at least one. At a tie, observed values come first."""
    ordered = sorted(observations)
    remaining = sum(weight for _, _, weight in ordered)
    survival = 1.0
    previous = None
    for value, is_censored, weight in ordered:
        if not is_censored and remaining > 0.0:
            survival *= max(1.0 - weight / remaining, 0.0)
            # With a tolerance, so that half of equal weights is half: then the median lies between the two middle ones.
            if abs(survival - (1.0 - part)) < 1e-9:
                previous = value if previous is None else previous
            elif survival < 1.0 - part:
                return value if previous is None else (previous + value) / 2.0
        remaining -= weight
    return ordered[-1][0] if previous is None else (previous + ordered[-1][0]) / 2.0


def decayed(summary: Summary, now: float) -> float:
    """Return the weight of a summary at a later time."""
    return summary.weight * exp(min(_DECAY * (summary.at - now), 0.0))
