"""Whatever is sent, by whomever: a 4xx of one shape, never a 5xx, and nothing half-written (A55)."""

import pytest
from django.conf import settings as server
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frontend.live.topics import kind_of, topics
from tests.api import hostile, hostile_agents
from tests.api.hostile import SHAPE, check
from tests.api.operations import Stage, contents, writes
from tests.factories import make_member, make_node, make_tenant, make_token, make_user

pytestmark = pytest.mark.django_db
LIMITS = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture
def admin():
    make_member(make_tenant("nlp"))
    make_node(name="n1", gpus=1)
    return {"Authorization": f"Bearer {make_token(make_user(admin=True))}"}


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture
def fleet():
    return hostile_agents.fleet()


def test_each_write_rejects_each_kind_of_unreadable_body(stage):
    """A55: generated over docs/openapi.json."""
    assert hostile.try_catalogue(stage, share=3, is_whole=False) >= 3 * len(writes())


def test_each_write_rejects_values_beyond_its_fields(stage):
    """A55"""
    hostile.put_into_every_field(stage, "a\x00b")


@LIMITS
@given(data=st.data())
def test_no_write_with_any_error_breaks_the_server(stage, data):
    """A55"""
    hostile.send(stage, data.draw(hostile.requests(stage)), contents())


@LIMITS
@given(data=st.data())
def test_no_read_breaks_the_server(stage, data):
    """A55: also forged cursors."""
    hostile.send(stage, data.draw(hostile.questions(stage)), contents())


@LIMITS
@given(data=st.data())
def test_no_message_of_an_agent_breaks_the_server_or_reaches_another_node(fleet, data):
    """A55"""
    hostile_agents.say(fleet, data)


def test_agent_report_about_another_node_changes_nothing(fleet):
    """A55"""
    hostile_agents.impersonate(fleet)


@LIMITS
@given(
    topic=st.one_of(
        st.text(max_size=30),
        st.integers().map(lambda n: f"job:{n}"),
        st.text(max_size=30).map(lambda t: f"queue:0-5?{t}"),
        st.just("jobs:\x00"),
    )
)
def test_no_topic_breaks_the_feed(topic):
    assert kind_of(topic) in (None, *topics())


class TestOneShape:
    """Also where no operation of the document is: those are in test_conventions.py."""

    @pytest.mark.parametrize(
        "path", ["/api/v1/nothing", "/api/nothing", "/api/", "/agent/nothing", "/api/v1/jobs/1/nothing"]
    )
    def test_malformed_address_is_rejected(self, path, admin):
        assert check(Client().get(path, headers=admin)).status_code == 404

    @pytest.mark.parametrize("path", ["/api/v1/me", "/agent/join", "/login/"])
    def test_unlisted_host_name_is_named_as_the_cause(self, path):
        """People and agents that use it must learn which setting lacks it."""
        answer = Client().get(path, headers={"host": "head.example"})
        assert answer.status_code == 400
        text = answer.content.decode()
        assert "does not accept the host name of this URL" in text
        assert "GPUSCHED_ALLOWED_HOSTS" in text

    @pytest.mark.parametrize(
        ("method", "path"),
        [("GET", "/agent/join"), ("DELETE", "/agent/sync"), ("POST", "/api/v1/openapi.json"), ("POST", "/metrics"),
         ("PUT", "/api/v1/metrics")],
    )  # fmt: skip
    def test_unknown_method_is_rejected(self, method, path, admin):
        answer = check(Client(enforce_csrf_checks=True).generic(method, path, headers=admin))
        assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
        assert answer["Allow"]

    @pytest.mark.parametrize(
        "path", ["/api/v1/tenants/%00", "/api/v1/nodes/%00", "/api/v1/nodes/%ff%fe", "/api/v1/tenants/..%2f"]
    )
    def test_impossible_name_is_rejected(self, path, admin):
        assert check(Client().get(path, headers=admin)).status_code == 404

    @pytest.mark.parametrize("path", ["/agent/sync", "/agent/logs?key=1.1.0&offset=0"])
    def test_too_large_agent_message_is_rejected(self, path, fleet, monkeypatch):
        monkeypatch.setattr(server, "DATA_UPLOAD_MAX_MEMORY_SIZE", 1000)
        headers = {"Authorization": f"Bearer {fleet.agent.credential}"}
        answer = check(Client().post(path, b"x" * 2000, content_type="application/json", headers=headers))
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")

    def test_foreign_host_name_is_rejected(self):
        assert check(Client().get("/api/v1/health", headers={"Host": "evil.example"})).status_code in (200, 400)
        assert check(Client().get("/api/v1/docs", headers={"Host": "evil.example"})).status_code == 400

    @pytest.mark.parametrize("path", ["/api/v1/health", "/api/v1/me"])
    def test_defect_shows_its_id_and_no_code(self, path, admin, monkeypatch):
        """With a request id, without a trace."""
        from scheduling.api import queue
        from tenants.api import tokens

        def broken(*args, **kwargs):
            raise RuntimeError("secret detail")

        monkeypatch.setattr(queue.Health, "get", broken)
        monkeypatch.setattr(tokens.Me, "get", broken)
        answer = Client(raise_request_exception=False).get(path, headers=admin)
        assert (answer.status_code, set(answer.json())) == (500, SHAPE)
        assert answer.json()["request_id"] == answer["X-Request-Id"]
        assert "secret detail" not in answer.content.decode()
