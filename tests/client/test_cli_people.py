"""Accounts, members, and renamed or archived tenants, from the command line and the SDK (A54, A56)."""

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
    ("arguments", "method", "path", "body"),
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
def test_command_sends_its_request(full: FakeServer, arguments: str, method: str, path: str, body: Any) -> None:
    assert call(full.url, *arguments.split()).exit_code == 0
    [request] = full.requests
    assert (request.method, request.path, request.json) == (method, f"/api/v1{path}", body)


@pytest.mark.parametrize("arguments", ["user create kim", "user reset-password kim --yes"])
def test_one_time_password_is_the_only_output_on_stdout(full: FakeServer, arguments: str) -> None:
    """A56: so that it can go to a file; nothing on stderr has it."""
    result = call(full.url, *arguments.split())
    assert (result.exit_code, result.stdout) == (0, "abcd-efgh\n")
    assert "shown only once" in result.stderr and "abcd" not in result.stderr


@pytest.mark.parametrize(("arguments", "path"), [("create", "/users"), ("reset-password", "/users/kim/reset-password")])
def test_password_is_read_from_stdin(full: FakeServer, arguments: str, path: str) -> None:
    """A56"""
    answer = {"username": "kim", "one_time_password": None, "revoked_tokens": 0}
    full.on("POST", path, Answer(200, answer))
    result = call(full.url, "user", arguments, "kim", "--password-stdin", stdin="correct horse\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert full.requests[-1].json["password"] == "correct horse" and "correct horse" not in result.stderr


def test_change_password_reads_two_lines_of_stdin(full: FakeServer) -> None:
    result = call(full.url, "user", "change-password", "--password-stdin", stdin="old horse\nnew horse\n")
    assert result.exit_code == 0 and "horse" not in result.stdout + result.stderr
    assert full.requests[-1].json == {"old_password": "old horse", "new_password": "new horse", "revoke_tokens": False}


def test_empty_stdin_is_refused_as_a_password(full: FakeServer) -> None:
    result = call(full.url, "user", "create", "kim", "--password-stdin")
    assert result.exit_code == 2 and "missing on stdin" in result.stderr
    assert full.requests == []


def test_change_password_prompts_without_echo(full: FakeServer) -> None:
    ours, theirs = pty.openpty()
    arguments = [sys.executable, "-m", "gpusched.cli.main", "user", "change-password"]
    environment = {**os.environ, "GPUSCHED_URL": full.url}
    command = subprocess.Popen(arguments, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = b""
    try:
        for prompt, answer in ((b"Old password: ", b"old"), (b"New password: ", b"new"), (b"confirmation: ", b"new")):
            while prompt not in output:
                output += os.read(ours, 1000)
            os.write(ours, answer + b" horse\n")
        while piece := _read(ours):
            output += piece
        assert command.wait() == 0
    finally:
        command.kill()
        command.wait()
        os.close(ours)
    assert b"horse" not in output and b"password changed" in output
    assert full.requests[-1].json["new_password"] == "new horse"


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1000)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize(
    "arguments",
    ["user disable kim", "user reset-password kim", "member remove nlp kim", "tenant archive nlp --cancel-jobs"],
)
def test_destructive_command_asks_for_confirmation(full: FakeServer, arguments: str) -> None:
    result = call(full.url, *arguments.split())
    assert result.exit_code == 2 and "--yes" in result.stderr
    assert full.requests == []


def test_disable_names_tenants_without_an_owner(full: FakeServer) -> None:
    assert "tenant nlp no longer has an owner" in call(full.url, "user", "disable", "kim", "--yes").stderr


def test_archived_tenants_are_listed_on_request(full: FakeServer) -> None:
    call(full.url, "tenant", "list")
    call(full.url, "tenant", "list", "--archived")
    assert [dict(request.query) for request in full.requests] == [{}, {"archived": "true"}]


REQUIRED = problem(403, "password_change_required", "this password is for one login", "log in with new_password")


def test_login_with_a_one_time_password_reads_the_new_one_from_stdin(full: FakeServer) -> None:
    full.on("POST", "/login", sequence(REQUIRED, Answer(201, {"id": 8, "token": "u1.new"})))
    result = call(full.url, "login", "-u", "kim", "--password-stdin", stdin="abcd-efgh\nnew horse\n")
    assert result.exit_code == 0, result.stderr
    logins = [request.json for request in full.requests if request.path.endswith("/login")]
    assert [(entry["password"], entry.get("new_password")) for entry in logins] == [
        ("abcd-efgh", None), ("abcd-efgh", "new horse"),
    ]  # fmt: skip


def test_login_with_only_a_one_time_password_names_the_next_step(full: FakeServer) -> None:
    full.on("POST", "/login", REQUIRED)
    result = call(full.url, "login", "-u", "kim", "--password-stdin", stdin="abcd-efgh\n")
    assert result.exit_code == 4 and "second line of stdin" in result.stderr


def test_refusals_have_their_exit_codes(full: FakeServer) -> None:
    full.on("POST", "/tenants/nlp/archive", problem(409, "tenant_has_jobs", "it has jobs", "cancel them"))
    full.on("POST", "/users/kim/disable", problem(409, "last_admin", "the only admin", "make another"))
    assert call(full.url, "tenant", "archive", "nlp").exit_code == 5
    assert call(full.url, "user", "disable", "kim", "--yes").exit_code == 5


def test_async_client_sends_the_same_requests(full: FakeServer) -> None:
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
    half = len(full.requests) // 2
    request = [(entry.method, entry.path, dict(entry.query), entry.body) for entry in full.requests]
    assert request[:half] == request[half:]
    assert request[0][2] == {"active": "true", "kind": "person"}
