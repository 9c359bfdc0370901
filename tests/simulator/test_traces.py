"""The gates on real traces that are small enough for the suite; benchmarks/queueing.py has all of them."""

from pathlib import Path
from statistics import mean

import pytest

from scheduling.engine.model import Policy
from scheduling.simulator.runs.cluster import Cluster
from scheduling.simulator.runs.srtf import replay_srtf
from scheduling.simulator.runs.trace_replay import replay
from scheduling.simulator.traces.formats import read_trace
from scheduling.simulator.traces.predictions import with_predictions

TRACES = Path(__file__).parents[3] / "shared" / "traces"

pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the traces are not here (../shared/traces)")


def test_srtf_on_muri_s_third_trace_completes_as_published() -> None:
    """The gate before any claim: mean completion time within 10 % of 193,082 s."""
    jobs = with_predictions(read_trace(TRACES / "muri_philly" / "trace3.csv.gz", "muri"), "oracle", 1)
    run = replay_srtf(jobs, Cluster(8, 8), Policy(name="srtf"))
    assert len(run.results) == 992
    assert mean(result.completion_seconds for result in run.results) == pytest.approx(193_082, rel=0.1)


def test_shortest_neither_starves_nor_delays_on_the_smallest_philly_cluster() -> None:
    """Oct-Nov 2017, VC 103959 on 3 nodes, noisy predictions: far below the mean of 88 h and p99 of arrival order, and
    no job waits for longer than 550 h (free overtaking: about 700 h)."""
    trace = read_trace(TRACES / "philly" / "philly_tuning.csv.gz", "philly")
    october, december = 1_506_816_000.0, 1_512_086_400.0
    jobs = [job for job in trace if job.tenant == "103959" and october <= job.submitted_at < december]
    waits = [
        result.wait_seconds / 3600
        for result in replay(with_predictions(jobs, "noisy", 1), Cluster(3, 8), Policy(name="shortest")).results
    ]
    assert len(waits) == 1450
    assert mean(waits) < 22
    assert max(waits) < 550
