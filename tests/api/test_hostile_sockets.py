"""No page and no agent breaks the hub that it is connected to, or disturbs its neighbours (A55); more of it in
tests/e2e."""

import asyncio

import pytest

from tests.api import hostile_sockets
from tests.api.hostile_agents import fleet
from tests.factories import make_member, make_tenant
from tests.frontend.page import cookie_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_hostile_page_is_answered_or_closed_and_other_pages_get_updates():
    """A55"""
    hostile_sockets.try_live_feed(examples=4)


def test_hostile_agent_is_answered_or_closed_and_other_agents_continue():
    """A55"""
    hostile_sockets.try_agents_socket(examples=6)


def test_page_without_session_or_from_another_origin_is_refused(settings):
    """A55: None: the handshake itself is refused. A job's page on a forwarded port has another port."""
    settings.CSRF_TRUSTED_ORIGINS = ["https://localhost:8443", "http://*.example"]
    cookie = cookie_of(make_member(make_tenant("team")))
    for headers, code in (
        ({"origin": "http://evil.example", "cookie": "good"}, None),
        ({"origin": "http://localhost:9734", "cookie": "good"}, None),
        ({"origin": "http://localhost:8443", "cookie": "good"}, None),
        ({"origin": "http://evil.example/localhost", "cookie": "good"}, None),
        ({"origin": "null", "cookie": "good"}, None),
        ({"cookie": "good"}, None),
        ({"origin": "http://localhost"}, 4401),
        ({"origin": "https://localhost:8443"}, 4401),
        ({"origin": "http://localhost", "cookie": "forged"}, 4401),
    ):
        assert asyncio.run(hostile_sockets.knock_as_page(headers, cookie)) == code, headers


def test_agent_without_a_credential_is_closed_with_4401():
    """A55"""
    fleet()
    for header in ("", "Bearer", "Bearer x.y", "Bearer \x00.\xff", "Basic Zm9vOmJhcg==", "Bearer " + "a" * 9000):
        assert asyncio.run(hostile_sockets.knock_as_agent(header)) == 4401, header
