"""Guessing passwords is slowed down; a proxy's headers count only where the proxy is trusted."""

from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from gpusched.env import SettingError, read
from gpusched.lib import limits
from gpusched.lib.db.sql import execute
from gpusched.lib.web.client_address import client_of, networks
from scheduling.worker import tasks
from tenants.auth import login_throttle
from tenants.models import ApiToken, LoginAttempts
from tests.api.calls import call
from tests.factories import make_token, make_user

pytestmark = pytest.mark.django_db
RIGHT, WRONG = "correct horse battery", "wrong"


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Small limits, so that a test needs few attempts."""
    monkeypatch.setattr(login_throttle, "MAX_PER_NAME_AND_ADDRESS", 3)
    monkeypatch.setattr(login_throttle, "MAX_PER_ADDRESS", 5)
    monkeypatch.setattr(login_throttle, "MAX_PER_NAME", 6)


@pytest.fixture(autouse=True)
def grace():
    return make_user("grace", admin=True)


def log_in(name="grace", password=WRONG, address="10.0.0.1"):
    body = b'{"username": "%s", "password": "%s"}' % (name.encode(), password.encode())
    return Client(REMOTE_ADDR=address).post("/api/v1/login", body, content_type="application/json")


def test_fourth_guess_at_a_name_is_refused_even_if_it_is_right():
    """A55: with when to try again, in the one error shape."""
    assert [log_in().status_code for _ in range(3)] == [401] * 3
    answer = log_in(password=RIGHT)
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_logins")
    assert 0 < int(answer["Retry-After"]) <= limits.LOGIN_WINDOW_SECONDS


def test_guesses_with_a_key_count():
    """With a token, a key would roll back the refusal together with the count of the guess."""
    headers = {"Authorization": f"Bearer {make_token(make_user('viewer'))}"}
    body = b'{"username": "grace", "password": "wrong"}'
    answers = [
        Client(REMOTE_ADDR="10.0.0.1").post(
            "/api/v1/login", body, content_type="application/json", headers={**headers, "Idempotency-Key": f"guess {n}"}
        )
        for n in range(4)
    ]
    assert [answer.status_code for answer in answers] == [401] * 3 + [429]


def test_login_has_no_dry_run():
    """A dry run would be a login with an unrequested token."""
    answer = Client().post(
        "/api/v1/login?dry_run=true", {"username": "grace", "password": RIGHT}, content_type="application/json"
    )
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "dry_run")
    assert not ApiToken.objects.exists()


def test_guesses_of_others_do_not_lock_a_user_out():
    for _ in range(4):
        log_in(address="10.0.0.66")
    assert log_in(password=RIGHT).status_code == 201


def test_guesses_from_many_addresses_at_one_name_are_refused():
    answers = [log_in(address=f"10.0.1.{n}").status_code for n in range(7)]
    assert answers == [401] * 6 + [429]


def test_guesses_at_many_names_from_one_address_are_refused():
    answers = [log_in(name=f"user{n}").status_code for n in range(6)]
    assert answers == [401] * 5 + [429]


def test_right_password_resets_the_guesses_before_it():
    for _ in range(2):
        log_in()
    assert log_in(password=RIGHT).status_code == 201
    assert [log_in().status_code for _ in range(3)] == [401] * 3


def test_guesses_from_one_network_of_ipv6_share_their_limit():
    """A client has 2^64 addresses."""
    answers = [log_in(name=f"user{n}", address=f"2001:db8:0:1::{n}").status_code for n in range(6)]
    assert answers == [401] * 5 + [429]
    assert log_in(address="2001:db8:0:2::1").status_code == 401


def test_own_password_does_not_reset_guesses_at_others():
    """Otherwise an account holder could guess forever from an address, with right logins in between."""
    make_user("mallory")
    statuses = [log_in(name=f"user{n}").status_code for n in range(4)]
    statuses += [log_in(name="mallory", password=RIGHT).status_code, log_in(name="user4").status_code]
    assert statuses == [401] * 4 + [201, 401]
    assert log_in(name="user5").status_code == 429
    assert log_in(name="mallory", password=RIGHT).status_code == 429


def test_attempts_count_anew_after_the_window():
    for _ in range(4):
        log_in()
    execute("UPDATE tenants_loginattempts SET began_at = began_at - interval '1 hour'")
    assert log_in(password=RIGHT).status_code == 201


def test_attempts_count_anew_after_the_clock_was_set_back():
    for _ in range(4):
        log_in()
    execute("UPDATE tenants_loginattempts SET began_at = began_at + interval '1 day'")
    assert log_in(password=RIGHT).status_code == 201


@pytest.mark.parametrize("path", ["/login/", "/admin/login/"])
def test_login_pages_count(path):
    """The login page and the admin share the counters with the API; the refusal is a page."""
    browser = Client(REMOTE_ADDR="10.0.0.1")
    for _ in range(3):
        assert browser.post(path, {"username": "grace", "password": WRONG}).status_code == 200
    refused = browser.post(path, {"username": "grace", "password": RIGHT})
    assert (refused.status_code, "Retry-After" in refused) == (429, True)
    assert "Too many requests" in refused.content.decode()
    assert log_in(password=RIGHT).status_code == 429


def test_typed_names_are_not_stored():
    """A56: a password typed into the wrong field is in no table."""
    log_in(name="hunter2-secret")
    assert "hunter2" not in " ".join(LoginAttempts.objects.values_list("key", flat=True))


class TestProxies:
    def test_headers_of_untrusted_peers_are_ignored(self):
        for n in range(3):
            Client(REMOTE_ADDR="10.0.0.1", headers={"X-Forwarded-For": f"10.9.9.{n}"}).post(
                "/api/v1/login", b'{"username": "grace", "password": "x"}', content_type="application/json"
            )
        assert log_in().status_code == 429

    def test_trusted_proxy_sets_the_client_address(self, monkeypatch):
        monkeypatch.setattr(settings, "ENV", read({"GPUSCHED_TRUSTED_PROXIES": "10.0.0.0/24"}))
        answers = [
            Client(REMOTE_ADDR="10.0.0.1", headers={"X-Forwarded-For": f"6.6.6.6, 192.0.2.{n}, 10.0.0.7"})
            .post("/api/v1/login", b'{"username": "grace", "password": "x"}', content_type="application/json")
            .status_code
            for n in range(6)
        ]
        assert answers == [401] * 6

    @pytest.mark.parametrize(
        ("claimed", "client"),
        [
            ("", "10.0.0.1"),
            ("192.0.2.1", "192.0.2.1"),
            ("6.6.6.6, 192.0.2.1", "192.0.2.1"),
            ("192.0.2.1, 10.0.0.9", "192.0.2.1"),
            ("192.0.2.1, x", "10.0.0.1"),
            ("2001:db8::1", "2001:db8::1"),
            ("6.6.6.6, 192.0.2.1:4711", "192.0.2.1"),
            ("[2001:db8::1]:4711, 10.0.0.9:80", "2001:db8::1"),
        ],
    )
    def test_client_is_the_nearest_address_that_is_not_a_proxy(self, claimed, client):
        assert client_of("10.0.0.1", claimed, networks("10.0.0.0/24")) == client
        # As a server that listens on `::` sees its IPv4 clients.
        for trusted in ("10.0.0.0/24", "::ffff:10.0.0.0/120"):
            assert client_of("::ffff:10.0.0.1", claimed, networks(trusted)) == client

    def test_https_behind_a_proxy_needs_its_header(self):
        with pytest.raises(SettingError, match="TRUSTED_PROXIES"):
            read({"GPUSCHED_BEHIND_TLS": "true"})
        with pytest.raises(SettingError, match=r"GPUSCHED_TRUSTED_PROXIES.*nowhere"):
            read({"GPUSCHED_TRUSTED_PROXIES": "nowhere"})

    @pytest.mark.parametrize(
        ("peer", "is_tls"),
        [("10.0.0.1", True), ("::ffff:10.0.0.1", True), ("192.0.2.1", False), ("::ffff:192.0.2.1", False)],
    )
    def test_only_a_trusted_proxy_can_report_https(self, monkeypatch, peer, is_tls):
        monkeypatch.setattr(settings, "ENV", read({"GPUSCHED_TRUSTED_PROXIES": "10.0.0.0/24"}))
        monkeypatch.setattr(settings, "SECURE_PROXY_SSL_HEADER", ("HTTP_X_FORWARDED_PROTO", "https"))
        monkeypatch.setattr(settings, "SECURE_HSTS_SECONDS", 3600)
        answer = Client(REMOTE_ADDR=peer, headers={"X-Forwarded-Proto": "https"}).get("/login/")
        assert ("Strict-Transport-Security" in answer) is is_tls


class TestBrowsers:
    @pytest.mark.parametrize("path", ["/login/", "/", "/nothing"])
    def test_pages_run_only_script_files_of_this_server(self, path, grace):
        browser = Client()
        browser.force_login(grace)
        answer = browser.get(path)
        scripts = answer["Content-Security-Policy"].split("script-src")[1].split(";")[0]
        assert scripts.strip() == "'self'"
        assert "<script>" not in answer.content.decode()

    def test_api_answers_allow_no_page_content(self):
        answer = call("GET", "/api/v1/health", None)
        assert answer["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer["X-Content-Type-Options"] == "nosniff"

    def test_admin_cannot_be_framed(self):
        answer = Client().get("/admin/login/")
        assert "frame-ancestors 'none'" in answer["Content-Security-Policy"]
        assert (answer["X-Frame-Options"], answer["Referrer-Policy"]) == ("DENY", "same-origin")

    def test_cookies_are_limited_to_this_site(self, grace):
        browser = Client()
        browser.post("/login/", {"username": "grace", "password": RIGHT})
        session = browser.cookies["sessionid"]
        assert (session["httponly"], session["samesite"]) == (True, "Lax")


def test_expired_sessions_are_deleted():
    browsers = [Client(), Client()]
    for browser in browsers:
        browser.force_login(make_user())
    expired, valid = (browser.session.session_key for browser in browsers)
    Session.objects.filter(pk=expired).update(expire_date=timezone.now() - timedelta(minutes=1))
    tasks.drop_old()
    assert [session.pk for session in Session.objects.all()] == [valid]
