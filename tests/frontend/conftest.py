"""Two tenants with a member each."""

import pytest

from tests.factories import make_member, make_tenant


@pytest.fixture
def nlp():
    return make_tenant("nlp")


@pytest.fixture
def member(nlp):
    return make_member(nlp)


@pytest.fixture
def ours():
    return make_tenant("ours")


@pytest.fixture
def anna(ours):
    return make_member(ours, name="anna")


@pytest.fixture
def theirs():
    return make_tenant("theirs")


@pytest.fixture
def zoe(theirs):
    return make_member(theirs, name="zoe")
