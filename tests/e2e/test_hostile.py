"""Hostile input by the hundred (A55); a little of it is tried in tests/api/test_hostile.py."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api import hostile, hostile_agents, hostile_sockets
from tests.api.operations import Stage, contents

pytestmark = [pytest.mark.e2e, pytest.mark.django_db, pytest.mark.timeout(400)]
LIMITS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture
def fleet():
    return hostile_agents.fleet()


def test_each_write_refuses_every_unreadable_body(stage):
    """A55: each attack on a third of the writes of docs/openapi.json."""
    hostile.try_catalogue(stage, share=3, is_whole=True)


@LIMITS
@given(data=st.data())
def test_hundreds_of_invalid_writes_cause_no_server_error(stage, data):
    """A55"""
    hostile.send(stage, data.draw(hostile.requests(stage)), contents())


@LIMITS
@given(data=st.data())
def test_hundreds_of_hostile_reads_cause_no_server_error(stage, data):
    """A55: also forged cursors."""
    hostile.send(stage, data.draw(hostile.questions(stage)), contents())


@LIMITS
@given(data=st.data())
def test_hundreds_of_hostile_agent_messages_affect_no_other_node(fleet, data):
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
def test_values_that_no_field_can_hold_are_refused(stage, value):
    """A55"""
    hostile.put_into_every_field(stage, value)


@pytest.mark.django_db(transaction=True)
def test_hostile_agent_does_not_disturb_its_hub_or_other_agents():
    """A55: over sockets that are really connected."""
    hostile_sockets.try_agents_socket(examples=30)


@pytest.mark.django_db(transaction=True)
def test_hostile_page_does_not_disturb_its_hub_or_other_pages():
    """A55"""
    hostile_sockets.try_live_feed(examples=12)
