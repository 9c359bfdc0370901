"""The distribution of a run time that is known by its p10, p50 and p90, and what remains of it for a job that runs.

Log-logistic: S(t) = 1 / (1 + (t / p50) ^ shape). Its conditional quantiles have a closed form, and its tail is heavy:
the longer a job has outlived its prediction, the longer it is expected to go on.
"""

from math import exp, inf, log

MIN_SHAPE, MAX_SHAPE = 0.2, 50.0
_MAX_EXPONENT = 700.0


def shape_of(p50: float, quantile: float) -> float:
    """Return the shape for which `quantile` is the p90 (or the p10) of a distribution with this median."""
    distance = abs(log(quantile / p50))
    return min(max(log(9.0) / distance, MIN_SHAPE), MAX_SHAPE) if distance > 0.0 else MAX_SHAPE


def survivors_quantile(p50: float, shape: float, elapsed: float, part: float) -> float:
    """Return the quantile of the run times of those that have run for `elapsed` seconds: never less than that."""
    exponent = shape * (log(elapsed) - log(p50)) if elapsed > 0.0 else -inf
    if exponent > _MAX_EXPONENT:
        return elapsed * exp(-log(1.0 - part) / shape)
    odds = (1.0 + exp(exponent)) / (1.0 - part) - 1.0
    return max(p50 * exp(log(odds) / shape), elapsed) if odds > 0.0 else elapsed
