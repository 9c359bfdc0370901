"""Whatever is sent, by whomever: a 4xx of one shape, never a 5xx, and nothing half-written (A55)."""

import pytest
from django.conf import settings as server
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frontend.topics import KINDS, kind_of
from tests.api import hostile
from tests.api.hostile import SHAPE, check
from tests.factories import make_token, make_user

pytestmark = pytest.mark.django_db
LIMITS = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.fixture
def admin():
    return hostile.headers_of_an_admin()


@pytest.fixture
def node():
    return hostile.node_at_work()


@pytest.mark.parametrize("value", ["a\x00b"], ids=repr)
def test_what_no_field_can_hold_is_refused_by_each(admin, value):
    """A55"""
    hostile.put_into_every_field(admin, value)


@LIMITS
@given(data=st.data())
def test_no_body_of_any_write_breaks_the_server(admin, data):
    """A55"""
    hostile.write(admin, data)


@LIMITS
@given(asked=hostile.LISTS)
def test_no_query_of_any_list_breaks_the_server(admin, asked):
    """A55: also forged cursors."""
    hostile.ask_list(admin, asked)


@LIMITS
@given(data=st.data())
def test_no_message_of_an_agent_breaks_the_server(node, data):
    """A55"""
    hostile.say_as_agent(node, data)


@LIMITS
@given(message=hostile.MESSAGES)
async def test_no_message_over_a_websocket_breaks_its_consumer(message):
    """A55"""
    await hostile.say_over_websocket(message)


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
    assert kind_of(topic) in (None, *KINDS)


class TestOneShape:
    @pytest.mark.parametrize(
        "path", ["/api/v1/nothing", "/api/nothing", "/api/", "/agent/nothing", "/api/v1/jobs/1/nothing"]
    )
    def test_an_address_that_is_none(self, path, admin):
        assert check(Client().get(path, headers=admin)).status_code == 404

    @pytest.mark.parametrize(
        ("method", "path"),
        [("PUT", "/api/v1/jobs"), ("TRACE", "/api/v1/me"), ("GET", "/agent/join"), ("DELETE", "/agent/sync"), ("POST", "/api/v1/health"),
         ("POST", "/api/v1/openapi.json"), ("POST", "/metrics"), ("PUT", "/api/v1/metrics"), ("DELETE", "/ready")],
    )  # fmt: skip
    def test_a_method_that_is_none(self, method, path, admin):
        answer = check(Client(enforce_csrf_checks=True).generic(method, path, headers=admin))
        assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
        assert answer["Allow"]

    @pytest.mark.parametrize(
        "path", ["/api/v1/tenants/%00", "/api/v1/nodes/%00", "/api/v1/nodes/%ff%fe", "/api/v1/tenants/..%2f"]
    )
    def test_a_name_that_no_name_can_be(self, path, admin):
        assert check(Client().get(path, headers=admin)).status_code == 404

    @pytest.mark.parametrize(
        "kind", ["text/xml", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x"]
    )
    def test_a_body_that_is_not_json(self, kind, admin):
        answer = check(Client().generic("POST", "/api/v1/jobs", b"--x", content_type=kind, headers=admin))
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")

    def test_an_answer_that_is_not_json(self, admin):
        assert check(Client().get("/api/v1/jobs", headers={**admin, "Accept": "image/png"})).status_code == 406

    @pytest.mark.parametrize("path", ["/agent/sync", "/agent/logs?key=1.1.0&offset=0", "/api/v1/jobs"])
    def test_a_body_that_is_too_large(self, path, node, monkeypatch):
        monkeypatch.setattr(server, "DATA_UPLOAD_MAX_MEMORY_SIZE", 1000)
        is_api = path.startswith("/api")
        token = make_token(make_user(admin=True)) if is_api else node.credential
        headers = {"Authorization": f"Bearer {token}"}
        answer = check(Client().post(path, b"x" * 2000, content_type="application/json", headers=headers))
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")

    def test_a_name_of_the_server_that_is_not_its_own(self):
        assert check(Client().get("/api/v1/health", headers={"Host": "evil.example"})).status_code in (200, 400)
        assert check(Client().get("/api/v1/docs", headers={"Host": "evil.example"})).status_code == 400

    @pytest.mark.parametrize("path", ["/api/v1/health", "/api/v1/me"])
    def test_a_defect_tells_its_id_and_nothing_of_the_code(self, path, admin, monkeypatch):
        """With a request id, without a trace."""
        from scheduling import api
        from tenants import token_api

        def broken(*args, **kwargs):
            raise RuntimeError("secret detail")

        monkeypatch.setattr(api.Health, "get", broken)
        monkeypatch.setattr(token_api.Me, "get", broken)
        answer = Client(raise_request_exception=False).get(path, headers=admin)
        assert (answer.status_code, set(answer.json())) == (500, SHAPE)
        assert answer.json()["request_id"] == answer["X-Request-Id"]
        assert "secret detail" not in answer.content.decode()
