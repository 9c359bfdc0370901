"""Predictions on generated histories (A71): coverage, recovery after a shift, and the wait they save in a replay.

`benchmarks/prediction.py` measures the same on larger histories."""

from dataclasses import replace
from statistics import mean

import pytest

from scheduling.engine.model import Policy
from scheduling.simulator.runs.cluster import Cluster
from scheduling.simulator.runs.trace_replay import Run, replay
from scheduling.simulator.traces.predictions import with_predictions
from tests.simulator.histories import DAY, HistoryJob, history
from tests.simulator.predicted_replay import ReplayPredictor, outcomes

SHORTEST = Policy(name="shortest", preemption=False)


def hits(entries: list[HistoryJob], since: float) -> list[bool]:
    """Return for each end after `since` whether its run time lies in the predicted range."""
    rows = [row for row in outcomes(entries) if row[0] > since]
    return [predicted is not None and predicted.p10 <= seconds <= predicted.p90 for _, predicted, seconds in rows]


def test_range_covers_80_percent_of_later_ends() -> None:
    """A71."""
    covered = [hit for seed in (1, 2) for hit in hits(history(seed, days=14.0), 0.7 * 14.0 * DAY)]
    assert len(covered) > 2000
    assert 77.0 <= 100.0 * mean(covered) <= 83.0


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_coverage_returns_within_200_ends_after_a_shift(factor: float) -> None:
    """A71: just after all run times change it is far too low; of ends 200 to 400 it is at least 77 % again."""
    entries = [history(seed, days=10.0, shift_at=0.7, shift=factor) for seed in (1, 2, 3)]
    by_history = [hits(jobs, 0.7 * 10.0 * DAY) for jobs in entries]
    assert mean(hit for covered in by_history for hit in covered[:25]) < 0.7
    assert mean(hit for covered in by_history for hit in covered[200:400]) >= 0.77


def mean_wait(run: Run) -> float:
    return mean(result.wait_seconds for result in run.results)


def test_replay_with_predictions_gains_most_of_what_an_oracle_does() -> None:
    entries = history(1, days=3.0)
    jobs = [replace(entry.job, limit_seconds=None) for entry in entries]
    cluster = Cluster(max(2, round(sum(job.run_seconds * job.gpus for job in jobs) / 3.0 / DAY / 8 / 0.9)), 8)
    arrival = mean_wait(replay(jobs, cluster, Policy(name="fifo", preemption=False)))
    predicted = mean_wait(replay(jobs, cluster, SHORTEST, predictor=ReplayPredictor(entries)))
    oracle = mean_wait(replay(with_predictions(jobs, "oracle", 1), cluster, SHORTEST))
    assert arrival - predicted > 0.85 * (arrival - oracle)
