"""Hostile input by the hundred (A55); a little of it is tried in tests/api/test_hostile.py."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api import hostile, hostile_agents, hostile_sockets
from tests.api.operations import Stage, contents

pytestmark = [pytest.mark.e2e, pytest.mark.django_db]
LIMITS = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture
def fleet():
    return hostile_agents.fleet()


def test_each_write_refuses_all_that_it_cannot_read(stage):
    """A55: each attack on a third of the writes of docs/openapi.json."""
    hostile.try_catalogue(stage, share=3, is_whole=True)


@LIMITS
@given(data=st.data())
def test_no_write_with_anything_wrong_breaks_the_server_by_the_hundred(stage, data):
    """A55"""
    hostile.send(stage, data.draw(hostile.requests(stage)), contents())


@LIMITS
@given(data=st.data())
def test_no_question_breaks_the_server_by_the_hundred(stage, data):
    """A55: also forged cursors."""
    hostile.send(stage, data.draw(hostile.questions(stage)), contents())


@LIMITS
@given(data=st.data())
def test_no_message_of_an_agent_breaks_the_server_or_reaches_another_node_by_the_hundred(fleet, data):
    """A55"""
    hostile_agents.say(fleet, data)


@pytest.mark.parametrize(
    "value",
    [
        2**70,
        -1,
        1.5,
        "",
        "9" * 400,
        "x" * 70_000,
        [],
        ["a\x00b"],
        {"a\x00": "b"},
        {"a": "b\x00"},
        True,
        "\ud800",
        1e308,
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_no_field_can_hold_is_refused_by_each_by_the_dozen(stage, value):
    """A55"""
    hostile.put_into_every_field(stage, value)


@pytest.mark.django_db(transaction=True)
def test_no_agent_breaks_its_hub_or_disturbs_its_neighbours():
    """A55: over sockets that are really connected."""
    hostile_sockets.try_agents_socket(examples=30)


@pytest.mark.django_db(transaction=True)
def test_no_page_breaks_its_hub_or_disturbs_its_neighbours():
    """A55"""
    hostile_sockets.try_live_feed(examples=12)
