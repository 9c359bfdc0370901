"""A tenant and a member of it."""

import pytest

from tests.factories import make_member, make_tenant


@pytest.fixture
def tenant():
    return make_tenant()


@pytest.fixture
def user(tenant):
    return make_member(tenant)
