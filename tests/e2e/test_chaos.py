"""Everything is killed, restarted and made to fail at random while jobs flow (`benchmarks/chaos.py` does so for five
minutes and 2,000 jobs)."""

import pytest

from tests.system.chaos import storm

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def test_chaos_leaves_no_job_lost_doubled_or_stuck_and_no_process() -> None:
    """A31, A50, A53, A59: agents, launchers, web, workers and PostgreSQL are killed, PostgreSQL restarts, agents meet
    exceptions; the ledger is exact, and no answer is a 5xx but 503."""
    outcome = storm(jobs=100, seconds=20, seed=1, faults_every=5)
    assert outcome.kills >= 3
    assert outcome.restarts_of_postgresql >= 1
    assert outcome.exceptions_in_agents >= 1  # on a slow machine, agents reach few of their faults in this time
    assert outcome.failures == 0, outcome
