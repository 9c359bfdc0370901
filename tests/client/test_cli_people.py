"""Accounts, members, and tenants that are renamed or archived, from the command line and the SDK (A54, A56)."""

import asyncio
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

from gpusched.client import AsyncClient, Client
from tests.client.commandline import ROOT, call
from tests.client.fakeserver import Answer, FakeServer, problem, sequence


@pytest.mark.parametrize(
    ("words", "method", "path", "body"),
    [
        ("user create kim --admin", "POST", "/users", {"username": "kim", "email": "", "is_admin": True, "login": "password"}),
        ("user create kim --sso", "POST", "/users", {"username": "kim", "email": "", "is_admin": False, "login": "sso"}),
        ("user edit kim --no-admin", "PATCH", "/users/kim", {"is_admin": False}),
        ("user reset-password kim --keep-tokens -y", "POST", "/users/kim/reset-password", {"keep_tokens": True}),
        ("member add nlp kim --role owner", "POST", "/tenants/nlp/members", {"user": "kim", "role": "owner"}),
        ("member set-role nlp kim viewer", "PATCH", "/tenants/nlp/members/kim", {"role": "viewer"}),
        ("tenant rename nlp language", "POST", "/tenants/nlp/rename", {"name": "language"}),
        ("tenant archive nlp", "POST", "/tenants/nlp/archive", {"cancel_jobs": False}),
        ("tenant archive nlp --cancel-jobs -y", "POST", "/tenants/nlp/archive", {"cancel_jobs": True}),
    ],
)  # fmt: skip
def test_command_sends_what_it_was_asked_for(full: FakeServer, words: str, method: str, path: str, body: Any) -> None:
    assert call(full.url, *words.split()).exit_code == 0
    [asked] = full.asked
    assert (asked.method, asked.path, asked.json) == (method, f"/api/v1{path}", body)


@pytest.mark.parametrize("words", ["user create kim", "user reset-password kim --yes"])
def test_one_time_password_is_the_only_word_on_stdout(full: FakeServer, words: str) -> None:
    """A56: so that it can go to a file; nothing on stderr has it."""
    result = call(full.url, *words.split())
    assert (result.exit_code, result.stdout) == (0, "abcd-efgh\n")
    assert "shown only once" in result.stderr and "abcd" not in result.stderr


@pytest.mark.parametrize(("words", "path"), [("create", "/users"), ("reset-password", "/users/kim/reset-password")])
def test_given_password_comes_from_stdin(full: FakeServer, words: str, path: str) -> None:
    """A56"""
    answer = {"username": "kim", "one_time_password": None, "revoked_tokens": 0}
    full.on("POST", path, Answer(200, answer))
    result = call(full.url, "user", words, "kim", "--password-stdin", stdin="correct horse\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert full.asked[-1].json["password"] == "correct horse" and "correct horse" not in result.stderr


def test_own_password_is_two_lines_of_stdin(full: FakeServer) -> None:
    result = call(full.url, "user", "change-password", "--password-stdin", stdin="old horse\nnew horse\n")
    assert result.exit_code == 0 and "horse" not in result.stdout + result.stderr
    assert full.asked[-1].json == {"old_password": "old horse", "new_password": "new horse", "revoke_tokens": False}


def test_empty_stdin_is_no_password(full: FakeServer) -> None:
    result = call(full.url, "user", "create", "kim", "--password-stdin")
    assert result.exit_code == 2 and "missing on stdin" in result.stderr
    assert full.asked == []


def test_own_password_is_asked_for_without_echo(full: FakeServer) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "gpusched.cli.main", "user", "change-password"]
    environment = {**os.environ, "GPUSCHED_URL": full.url}
    command = subprocess.Popen(words, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        for prompt, answer in ((b"Old password: ", b"old"), (b"New password: ", b"new"), (b"confirmation: ", b"new")):
            while prompt not in shown:
                shown += os.read(ours, 1000)
            os.write(ours, answer + b" horse\n")
        while piece := _read(ours):
            shown += piece
        assert command.wait() == 0
    finally:
        command.kill()
        command.wait()
        os.close(ours)
    assert b"horse" not in shown and b"password changed" in shown
    assert full.asked[-1].json["new_password"] == "new horse"


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1000)
    except OSError:  # nobody has the other end any more
        return b""


@pytest.mark.parametrize(
    "words",
    ["user disable kim", "user reset-password kim", "member remove nlp kim", "tenant archive nlp --cancel-jobs"],
)
def test_command_that_takes_something_away_asks_first(full: FakeServer, words: str) -> None:
    result = call(full.url, *words.split())
    assert result.exit_code == 2 and "--yes" in result.stderr
    assert full.asked == []


def test_disable_names_tenants_without_an_owner(full: FakeServer) -> None:
    assert "tenant nlp no longer has an owner" in call(full.url, "user", "disable", "kim", "--yes").stderr


def test_archived_tenants_are_listed_when_asked(full: FakeServer) -> None:
    call(full.url, "tenant", "list")
    call(full.url, "tenant", "list", "--archived")
    assert [dict(asked.query) for asked in full.asked] == [{}, {"archived": "true"}]


REQUIRED = problem(403, "password_change_required", "this password is for one login", "log in with new_password")


def test_login_with_a_one_time_password_takes_the_new_one_from_stdin(full: FakeServer) -> None:
    full.on("POST", "/login", sequence(REQUIRED, Answer(201, {"id": 8, "token": "u1.new"})))
    result = call(full.url, "login", "-u", "kim", "--password-stdin", stdin="abcd-efgh\nnew horse\n")
    assert result.exit_code == 0, result.stderr
    logins = [asked.json for asked in full.asked if asked.path.endswith("/login")]
    assert [(one["password"], one.get("new_password")) for one in logins] == [
        ("abcd-efgh", None), ("abcd-efgh", "new horse"),
    ]  # fmt: skip


def test_login_with_a_one_time_password_alone_says_what_to_do(full: FakeServer) -> None:
    full.on("POST", "/login", REQUIRED)
    result = call(full.url, "login", "-u", "kim", "--password-stdin", stdin="abcd-efgh\n")
    assert result.exit_code == 4 and "second line of stdin" in result.stderr


def test_refusals_have_their_exit_codes(full: FakeServer) -> None:
    full.on("POST", "/tenants/nlp/archive", problem(409, "tenant_has_jobs", "it has jobs", "cancel them"))
    full.on("POST", "/users/kim/disable", problem(409, "last_admin", "the only admin", "make another"))
    assert call(full.url, "tenant", "archive", "nlp").exit_code == 5
    assert call(full.url, "user", "disable", "kim", "--yes").exit_code == 5


def test_async_client_does_the_same(full: FakeServer) -> None:
    """A54"""

    async def work() -> list[Any]:
        async with AsyncClient(full.url) as c:
            return [
                await c.users(active=True, kind="person"), await c.user("kim"), await c.create_user("kim"),
                await c.reset_password("kim"), await c.members("nlp"), await c.set_role("nlp", "kim", "owner"),
                await c.archive_tenant("nlp"), await c.change_password("a", "b"),
            ]  # fmt: skip

    def work_sync() -> list[Any]:
        with Client(full.url) as c:
            return [
                c.users(active=True, kind="person"), c.user("kim"), c.create_user("kim"), c.reset_password("kim"),
                c.members("nlp"), c.set_role("nlp", "kim", "owner"), c.archive_tenant("nlp"), c.change_password("a", "b"),
            ]  # fmt: skip

    assert asyncio.run(work()) == work_sync()
    half = len(full.asked) // 2
    asked = [(one.method, one.path, dict(one.query), one.body) for one in full.asked]
    assert asked[:half] == asked[half:]
    assert asked[0][2] == {"active": "true", "kind": "person"}
