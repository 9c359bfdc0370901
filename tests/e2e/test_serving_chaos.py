"""Everything is killed at random while inference requests flow (`benchmarks/serving_chaos.py` does so with 20,000)."""

import pytest

from tests.system.serving_chaos import serving_storm

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(400)]


def test_chaos_leaves_no_request_lost_doubled_or_stuck() -> None:
    """A64: replicas, agents, web, workers and PostgreSQL are killed; each request has one result, and the cost ledger
    and the token bucket are exact."""
    outcome = serving_storm(requests=2000, seconds=18, seed=1)
    assert outcome.kills >= 4, outcome
    assert outcome.failures == 0, outcome
