"""A member of the tenant."""

import pytest

from tests.factories import make_member


@pytest.fixture
def member(tenant):
    return make_member(tenant)
