"""A tenant, its member, an admin, and calls as them."""

import pytest

from tests.factories import make_member, make_tenant, make_token, make_user


@pytest.fixture
def tenant():
    return make_tenant("nlp")


@pytest.fixture
def user(tenant):
    return make_member(tenant)


@pytest.fixture
def admin():
    return make_token(make_user("root", admin=True))
