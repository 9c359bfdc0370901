"""Generates predictions for the jobs of a trace: none, the truth, or the truth with noise."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random

from scheduling.simulator.traces.jobs import TraceJob

KINDS = ("given", "none", "noisy", "oracle")

# (part of the jobs, minimum error, maximum error) relative to the run time: 10 % of the jobs within 10 %, 50 % within
# 50 %, 70 % within 100 %, 90 % within 1000 %; the last tenth is drawn up to ten times that.
_ERRORS = ((0.1, 0.0, 0.1), (0.5, 0.1, 0.5), (0.7, 0.5, 1.0), (0.9, 1.0, 10.0), (1.0, 10.0, 100.0))


def with_predictions(jobs: Iterable[TraceJob], kind: str, seed: int) -> list[TraceJob]:
    """Return the jobs with `predicted_seconds` of a kind of KINDS; `given`: as in the trace. Deterministic per seed."""
    if kind == "given":
        return list(jobs)
    if kind == "none":
        return [replace(job, predicted_seconds=None) for job in jobs]
    if kind == "oracle":
        return [replace(job, predicted_seconds=job.run_seconds) for job in jobs]
    rng = Random(seed)  # noqa: S311 - noise, no secret
    return [replace(job, predicted_seconds=noisy(job.run_seconds, rng)) for job in jobs]


def noisy(seconds: float, rng: Random) -> float:
    """Return a prediction that is too long or too short, equally often; errors beyond 100 % are only too long. At least
    1 s."""
    drawn = rng.random()
    _, minimum, maximum = next(row for row in _ERRORS if drawn < row[0])
    error = rng.uniform(minimum, maximum) if maximum <= 1.0 else minimum * (maximum / minimum) ** rng.random()
    sign = -1.0 if error < 1.0 and rng.random() < 0.5 else 1.0
    return max(seconds * (1.0 + sign * error), 1.0)
