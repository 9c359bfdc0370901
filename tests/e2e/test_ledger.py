"""The ledger through many random histories (A53); a few of them are tried in tests/nodes/test_ledger.py."""

import pytest
from hypothesis import HealthCheck, given, settings

from tests.nodes.world import STEPS, World, live

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]
RUN = [("submit", "whole"), ("sync", 0), ("sync", 1)]
QUIET = [HealthCheck.function_scoped_fixture]


@settings(max_examples=30, deadline=None, suppress_health_check=QUIET)
@given(steps=STEPS)
def test_whatever_happens_and_however_clocks_are_set(steps):
    """A53: preemption, requeue, cancel, failure with retry, loss of nodes, gangs and shared devices."""
    live(World(), [*RUN, *steps])


@pytest.mark.parametrize("off", [3600, -3600, 4, -4])
@settings(max_examples=8, deadline=None, suppress_health_check=QUIET)
@given(steps=STEPS)
def test_also_with_older_agents_on_nodes_whose_clock_is_wrong(off, steps):
    """A53, A57"""
    live(World(is_old=True, off=off), [*RUN, *steps])
