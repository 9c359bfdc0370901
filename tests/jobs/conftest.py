"""A tenant, its member, and what the member may do."""

import pytest

from tests.factories import identity_for, make_member, make_tenant


@pytest.fixture
def tenant():
    return make_tenant("nlp")


@pytest.fixture
def user(tenant):
    return make_member(tenant, name="ada")


@pytest.fixture
def who(user):
    return identity_for(user)
