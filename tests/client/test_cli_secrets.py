"""Secrets from the command line: jobs name them, and no value ever stands in an argument (A56)."""

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


def test_a_job_names_them_and_flags_add_to_those_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [x]\nsecrets: [wandb, hf]\n")
    [fields] = requested({"file": tmp_path / "job.yaml", "secrets": ["hf", "s3", "s3"]})
    assert fields["secrets"] == ["wandb", "hf", "s3"]
    assert requested({"secrets": ["wandb"]})[0]["secrets"] == ["wandb"]


def test_values_in_a_job_file_are_left_to_be_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [x]\nsecrets: {wandb: hunter2}\n")
    assert requested({"file": tmp_path / "job.yaml", "secrets": ["hf"]})[0]["secrets"] == {"wandb": "hunter2"}


@pytest.mark.parametrize("text", ["token=hunter2", "token=@file", "hunter2 ", "../hunter2"])
def test_what_is_no_name_is_refused_and_not_repeated(text: str) -> None:
    """Everybody on the machine can read a command line; the refusal must not go into a log with it, either."""
    with pytest.raises(Invalid) as refused:
        requested({"secrets": [text]})
    told = f"{refused.value} {refused.value.next_step}"
    assert "hunter2" not in told and "gpusched secret set" in told


SET = ("secret", "set", "wandb", "-t", "nlp")


@pytest.mark.parametrize(
    ("given", "sent"),
    [("hunter2", "hunter2"), ("hunter2\n", "hunter2"), ("hunter2\r\n", "hunter2"), ("a\nb\n", "a\nb\n"), ("ä", "ä")],
)
def test_a_value_comes_from_stdin_without_the_end_of_its_only_line(full: FakeServer, given: str, sent: str) -> None:
    result = call(full.url, *SET, stdin=given)
    assert (result.exit_code, result.stdout) == (0, "") and "hunter2" not in result.stderr
    [asked] = full.asked
    assert (asked.method, asked.path) == ("PUT", "/api/v1/tenants/nlp/secrets/wandb")
    assert asked.json == {"value": sent}


def test_a_value_comes_from_a_file_to_the_byte(full: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes("ä\r\n\n".encode())
    call(full.url, *SET, "--file", str(tmp_path / "key.pem"), stdin="not this")
    assert full.asked[-1].json == {"value": "ä\r\n\n"}


def test_a_value_is_asked_for_without_echo(full: FakeServer) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "gpusched.cli.main", *SET]
    environment = {**os.environ, "GPUSCHED_URL": full.url}
    command = subprocess.Popen(words, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    told = b""
    try:
        # The space is written when the echo is off, and what was typed before that is thrown away.
        while b"Value: " not in told:
            told += os.read(ours, 1000)
        os.write(ours, b"hunter2\n")
        while piece := _read(ours):
            told += piece
        assert command.wait() == 0
    finally:
        command.kill()
        command.wait()
        os.close(ours)
    assert b"hunter2" not in told and b"secret wandb is set" in told
    assert full.asked[-1].json == {"value": "hunter2"}


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 1000)
    except OSError:  # nobody at the other end any more
        return b""


@pytest.mark.parametrize(
    "words",
    [
        ("set", "wandb=hunter2"),
        ("set", "a/hunter2"),
        ("delete", "wandb=hunter2", "--yes"),
        ("set", "wandb", "--file", "/nowhere"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(full: FakeServer, words: tuple[str, ...]) -> None:
    result = call(full.url, "secret", *words, "-t", "nlp", stdin="x")
    assert result.exit_code == 2 and "hunter2" not in result.stderr
    assert full.asked == []


def test_binary_values_are_refused_with_what_to_do(full: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    result = call(full.url, *SET, "--file", str(tmp_path / "x"))
    assert result.exit_code == 2 and "base64" in result.stderr


def test_deleting_asks_first(full: FakeServer) -> None:
    words = ("secret", "delete", "wandb", "-t", "nlp")
    assert call(full.url, *words).exit_code == 2 and full.asked == []
    assert call(full.url, *words, "--yes").exit_code == 0
    assert (full.asked[-1].method, full.asked[-1].path) == ("DELETE", "/api/v1/tenants/nlp/secrets/wandb")


def test_without_a_tenant_it_is_that_of_the_configuration_or_the_only_one(
    full: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    full.on("GET", "/me", Answer(200, {"user": "ada", "tenants": [{"name": "nlp", "role": "owner"}]}))
    assert "wandb" in call(full.url, "secret", "list").stdout
    full.on("GET", "/me", Answer(200, {"user": "ada", "tenants": [{"name": "nlp"}, {"name": "vision"}]}))
    refused = call(full.url, "secret", "list")
    assert refused.exit_code == 2 and "nlp, vision" in refused.stderr
    monkeypatch.setenv("GPUSCHED_TENANT", "nlp")
    assert "wandb" in call(full.url, "secret", "list").stdout


def test_the_sdk_sets_lists_and_deletes_them_sync_and_async_alike(full: FakeServer) -> None:
    async def through() -> None:
        async with AsyncClient(full.url, tenant="nlp") as c:
            assert (await c.set_secret("wandb", "hunter2")).name == "wandb"
            assert [one.set_by for one in await c.secrets()] == ["grace"]
            await c.delete_secret("wandb")

    with Client(full.url, tenant="vision") as c:
        assert c.set_secret("wandb", "hunter2", tenant="nlp").name == "wandb"
        assert [one.set_by for one in c.secrets(tenant="nlp")] == ["grace"]
        c.delete_secret("wandb", tenant="nlp")
    asyncio.run(through())
    asked = [(one.method, one.path, one.body) for one in full.asked]
    assert asked[:3] == asked[3:]
    assert [method for method, _, _ in asked[:3]] == ["PUT", "GET", "DELETE"]
