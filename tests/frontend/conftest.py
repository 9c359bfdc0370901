"""Two tenants with a member each, and pages that do not cache the pretend flag."""

import pytest

from frontend.ui import context
from tests.factories import make_member, make_tenant


@pytest.fixture(autouse=True)
def _ask_again():
    context.reset_cache()
    yield
    context.reset_cache()


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
