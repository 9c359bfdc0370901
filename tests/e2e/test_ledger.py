"""The ledger through many random histories (A53); a few of them are tried in tests/nodes/test_ledger.py."""

import pytest
from hypothesis import HealthCheck, given, settings

from tests.nodes.ledger_world import STEPS, World, live

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]
RUN = [("submit", "whole"), ("sync", 0), ("sync", 1)]
QUIET = [HealthCheck.function_scoped_fixture]


@settings(max_examples=16, deadline=None, suppress_health_check=QUIET)
@given(steps=STEPS)
def test_ledger_is_exact_under_kills_and_wrong_clocks(steps):
    """A53: preemption, requeue, cancel, failure with retry, loss of nodes, gangs and shared devices."""
    live(World(), [*RUN, *steps])


@pytest.mark.parametrize("off", [3600, -3600, 4, -4])
@settings(max_examples=5, deadline=None, suppress_health_check=QUIET)
@given(steps=STEPS)
def test_ledger_is_exact_with_older_agents_and_wrong_clocks(off, steps):
    """A53, A57"""
    live(World(is_old=True, off=off), [*RUN, *steps])
