"""Joining a machine: the token, the command and arrivals."""

import re

import msgspec
import pytest

from gpusched.lib.db.sql import execute, query
from gpusched.protocol.agent_messages import Join
from nodes.models import Node
from tests.factories import make_node, make_user
from tests.frontend.browsing import browser, found, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin():
    return browser(make_user(admin=True))


def let_in_by(token_id):
    execute("UPDATE nodes_node SET let_in_by = (SELECT prefix FROM nodes_jointoken WHERE id = %s)", [token_id])


def test_join_page_shows_full_command_to_admin(admin):
    response = admin.post("/join/", {"hours": "1"})
    page = text_of(response)
    assert re.search(r"gpusched-agent join http://testserver j[\w-]+\.[\w-]+", page)
    assert response["Cache-Control"] == "no-store"
    [token] = query("SELECT id, expires_at < now() + interval '61 minutes' AS is_short FROM nodes_jointoken")
    assert token["is_short"]
    assert "Waiting for a machine" in text_of(admin.get(f"/join/{token['id']}/"))
    make_node(name="n1", gpus=2)
    let_in_by(token["id"])
    light = text_of(admin.get(f"/join/{token['id']}/"))
    assert "light is-on" in light and "2 GPUs" in light


def test_arrivals_mark_machines_without_running_agent(admin):
    admin.post("/join/", {"hours": "24"})
    [token] = query("SELECT id FROM nodes_jointoken")
    make_node(name="n1", gpus=1)
    Node.objects.update(state="joined")
    let_in_by(token["id"])
    light = text_of(admin.get(f"/join/{token['id']}/"))
    assert "light is-half" in light and "gpusched-agent run" in light


def test_arrivals_include_returning_machines(admin):
    """And one that was let in otherwise meanwhile does not."""
    back, other = make_node(name="n1", gpus=1), make_node(name="n2", gpus=1)
    page = text_of(admin.post("/join/", {"hours": "24"}))
    secret = found(r"gpusched-agent join http://testserver ([^<\s]+)<", page)
    [token] = query("SELECT id FROM nodes_jointoken")
    assert "Waiting for a machine" in text_of(admin.get(f"/join/{token['id']}/"))
    repeated = Join(name=back.name, node_key=back.key, facts=back.facts())
    answer = browser().post(
        "/agent/join",
        msgspec.json.encode(repeated),
        content_type="application/json",
        headers={"Authorization": f"Bearer {secret}"},
    )
    assert answer.status_code == 200
    light = text_of(admin.get(f"/join/{token['id']}/"))
    assert "light is-on" in light and "is back and online" in light and other.name not in light


def test_empty_overview_shows_join_steps(admin, member):
    page = text_of(admin.get("/overview/"))
    assert 'hx-post="/join/"' in page and "gpusched-agent join http://testserver TOKEN" in page
    assert "Ask one for it" in text_of(browser(member).get("/overview/"))
    make_node(name="n1")
    assert "join-here" not in text_of(admin.get("/overview/"))


def test_join_page_names_the_authority_of_the_server_over_https(admin, settings, tmp_path):
    settings.DATA_DIR = tmp_path
    assert "gpusched-agent join https://testserver TOKEN" in text_of(admin.get("/join/", secure=True))
    (tmp_path / "ca.crt").touch()
    page = text_of(admin.get("/join/", secure=True))
    assert "gpusched-agent join --ca-file ca.crt https://testserver TOKEN" in page and str(tmp_path / "ca.crt") in page
    assert "gpusched-agent join http://testserver TOKEN" in text_of(admin.get("/join/"))


def test_join_token_is_revoked(admin):
    admin.post("/join/", {"hours": "24"})
    [token] = query("SELECT id FROM nodes_jointoken")
    assert "lets no more nodes join" in text_of(admin.post(f"/join/{token['id']}/revoke/", follow=True))
    assert query("SELECT 1 FROM nodes_jointoken WHERE revoked_at IS NULL") == []
    assert query("SELECT 1 FROM lib_auditentry WHERE action = 'join_token.revoke'")
    assert admin.post("/join/999/revoke/").status_code == 404


@pytest.mark.parametrize("hours", ["", "0", "99999", "x"])
def test_join_token_accepts_only_offered_lifetimes(hours, admin):
    assert admin.post("/join/", {"hours": hours}).status_code == 400
    assert query("SELECT 1 FROM nodes_jointoken") == []


def test_join_page_tells_members_to_ask_an_admin(member):
    client = browser(member)
    assert "Only an admin can create the TOKEN" in text_of(client.get("/join/"))
    assert client.post("/join/", {"hours": "1"}).status_code == 403
    assert "No node has joined yet" in text_of(client.get("/nodes/"))
    assert query("SELECT 1 FROM nodes_jointoken") == []
