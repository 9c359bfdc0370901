"""Everything is killed at random while jobs flow (`benchmarks/chaos.py` does so for five minutes and 2,000 jobs)."""

import pytest

from benchmarks.chaos import storm

pytestmark = pytest.mark.e2e


def test_nothing_is_lost_doubled_stuck_or_left_behind() -> None:
    """A31, A50, A53: agents, launchers, web, workers and PostgreSQL are killed; the ledger is exact."""
    outcome = storm(jobs=100, seconds=15, seed=3)
    assert outcome.kills >= 3
    assert outcome.failures == 0, outcome
