"""Fixtures: a member of the tenant, the identity of the member, and a node."""

import pytest

from tests.factories import identity_for, make_member, make_node


@pytest.fixture
def user(tenant):
    return make_member(tenant, name="ada")


@pytest.fixture
def identity(user):
    return identity_for(user)


@pytest.fixture
def node():
    return make_node(gpus=8)
