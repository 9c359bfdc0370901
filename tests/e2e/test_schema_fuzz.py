"""A server that runs, asked by each role for what its OpenAPI document allows and forbids (schemathesis).

A few seconds of it; `benchmarks/schema_fuzz.py --requests 10000` is the long run."""

import pytest

from tests.system.schema_fuzz import ROLES, Target, fuzz, prepare
from tests.system.stack import Stack

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def target():
    with Stack(rate_limit_per_minute=0) as running:
        yield prepare(running)


@pytest.mark.parametrize("role", ROLES)
def test_fuzzed_requests_get_documented_answers_only(target: Target, role: str):
    """A54, A55: of the roles every other one sends to the same half of the operations."""
    number = ROLES.index(role)
    found = fuzz(target, each=2, roles=[role], seed=number, part=slice(number % 2, None, 2))
    assert found.requests > 50
    assert not found.failures, "\n\n".join(f"{where}: {what}\n{text}" for (where, what), text in found.failures.items())
