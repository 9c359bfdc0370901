"""Secrets from the command line: jobs name them, and no value is ever in an argument (A56)."""

import asyncio
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from gpusched.cli.flags.flags import requested
from gpusched.client import AsyncClient, Client
from gpusched.client.errors import Invalid
from tests.client.commandline import ROOT, call
from tests.client.fakeserver import Answer, FakeServer


def test_secret_flags_add_to_the_secrets_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [x]\nsecrets: [wandb, hf]\n")
    [fields] = requested({"file": tmp_path / "job.yaml", "secrets": ["hf", "s3", "s3"]})
    assert fields["secrets"] == ["wandb", "hf", "s3"]
    assert requested({"secrets": ["wandb"]})[0]["secrets"] == ["wandb"]


def test_secret_values_in_a_file_are_refused_by_the_server(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [x]\nsecrets: {wandb: hunter2}\n")
    assert requested({"file": tmp_path / "job.yaml", "secrets": ["hf"]})[0]["secrets"] == {"wandb": "hunter2"}


@pytest.mark.parametrize("text", ["token=hunter2", "token=@file", "hunter2 ", "../hunter2"])
def test_invalid_secret_name_is_refused_and_not_repeated(text: str) -> None:
    """Every user of the machine can read a command line; the refusal must not put it into a log, either."""
    with pytest.raises(Invalid) as refused:
        requested({"secrets": [text]})
    message = f"{refused.value} {refused.value.next_step}"
    assert "hunter2" not in message and "gpusched secret set" in message


SET = ("secret", "set", "wandb", "-t", "nlp")


@pytest.mark.parametrize(
    ("stdin_text", "sent"),
    [("hunter2", "hunter2"), ("hunter2\n", "hunter2"), ("hunter2\r\n", "hunter2"), ("a\nb\n", "a\nb\n"), ("ä", "ä")],
)
def test_secret_from_stdin_loses_the_newline_of_a_single_line(full: FakeServer, stdin_text: str, sent: str) -> None:
    result = call(full.url, *SET, stdin=stdin_text)
    assert (result.exit_code, result.stdout) == (0, "") and "hunter2" not in result.stderr
    [request] = full.requests
    assert (request.method, request.path) == ("PUT", "/api/v1/tenants/nlp/secrets/wandb")
    assert request.json == {"value": sent}


def test_secret_from_a_file_is_exact(full: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes("ä\r\n\n".encode())
    call(full.url, *SET, "--file", str(tmp_path / "key.pem"), stdin="not this")
    assert full.requests[-1].json == {"value": "ä\r\n\n"}


def test_secret_prompt_does_not_echo(full: FakeServer) -> None:
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "gpusched.cli.main", *SET]
    environment = {**os.environ, "GPUSCHED_URL": full.url}
    command = subprocess.Popen(argv, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    message = b""
    try:
        # The space is printed once echo is off; earlier input is discarded.
        while b"Value: " not in message:
            message += os.read(ours, 1000)
        os.write(ours, b"hunter2\n")
        while piece := _read(ours):
            message += piece
        assert command.wait() == 0
    finally:
        command.kill()
        command.wait()
        os.close(ours)
    assert b"hunter2" not in message and b"secret wandb is set" in message
    assert full.requests[-1].json == {"value": "hunter2"}


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 1000)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize(
    "argv",
    [
        ("set", "wandb=hunter2"),
        ("set", "a/hunter2"),
        ("delete", "wandb=hunter2", "--yes"),
        ("set", "wandb", "--file", "/nowhere"),
    ],
)
def test_invalid_secret_is_refused_before_a_request(full: FakeServer, argv: tuple[str, ...]) -> None:
    result = call(full.url, "secret", *argv, "-t", "nlp", stdin="x")
    assert result.exit_code == 2 and "hunter2" not in result.stderr
    assert full.requests == []


def test_binary_secret_is_refused_with_the_next_step(full: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    result = call(full.url, *SET, "--file", str(tmp_path / "x"))
    assert result.exit_code == 2 and "base64" in result.stderr


def test_deleting_a_secret_asks_for_confirmation(full: FakeServer) -> None:
    argv = ("secret", "delete", "wandb", "-t", "nlp")
    assert call(full.url, *argv).exit_code == 2 and full.requests == []
    assert call(full.url, *argv, "--yes").exit_code == 0
    assert (full.requests[-1].method, full.requests[-1].path) == ("DELETE", "/api/v1/tenants/nlp/secrets/wandb")


def test_secret_tenant_defaults_to_the_configured_or_only_one(
    full: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    full.on("GET", "/me", Answer(200, {"user": "ada", "tenants": [{"name": "nlp", "role": "owner"}]}))
    assert "wandb" in call(full.url, "secret", "list").stdout
    full.on("GET", "/me", Answer(200, {"user": "ada", "tenants": [{"name": "nlp"}, {"name": "vision"}]}))
    refused = call(full.url, "secret", "list")
    assert refused.exit_code == 2 and "nlp, vision" in refused.stderr
    monkeypatch.setenv("GPUSCHED_TENANT", "nlp")
    assert "wandb" in call(full.url, "secret", "list").stdout


def test_both_clients_set_list_and_delete_secrets(full: FakeServer) -> None:
    async def through() -> None:
        async with AsyncClient(full.url, tenant="nlp") as c:
            assert (await c.set_secret("wandb", "hunter2")).name == "wandb"
            assert [secret.set_by for secret in await c.secrets()] == ["grace"]
            await c.delete_secret("wandb")

    with Client(full.url, tenant="vision") as c:
        assert c.set_secret("wandb", "hunter2", tenant="nlp").name == "wandb"
        assert [secret.set_by for secret in c.secrets(tenant="nlp")] == ["grace"]
        c.delete_secret("wandb", tenant="nlp")
    asyncio.run(through())
    request = [(secret.method, secret.path, secret.body) for secret in full.requests]
    assert request[:3] == request[3:]
    assert [method for method, _, _ in request[:3]] == ["PUT", "GET", "DELETE"]
