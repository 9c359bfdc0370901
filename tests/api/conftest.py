"""A tenant and a member of it."""

import pytest

from tests.factories import make_member, make_tenant


@pytest.fixture
def tenant():
    return make_tenant("nlp")


@pytest.fixture
def member(tenant):
    return make_member(tenant)
