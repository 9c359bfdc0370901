"""Estimates on generated and trace workloads, as benchmarks/estimates.py measures them."""

import pytest

from scheduling.engine.model import Policy
from scheduling.simulator.runs.cluster import Cluster
from scheduling.simulator.traces.formats import read_trace
from tests.simulator.estimates import TRACE, TRACE_CLUSTER, generated, is_calibrated, percentages, replayed, with_limits

pytestmark = pytest.mark.long


def test_estimates_of_a_generated_workload_are_calibrated() -> None:
    """A62: at least 85 % start at or before p90, and 40 to 60 % at or before p50."""
    jobs = generated(400, 2)
    outcomes = [
        entry for name in ("fair", "shortest") for entry in replayed(jobs, Cluster(2, 8), Policy(name=name), 3)[0]
    ]
    assert len(outcomes) > 150
    assert is_calibrated(percentages(outcomes)), percentages(outcomes)


def test_same_seed_has_the_same_outcomes() -> None:
    first, second = (replayed(generated(120, 2), Cluster(2, 8), Policy(name="fair"), 3)[0] for _ in range(2))
    assert len(first) > 10
    assert first == second


@pytest.mark.skipif(not TRACE.is_file(), reason="the traces are not here (../shared/traces)")
def test_estimates_of_a_trace_are_calibrated() -> None:
    """A62, on the smallest cluster of Philly."""
    trace = [job for job in read_trace(TRACE, "philly") if job.tenant == TRACE_CLUSTER]
    outcomes, _ = replayed(with_limits(trace, 1), Cluster(3, 8), Policy(name="fair"), 10)
    assert len(outcomes) > 100
    assert is_calibrated(percentages(outcomes)), percentages(outcomes)
