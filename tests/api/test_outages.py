"""While PostgreSQL is away every answer is 503 with `Retry-After`, and a repeated key gives the first answer (A59)."""

import asyncio
import logging
import time
from io import StringIO

import pytest
from django.db import Error, OperationalError, connection, transaction
from django.test import Client

from gpusched.lib.db.connections import connect
from gpusched.lib.db.engine.base import gate
from gpusched.lib.db.outages import is_outage
from gpusched.lib.db.sql import execute, query
from jobs.models import Job
from scheduling.worker import tasks
from tenants.models import ApiToken
from tests.api import hostile_sockets
from tests.api.operations import Stage, operations
from tests.factories import make_member, make_node, make_tenant, make_token, make_user
from tests.frontend.page import cookie_of
from tests.postgres_proxy import proxied

pytestmark = pytest.mark.django_db(transaction=True)
PAGES = (
    "/overview/",
    "/fleet/",
    "/queue/",
    "/jobs/",
    "/nodes/",
    "/tenants/",
    "/submit/",
    "/cluster/health/",
    "/admin/",
)
WITHOUT_DATABASE = ("/health", "/api/v1/health")
JOB = {"tenant": "nlp", "command": ["true"], "gpu_count": 0, "cpu_cores": 1}


@pytest.fixture
def proxy():
    with proxied() as result:
        yield result
    gate._reset()


@pytest.fixture
def token():
    make_tenant("nlp")
    return make_token(make_user("root", admin=True))


def ask(method, path, token="", body=None, **headers):
    headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **headers}
    sent = {"data": body, "content_type": "application/json"} if body is not None else {}
    # As the server does it: the next request has another connection if this one's broke.
    try:
        return getattr(Client(raise_request_exception=False), method.lower())(path, headers=headers, **sent)
    finally:
        connection.close_if_unusable_or_obsolete()


def require_unavailable(answer, subject):
    assert (answer.status_code, answer.headers.get("Retry-After")) == (503, "1"), subject
    assert answer.headers["Content-Type"] == "application/problem+json", subject
    assert answer.json()["code"] == "database_unavailable", subject


def test_every_operation_answers_503_while_the_database_refuses_connections(proxy):
    """A59"""
    stage = Stage()
    requested = [(row, stage.address(row), stage.body(row) if row.is_write else None) for row in operations()]
    proxy.refuse()
    for row, path, body in requested:
        answer = ask(row.method, path, stage.token, body)
        if path in WITHOUT_DATABASE:
            assert answer.status_code == 200, row.name
        elif path.endswith("/ready"):
            assert (answer.status_code, answer["Retry-After"], answer.json()["database"]) == (503, "1", False)
        else:
            require_unavailable(answer, row.name)


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/metrics", "/agent/join", "/agent/sync", "/agent/logs"])
def test_metrics_and_agents_answer_503_while_the_database_is_unreachable(proxy, path):
    """A59"""
    proxy.refuse()
    method = "POST" if path.startswith("/agent/") else "GET"
    require_unavailable(ask(method, path, "n1.secret", {} if method == "POST" else None), path)


@pytest.mark.parametrize("path", PAGES)
def test_pages_answer_503_while_the_database_is_unreachable(proxy, path):
    """A59: and their own page asks the database for nothing more."""
    browser = Client(raise_request_exception=False)
    browser.force_login(make_user(admin=True))
    proxy.refuse()
    answer = browser.get(path)
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")
    assert "The database does not answer" in answer.content.decode()
    assert "Nothing of it was kept" not in answer.content.decode()


def test_websockets_are_closed_with_1013_while_the_database_is_unreachable(proxy):
    """A59: not refused with a 500; agents and pages try again."""
    agent = make_node()
    cookie = cookie_of(make_member(make_tenant("team")))
    page = {"origin": "http://localhost", "cookie": "good"}
    connection.close()
    proxy.refuse()
    assert asyncio.run(hostile_sockets.knock_as_agent(f"Bearer {agent.credential}")) == 1013
    assert asyncio.run(hostile_sockets.knock_as_page(page, cookie)) == 1013


def test_answers_return_with_the_database(proxy, token):
    proxy.refuse()
    assert ask("GET", "/api/v1/jobs", token).status_code == 503
    proxy.come_back()
    assert ask("GET", "/api/v1/jobs", token).status_code == 200


def test_connection_timeouts_delay_one_request_and_no_others(proxy, token):
    """A59: or each would hold a thread for the timeout, and clients behind them would give up."""
    proxy.hang()
    connection.close()
    began = time.monotonic()
    require_unavailable(ask("GET", "/api/v1/jobs", token), "the first")
    assert time.monotonic() - began > 2.5
    attempts = proxy.attempts
    for _ in range(5):
        require_unavailable(ask("GET", "/api/v1/jobs", token), "at once")
    assert proxy.attempts == attempts
    gate._resumes_at = 0.0  # the pause is over
    proxy.come_back()
    assert ask("GET", "/api/v1/jobs", token).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "text", "stored"),
    [
        ("/api/v1/jobs", JOB, b"submitted_at", Job),
        ("/api/v1/tokens", {"name": "laptop"}, b"COMMIT\0", ApiToken),
    ],
    ids=["submit", "token"],
)
def test_commit_with_a_lost_answer_is_uncertain_and_a_repeat_returns_its_answer(proxy, token, path, body, text, stored):
    """A59"""
    previous = stored.objects.count()
    proxy.cut_answer(text)
    first = ask("POST", path, token, body, **{"Idempotency-Key": "once"})
    require_unavailable(first, path)
    assert "the request may or may not have been executed" in first.json()["detail"]
    assert "same Idempotency-Key" in first.json()["next_step"]
    assert stored.objects.count() == previous + 1, "it was carried out"
    repeated = ask("POST", path, token, body, **{"Idempotency-Key": "once"})
    assert (repeated.status_code, repeated["Idempotent-Replay"]) == (201, "true")
    assert stored.objects.count() == previous + 1


@pytest.mark.parametrize(
    ("method", "path", "key", "is_safe"),
    [
        ("POST", "/api/v1/jobs", "once", "repeat it with the same Idempotency-Key"),
        ("POST", "/api/v1/jobs", "", "with an Idempotency-Key, repeating is safe"),
        ("POST", "/api/v1/login", "once", "before you repeat it"),
        ("DELETE", "/api/v1/tokens/1", "once", "before you repeat it"),
        ("PUT", "/api/v1/tenants/nlp/budget", "once", "before you repeat it"),
        ("GET", "/api/v1/jobs", "", "try again in a moment"),
    ],
)
def test_repeat_is_called_safe_only_with_a_key(proxy, token, method, path, key, is_safe):
    """A59"""
    proxy.refuse()
    body = {"username": "root", "password": "x"} if path.endswith("login") else {}
    answer = ask(method, path, token, body if method != "GET" else None, **({"Idempotency-Key": key} if key else {}))
    assert answer.status_code == 503
    assert answer.json()["next_step"].endswith(is_safe) or answer.json()["next_step"].startswith(is_safe)
    assert ("may or may not" in answer.json()["detail"]) == (method != "GET")


def test_defect_stays_a_500_and_does_not_claim_that_nothing_was_stored(token, monkeypatch):
    for defect in (KeyError("x"), OperationalError("raised by hand")):
        monkeypatch.setattr("jobs.submit.submit.submit", lambda *_, defect=defect: (_ for _ in ()).throw(defect))
        answer = ask("POST", "/api/v1/jobs", token, JOB, **{"Idempotency-Key": "once"})
        assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
        assert "may or may not" in answer.json()["detail"] and "nothing" not in answer.json()["detail"]


@pytest.mark.parametrize(
    ("sqlstate", "is_away"),
    [("57P01", True), ("57P02", True), ("57P03", True), ("53300", True), ("08006", True),
     ("57014", False), ("42601", False), ("40P01", False), ("55P03", False), ("22003", False)],
)  # fmt: skip
def test_server_errors_are_classified_by_their_code(sqlstate, is_away):
    with pytest.raises(Error) as caught:
        execute(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{sqlstate}'; END $$")
    assert is_outage(caught.value) is is_away


def test_full_disk_of_the_database_is_named(token, monkeypatch):
    """Callers read that the database does not answer."""

    def fill_disk(*_):
        execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53100'; END $$")

    monkeypatch.setattr("jobs.submit.submit.submit", fill_disk)
    monkeypatch.setattr("frontend.ui.page.identity", fill_disk)
    answer = ask("POST", "/api/v1/jobs", token, JOB)
    require_unavailable(answer, "submit")
    assert answer.json()["detail"].startswith("the database has no disk space left")
    browser = Client(raise_request_exception=False)
    browser.force_login(make_user())
    page = browser.get("/queue/")
    assert (page.status_code, b"The database has no disk space left" in page.content) == (503, True)


@pytest.mark.parametrize("timeout", ["statement_timeout", "lock_timeout"])
def test_timeout_of_the_role_is_temporary(token, monkeypatch, caplog, timeout):
    """It is no defect to report: the same request may succeed later."""

    def wait_for_lock(*_):
        with transaction.atomic():
            execute(f"SET LOCAL {timeout} = '50ms'")
            execute("SELECT pg_advisory_xact_lock(1)")

    monkeypatch.setattr("jobs.submit.submit.submit", wait_for_lock)
    with connect() as other, caplog.at_level(logging.WARNING, "django.request"):
        other.execute("SELECT pg_advisory_lock(1)")
        answer = ask("POST", "/api/v1/jobs", token, JOB)
    require_unavailable(answer, timeout)
    [record] = [row for row in caplog.records if row.name == "django.request"]
    assert record.exc_info is None and timeout in record.getMessage() and timeout in answer.json()["detail"]


def test_connection_ended_by_the_server_in_a_transaction_is_an_outage(django_db_blocker):
    with pytest.raises(Error) as caught, transaction.atomic():
        query("SELECT pg_terminate_backend(pg_backend_pid())")
    assert is_outage(caught.value)


def test_wrong_use_of_a_sound_connection_is_not_an_outage():
    cursor = connection.cursor()
    cursor.close()
    with pytest.raises(Error) as caught:
        cursor.execute("SELECT 1")
    assert not is_outage(caught.value)


def test_outage_is_a_log_line_without_a_traceback(proxy, token, caplog):
    proxy.refuse()
    with caplog.at_level(logging.WARNING, "django.request"):
        ask("GET", "/api/v1/jobs", token)
    [record] = [row for row in caplog.records if row.name == "django.request"]
    assert record.exc_info is None and "the database does not answer" in record.getMessage()


def test_outage_in_the_worker_is_a_log_line_without_a_traceback(proxy):
    """As in django-q2's pusher: each poll of the queue during an outage logged forty lines."""
    proxy.refuse()
    handler = logging.StreamHandler(io := StringIO())
    logger = logging.getLogger("django-q")
    logger.addHandler(handler)
    try:
        query("SELECT 1")
    except Error:
        logger.exception("Failed to pull task from broker")
    finally:
        logger.removeHandler(handler)
    lines = io.getvalue().splitlines()
    assert len(lines) == 1 and lines[0].startswith("Failed to pull task from broker: the database does not answer: ")


def test_outage_in_a_cycle_is_a_log_line_without_a_traceback(proxy, caplog):
    """django-q2 logged the traceback of each tick as a failed task."""
    proxy.refuse()
    tasks.cycle("tick")
    [record] = [row for row in caplog.records if row.name == tasks.__name__]
    assert record.getMessage().startswith("no cycle: the database does not answer: ") and record.exc_info is None
