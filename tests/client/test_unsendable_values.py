"""Requests that cannot carry their values are refused before they are sent: A58, and Invalid in the SDK."""

import asyncio
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpusched.client import AsyncClient, Client, GpuschedError, Invalid
from tests.client.commandline import call, start
from tests.client.fakeserver import FakeServer

# Python's representation of an argument with the byte 0xff.
BYTE = os.fsdecode(b"\xff")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["submit", "--max-runtime-minutes", "nan", "--", "true"], "max_runtime_minutes"),
        (["submit", "--cpu-cores", "inf", "--", "true"], "cpu_cores"),
        (["submit", "--dry-run", "--predicted-runtime-minutes", "nan", "--", "true"], "predicted_runtime_minutes"),
        (["run", "--max-runtime-minutes", "inf", "--", "true"], "max_runtime_minutes"),
        (["token", "create", "ci", "--days", "inf"], "expires_in_days"),
        (["token", "create", "ci", "--service", "nlp", "--days", "nan"], "days"),
        (["node", "join-token", "--hours", "nan"], "hours"),
        (["rate", "set", "H100", "nan"], "price"),
        (["tenant", "create", "nlp", "--weight", "nan"], "weight"),
        (["extend", "42", "--to", "nan"], "max_runtime_minutes"),
        (["wait", "42", "--timeout", "nan"], "timeout"),
        (["budget", "nlp", "--hard", "nan"], "--hard"),
        (["budget", "nlp", "--soft", "inf"], "--soft"),
        (["budget", "nlp", "--hard", "month"], "--hard"),
        (["budget", "nlp", "--days", "none"], "--days"),
        (["submit", "--", "cat", BYTE], "command[1]"),
        (["submit", "-e", f"A={BYTE}", "--", "true"], "environment.A"),
        (["submit", "-e", f"{BYTE}=A", "--", "true"], "environment"),
        (["submit", "--idempotency-key", "schlüssel", "--", "true"], "Idempotency-Key"),
        (["submit", "--idempotency-key", "a\nb", "--", "true"], "Idempotency-Key"),
        (["ps", "-n", BYTE], "name"),
        (["reserve", "next", "--for", f"{'9' * 400}h"], "is not a duration"),
        (["lease", "--for", "٣h"], "is not a duration"),
        (["tenant", "show", "a" * 100_000], "too long"),
        (["ps", "-n", "a" * 100_000], "too long"),
        (["tenant", "show", BYTE], "UTF-8"),
        (["tenant", "show", ""], "empty"),
        (["tenant", "show", ".."], "'..'"),
        (["tenant", "show", "nlp/quota"], "'nlp/quota' is not a valid name"),
        (["node", "show", ""], "empty"),
        (["node", "show", "../jobs/1"], "'../jobs/1' is not a valid name"),
        (["task", "submit", "embed", '"\\ud800"'], "input is not text in UTF-8"),
        (["task", "submit", "embed", "[" * 100_000], "nested too deeply"),
    ],
)
def test_command_line_names_values_that_cannot_be_sent(full: FakeServer, args: list[str], sentence: str) -> None:
    result = call(full.url, *args)
    assert (result.exit_code, result.stdout) == (2, ""), result
    assert sentence in result.stderr
    assert full.requests == []


def test_real_process_refuses_arguments_that_are_not_utf8(full: FakeServer) -> None:
    process = start(full.url, "submit", "--", "cat", BYTE)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (2, b"")
    assert err.startswith(b"error: command[1] is not text in UTF-8\n")


@pytest.mark.parametrize("args", [("quota", "nlp", "--max-gpus"), ("submit", "--gpu-memory-mb")], ids=" ".join)
def test_real_process_sends_numbers_of_any_length(full: FakeServer, args: tuple[str, ...]) -> None:
    """The server has the words for what is too large."""
    digits = "9" * 5000
    process = start(full.url, *args, digits, *(["--", "true"] if args[0] == "submit" else []))
    _, err = process.communicate(timeout=20)
    assert (process.returncode, b"Traceback" in err) == (0, False), err
    assert digits.encode() in full.requests[-1 if args[0] == "submit" else -2].body


def test_error_names_the_invalid_job_of_a_list(full: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("- {command: [a]}\n- {command: [b], max_runtime_minutes: .inf}\n")
    result = call(full.url, "submit", "-f", str(tmp_path / "jobs.yaml"))
    assert (result.exit_code, full.requests) == (2, [])
    assert "jobs[1].max_runtime_minutes must be a finite number, not inf" in result.stderr


DEEP: list[object] = []
for _ in range(10_000):
    DEEP = [DEEP]

CALLS: list[Callable[[Client | AsyncClient], object]] = [
    lambda c: c.create_token("ci", expires_in_days=math.nan),
    lambda c: c.set_budget("nlp", hard_gpu_hours=math.inf),
    lambda c: c.set_policy({"cost_by_model": {"H100": math.nan}}),
    lambda c: c.submit(["true"], max_runtime_minutes=-math.inf),
    lambda c: c.submit(["true"], idempotency_key="ü"),
    lambda c: c.submit(["true"], idempotency_key=" a"),
    lambda c: c.list(name="\ud800"),
    lambda c: c.wait(42, math.nan),
    lambda c: c.tenant(""),
    lambda c: c.list(name="a" * 100_000),
    lambda c: c.submit_task("embed", "\ud800"),
    # Larger than what is sent in an envelope.
    lambda c: c.submit_task("embed", [math.nan] * 100_000),
    lambda c: c.submit_task("embed", DEEP),
]


@pytest.mark.parametrize("wrong", CALLS)
def test_both_clients_raise_invalid(full: FakeServer, wrong: Callable[..., object]) -> None:
    async def scenario() -> None:
        async with AsyncClient(full.url) as c:
            await wrong(c)  # type: ignore[misc]

    with Client(full.url) as c, pytest.raises(Invalid) as caught:
        wrong(c)
    with pytest.raises(Invalid):
        asyncio.run(scenario())
    assert isinstance(caught.value, GpuschedError)
    assert full.requests == []


def test_valid_text_is_sent_unchanged(full: FakeServer) -> None:
    """Every character, and numbers of any size."""
    odd = "täglich \U0001f680 \x7f"
    result = call(full.url, "submit", "-n", odd, "--max-runtime-minutes", "1e300", "--", "true")
    assert result.exit_code == 0, result
    assert full.requests[0].json == {"command": ["true"], "name": odd, "max_runtime_minutes": 1e300}


@pytest.mark.parametrize("source", ["--password-stdin", "--token-stdin"])
def test_stdin_that_is_not_utf8_exits_2(full: FakeServer, source: str) -> None:
    result = call(full.url, "login", "-u", "ada", source, stdin=b"\xff\n")
    assert (result.exit_code, full.requests) == (2, [])
    assert "stdin is not text in UTF-8" in result.stderr


def test_task_input_on_stdin_that_is_not_utf8_exits_2(full: FakeServer) -> None:
    result = call(full.url, "task", "submit", "embed", stdin=b"\x89PNG\xff")
    assert (result.exit_code, full.requests) == (2, [])
    assert "the input on stdin is not text in UTF-8" in result.stderr
    assert "--file" in result.stderr
