"""Hostile input by the hundred (A55); a few of it is tried in tests/api/test_hostile.py."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api import hostile

pytestmark = [pytest.mark.e2e, pytest.mark.django_db]
LIMITS = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def admin():
    return hostile.headers_of_an_admin()


@pytest.fixture
def node():
    return hostile.node_at_work()


@LIMITS
@given(data=st.data())
def test_no_body_of_any_write_breaks_the_server_by_the_hundred(admin, data):
    """A55"""
    hostile.write(admin, data)


@LIMITS
@given(asked=hostile.LISTS)
def test_no_query_of_any_list_breaks_the_server_by_the_hundred(admin, asked):
    """A55: also forged cursors."""
    hostile.ask_list(admin, asked)


@LIMITS
@given(data=st.data())
def test_no_message_of_an_agent_breaks_the_server_by_the_hundred(node, data):
    """A55"""
    hostile.say_as_agent(node, data)


@LIMITS
@given(message=hostile.MESSAGES)
async def test_no_message_over_a_websocket_breaks_its_consumer_by_the_hundred(message):
    """A55"""
    await hostile.say_over_websocket(message)


@pytest.mark.parametrize(
    "value",
    [2**70, -1, 1.5, "", "9" * 400, "x" * 70_000, [], ["a\x00b"], {"a\x00": "b"}, {"a": "b\x00"}, True],
    ids=lambda value: repr(value)[:30],
)
def test_what_no_field_can_hold_is_refused_by_each_by_the_dozen(admin, value):
    """A55"""
    hostile.put_into_every_field(admin, value)
