"""Logging in by OpenID Connect, against a provider on loopback: the whole way, and all that must not get in."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest

from tests.e2e.provider import CLIENT, SECRET, Lie, Provider
from tests.system.stack import ROOT, Stack

pytestmark = pytest.mark.e2e
GRACE = {"sub": "1", "preferred_username": "grace", "email": "grace@example.org", "email_verified": True}


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as running:
        yield running


@pytest.fixture(scope="module")
def up(provider: Provider) -> Iterator[Stack]:
    with Stack(
        oidc_issuer=provider.url, oidc_client_id=CLIENT, oidc_client_secret=SECRET, oidc_name="Acme login",
        oidc_groups="ml=nlp:member, leads=nlp:owner, ops=admin", oidc_allowed_domains="example.org",
        password_login_only_for="admin",
    ) as running:  # fmt: skip
        running.client().create_tenant("nlp")
        yield running


@pytest.fixture(autouse=True)
def truth(provider: Provider) -> None:
    provider.tell_truth()
    provider.person = {**GRACE, "groups": ["ml"]}


@pytest.fixture
def browser(up: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=up.url, follow_redirects=True, timeout=60) as found:
        yield found


def me(browser: httpx.Client) -> dict[str, object] | None:
    answer = browser.get("/api/v1/me")
    return answer.json() if answer.status_code == 200 else None


def log_in(browser: httpx.Client, following: str = "/queue/") -> httpx.Response:
    return browser.get("/login/sso/", params={"next": following})


def roles(browser: httpx.Client) -> dict[str, str]:
    found = me(browser)
    assert found is not None
    return {one["name"]: one["role"] for one in found["tenants"]}  # type: ignore[attr-defined]


def test_single_sign_on_and_logout(up: Stack, browser: httpx.Client) -> None:
    page = browser.get("/login/?next=/jobs/")
    assert "Log in with Acme login" in page.text
    assert 'href="/login/sso/?next=/jobs/"' in page.text
    landed = log_in(browser)
    assert (landed.status_code, landed.url.path) == (200, "/queue/")
    assert (me(browser) or {})["user"] == "grace"
    assert roles(browser) == {"nlp": "member"}
    form = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', landed.text)
    token = form[1] if form else browser.cookies["csrftoken"]
    browser.post("/logout/", data={"csrfmiddlewaretoken": token}, headers={"Referer": up.url})
    assert me(browser) is None
    entries = httpx.get(f"{up.url}/api/v1/audit?actor=grace", headers={"Authorization": f"Bearer {up.token()}"}).json()
    assert {(one["action"], one["via"]) for one in entries["items"]} == {
        ("user.create", "oidc"),
        ("member.set", "oidc"),
    }


def test_roles_follow_the_groups_of_the_latest_login(browser: httpx.Client, provider: Provider) -> None:
    """A person in no group any longer loses every membership of the provider; a local one stays."""
    for groups, expected in ((["ml", "leads"], {"nlp": "owner"}), (["ml"], {"nlp": "member"})):
        provider.person = {**GRACE, "groups": groups}
        log_in(browser)
        assert roles(browser) == expected
    provider.person = {**GRACE, "groups": ["ops"]}
    log_in(browser)
    assert (me(browser) or {})["is_admin"] is True
    provider.person = {**GRACE, "groups": ["others"]}
    refused = log_in(browser)
    assert (refused.status_code, "None of your groups has a role here" in refused.text) == (403, True)
    assert (me(browser) or {}).get("is_admin") is False, "the session of before has nothing left"
    assert roles(browser) == {}


def test_name_in_another_unicode_form_is_that_of_the_account(
    up: Stack, browser: httpx.Client, provider: Provider
) -> None:
    """Directories may store an umlaut as two characters; Django stores it as one."""
    up.client().create_user("j\u00fcrgen", login="sso")
    provider.person = {**GRACE, "sub": "umlaut", "preferred_username": "ju\u0308rgen", "groups": ["ml"]}
    assert log_in(browser).status_code == 200
    assert (me(browser) or {})["user"] == "j\u00fcrgen"


@pytest.mark.parametrize(
    "more", [{"nickname": "half \ud800"}, {"name": "a\x00"}, {"groups": ["a\x00", "ml", 5]}, {"given_name": 5}]
)
def test_claim_that_cannot_be_stored_prevents_no_login(
    browser: httpx.Client, provider: Provider, more: dict[str, object]
) -> None:
    """It answered 500, although nothing reads such a claim."""
    provider.lie = lambda claims: {**claims, **more}
    assert log_in(browser).status_code == 200
    assert roles(browser) == {"nlp": "member"}


@pytest.mark.parametrize("mark", [{"_claim_names": {"groups": "src1"}}, {"hasgroups": True}])
def test_login_with_omitted_groups_is_refused_and_changes_no_role(
    up: Stack, browser: httpx.Client, provider: Provider, mark: dict[str, object]
) -> None:
    """The roles of a user with very many groups were removed, as if the user had none."""
    log_in(browser)
    provider.person = {**GRACE, **mark}
    with httpx.Client(base_url=up.url, follow_redirects=True, timeout=60) as other:
        refused = log_in(other)
    assert (refused.status_code, "more groups than fit" in refused.text) == (403, True)
    assert roles(browser) == {"nlp": "member"}


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/keys"])
def test_answer_that_is_no_object_is_a_refused_login(browser: httpx.Client, provider: Provider, path: str) -> None:
    provider.documents = lambda: {**Provider.documents(provider), path: ["no object"]}  # type: ignore[method-assign]
    try:
        assert log_in(browser).status_code == 403
    finally:
        del provider.documents


LIES: dict[str, Lie] = {
    "another nonce": lambda claims: {**claims, "nonce": "x"},
    "no nonce": lambda claims: {name: value for name, value in claims.items() if name != "nonce"},
    "another audience": lambda claims: {**claims, "aud": "another"},
    "two audiences": lambda claims: {**claims, "aud": [CLIENT, "another"], "azp": "another"},
    "another issuer": lambda claims: {**claims, "iss": "https://evil.example"},
    "expired": lambda claims: {**claims, "exp": claims["iat"] - 600},
    "never expires": lambda claims: {name: value for name, value in claims.items() if name != "exp"},
    "no name": lambda claims: {**claims, "preferred_username": ""},
    "a number as the name": lambda claims: {**claims, "preferred_username": 5},
    "another domain": lambda claims: {**claims, "email": "grace@evil.example"},
    "an unverified address": lambda claims: {**claims, "email_verified": False},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_answer_for_another_login_is_refused(browser: httpx.Client, provider: Provider, lie: Lie) -> None:
    provider.lie = lie
    assert log_in(browser).status_code == 403
    assert me(browser) is None


@pytest.mark.parametrize("how", ["unsigned", "by the client's secret", "by another key", "not at all"])
def test_unsigned_answer_is_refused(browser: httpx.Client, provider: Provider, how: str) -> None:
    provider.sign = {
        "unsigned": lambda claims: jwt.encode(claims, "", "none", headers={"kid": "1"}),
        "by the client's secret": lambda claims: jwt.encode(claims, SECRET, "HS256", headers={"kid": "1"}),
        "by another key": lambda claims: jwt.encode(claims, provider.other_key, "RS256", headers={"kid": "1"}),
        "not at all": lambda claims: None,
    }[how]
    assert log_in(browser).status_code == 403
    assert me(browser) is None


def test_code_is_valid_once_and_only_for_the_requesting_browser(up: Stack, browser: httpx.Client) -> None:
    """An unrequested state, that of another browser, and a used one."""
    assert browser.get("/login/sso/callback/?code=x&state=made-up").status_code == 403
    asked = browser.get("/login/sso/", follow_redirects=False)
    back = browser.get(asked.headers["location"], follow_redirects=False).headers["location"]
    assert set(parse_qs(urlsplit(back).query)) == {"code", "state"}
    with httpx.Client(follow_redirects=True, timeout=60) as thief:
        assert thief.get(back).status_code == 403
    assert browser.get(back).status_code == 200
    assert browser.get(back).status_code == 403


def test_single_sign_on_takes_over_no_local_account(up: Stack, browser: httpx.Client, provider: Provider) -> None:
    """Whoever may choose their name at the provider is not the local admin."""
    provider.person = {**GRACE, "sub": "2", "preferred_username": "admin", "groups": ["ops"]}
    refused = log_in(browser)
    assert (refused.status_code, "not bound to this login" in refused.text) == (403, True)
    assert me(browser) is None


def test_login_of_another_person_does_not_reuse_the_session(browser: httpx.Client, provider: Provider) -> None:
    """Another person of the provider with the name of an existing user."""
    log_in(browser)
    assert (me(browser) or {})["user"] == "grace"
    with httpx.Client(base_url=browser.base_url, follow_redirects=True, timeout=60) as other:
        provider.person = {**GRACE, "groups": ["ml"], "sub": "another"}
        refused = log_in(other)
        assert (refused.status_code, "not bound to this login" in refused.text) == (403, True)
        assert me(other) is None


def test_login_redirects_to_no_other_site(browser: httpx.Client) -> None:
    assert log_in(browser, "https://evil.example/").url.host == "127.0.0.1"


def test_only_named_accounts_log_in_with_a_password(up: Stack) -> None:
    """The one account for when the provider is away; another not even with the right one."""
    code = """
from django.contrib.auth.models import User
for name in ("admin", "linus"):
    user, _ = User.objects.get_or_create(username=name)
    user.set_password("correct horse battery")
    user.save()
"""
    shell = [sys.executable, "manage.py", "shell", "--no-imports", "-c", code]
    subprocess.run(shell, cwd=ROOT, env=up.environment(), check=True, timeout=120)
    for name, status in (("admin", 201), ("linus", 401)):
        given = {"username": name, "password": "correct horse battery"}
        answer = httpx.post(f"{up.url}/api/v1/login", json=given, timeout=60)
        assert answer.status_code == status, answer.text


def with_subject(subject: str) -> Lie:
    return lambda claims: {**claims, "sub": subject}


def log_in_at_once(up: Stack, provider: Provider, lies: Sequence[Lie]) -> list[tuple[int, str]]:
    """Log in once per lie, all at once. Return the status of each, and the name of the account or nothing."""
    gate, waiting = threading.Barrier(len(lies)), list(lies)

    def lie(claims: dict[str, object]) -> dict[str, object]:
        gate.wait(30)
        return waiting.pop()(claims)

    def visit(_: object) -> tuple[int, str]:
        with httpx.Client(base_url=up.url, follow_redirects=True, timeout=60) as browser:
            status = log_in(browser).status_code
            return status, str((me(browser) or {}).get("user", ""))

    provider.lie = lie
    with ThreadPoolExecutor(len(lies)) as pool:
        return list(pool.map(visit, lies))


@pytest.mark.parametrize("has_account", [False, True])
def test_first_logins_of_a_person_at_once_all_succeed(up: Stack, provider: Provider, has_account: bool) -> None:
    """Such as those of several tabs of one browser."""
    for number in range(5):
        name = f"twin-{has_account}-{number}"
        if has_account:
            up.client().create_user(name, login="sso")
        provider.person = {**GRACE, "sub": name, "preferred_username": name, "groups": ["ml"]}
        assert log_in_at_once(up, provider, [lambda claims: claims] * 4) == [(200, name)] * 4


def test_account_is_bound_to_one_of_two_persons_with_its_name_who_log_in_at_once(up: Stack, provider: Provider) -> None:
    for number in range(10):
        name = f"rival-{number}"
        up.client().create_user(name, login="sso")
        provider.person = {**GRACE, "preferred_username": name, "groups": ["ml"]}
        lies = [with_subject(f"{name}-{each}") for each in range(2)]
        assert sorted(log_in_at_once(up, provider, lies)) == [(200, name), (403, "")]
