"""A58: on every failure of every command, the exit code has its kind, stderr its reason and next step, and stdout is
empty."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from gpusched.cli import main
from gpusched.cli.terminal import group
from gpusched.client import Client
from gpusched.client.transport import polling, retries
from tests.client.answers import TASK
from tests.client.commandline import COMMANDS, ENDLESS, OFFLINE, ROOT, call, command, start
from tests.client.fakeserver import Answer, FakeServer, problem

FAILURES: dict[str, tuple[Answer, int]] = {
    "invalid": (problem(400, "invalid", "gpu_count: must be between 0 and 100000", "correct the fields"), 2),
    "not authenticated": (problem(401, "not_authenticated", "the token has expired", "log in again"), 4),
    "not permitted": (problem(403, "not_permitted", "only an admin may do this", "ask an admin"), 4),
    "not found": (problem(404, "not_found", "there is no such thing", "check the id"), 3),
    "conflict": (problem(409, "wrong_state", "job 42 has ended", "submit it again"), 5),
    "changed meanwhile": (problem(412, "version_conflict", "it has changed", "read it again"), 5),
    "never fits": (problem(422, "never_fits", "the largest node has 8 GPUs", "ask for less"), 6),
    "over the limit": (problem(403, "quota_exceeded", "quota exceeded for tenant nlp", "raise the quota"), 6),
    "after what failed": (problem(422, "dependency_failed", "can never start: job 7 is failed", "run it again"), 6),
    "over the budget": (problem(403, "budget_used_up", "the budget of tenant nlp is used up", "wait"), 9),
    "rate-limited": (problem(429, "too_many", "too many requests", "slow down"), 9),
    "internal": (problem(500, "internal", "the server failed", "tell an admin", request_id="req-7"), 1),
    "starting": (problem(503, "starting", "the server starts", "try again"), 8),
    "proxy": (Answer(502, b"<html>Bad Gateway</html>"), 8),
    "no server of ours": (Answer(200, b"<html>Welcome</html>"), 1),
}


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = {**(Client.__init__.__kwdefaults__ or {}), "patience_seconds": 0.0}
    monkeypatch.setattr(Client.__init__, "__kwdefaults__", defaults)
    monkeypatch.setattr(polling, "RETRY_SECONDS", 0.0)


@pytest.mark.parametrize("failure", FAILURES)
def test_every_command_reports_every_failure(server: FakeServer, failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A58"""
    answer, code = FAILURES[failure]
    server.default = answer
    for name, args in {**COMMANDS, **ENDLESS}.items():
        if failure == "no server of ours" and name in (
            "rate end",
            "exempt end",
            "secret set",
            "secret delete",
            "member remove",
            "logs",
            "logs -f",
            "logs --tail",
        ):
            continue  # they look at no JSON, or only after something else has failed
        result = call(server.url, *args, stdin="password\n")
        assert result.exit_code == code, (name, result.stderr)
        assert result.stdout == ("gpusched 0.1.0\n" if name == "version" else ""), name
        assert result.stderr.startswith(("error: ", "http")) or "error: " in result.stderr, name
        if isinstance(answer.body, dict):
            assert answer.body["detail"] in result.stderr, name
            assert answer.body["next_step"] in result.stderr, name
        assert "Traceback" not in result.stderr, name
    if failure == "internal":
        assert "req-7" in result.stderr


def test_refused_token_has_a_next_step_for_the_command_line(server: FakeServer) -> None:
    """The sentences are those of gpusched/lib/api/problems.py."""
    step = "send Authorization: Bearer <token>"
    server.default = problem(401, "not_authenticated", "this token is unknown, expired or revoked", step)
    result = call(server.url, "ps")
    assert "next:  get a token by gpusched login; " in result.stderr
    assert step not in result.stderr


def test_table_of_commands_is_complete() -> None:
    def leaves(node: Any, path: str) -> list[str]:
        children = getattr(node, "commands", None)
        if children is None:
            return [path]
        itself = [path] if path and node.invoke_without_command else []
        return itself + [leaf for name, child in children.items() for leaf in leaves(child, f"{path} {name}".strip())]

    also = {"quota set": "quota", "budget set": "budget", "policy set": "policy", "history ID": "history"}
    covered = {also.get(name, name.partition(" -")[0]) for name in COMMANDS}
    assert set(leaves(command, "")) == covered | OFFLINE | set(ENDLESS)


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["ps", "--nonsense"],
        ["why"],
        ["why", "x"],
        ["why", "0"],
        ["submit", "--gpus", "many", "--", "true"],
        ["submit", "-f", "/nonexistent.yaml"],
        ["submit", "--env", "GPUSCHED_SURELY_UNSET", "--", "true"],
        ["submit", "--label", "x", "--", "true"],
        ["ps", "-o", "xml"],
        ["why", "42", "-o", "csv"],
        ["task", "wait", "17", "18", "-o", "json"],
        ["quota", "--max-gpus", "4"],
        ["quota", "nlp", "--max-gpus", "few"],
        ["quota", "nlp", "--guaranteed-gpus", "none"],
        ["budget", "nlp", "--hard", "much"],
        ["budget", "nlp", "--dry-run"],
        ["rate", "set", "H100", "-1"],
        ["usage", "nlp", "--by", "weather"],
        ["token", "create", "ci", "--role", "viewer"],
        ["token", "create", "ci", "--service", "nlp", "--tenant", "nlp"],
        ["cancel", "1", "2"],
        ["signal", "42", "KILL"],
        ["login"],
        ["--url", "nonsense", "ps"],
        ["--token-file", "/nonexistent", "ps"],
    ],
)
def test_wrong_usage_exits_2_without_a_request(server: FakeServer, args: list[str]) -> None:
    server.default = Answer(200, {"job_id": 42, "state": "pending"})
    result = call(server.url, *args)
    assert result.exit_code == 2, result
    assert result.stdout == ""
    assert result.stderr
    assert [request.method for request in server.requests if request.method != "GET"] == []


def test_format_of_lists_is_refused_for_an_object_before_a_request(full: FakeServer) -> None:
    """Else a second try would submit a second job, and a new token or password would be lost."""
    refused, tree = [], cast("Any", command)
    for name, args in COMMANDS.items():
        words = 2 if args[1:] and args[1] in getattr(tree.commands[args[0]], "commands", ()) else 1
        full.requests.clear()
        if call(full.url, *args[:words], "-o", "csv", *args[words:]).exit_code == 2:
            assert full.requests == [], name
            refused.append(name)
    assert {"submit", "why", "token create", "user reset-password", "task wait", "notify rotate"} <= set(refused)


def test_all_invalid_fields_are_named(server: FakeServer) -> None:
    wrong = [{"field": "ranks", "code": "x", "message": "too many"}, {"field": "name", "code": "x", "message": "long"}]
    server.default = problem(400, "invalid", "ranks: too many (and 1 more)", errors=wrong)
    result = call(server.url, "submit", "--", "true")
    assert "  name: long" in result.stderr


def test_escape_sequences_of_other_users_are_escaped(server: FakeServer) -> None:
    server.default = problem(409, "x", "job \x1b[2J\u202eevil has ended")
    result = call(server.url, "hold", "42")
    assert "\x1b" not in result.stderr
    assert "\u202e" not in result.stderr


def test_real_process_reports_failures_in_the_same_way(server: FakeServer) -> None:
    server.default = FAILURES["not found"][0]
    process = start(server.url, "why", "42")
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (3, b"")
    assert err.decode() == "error: there is no such thing\nnext:  check the id\n"


def test_unreachable_server_exits_8(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.url
    server.close()
    result = call(url, "ps")
    assert result.exit_code == 8
    assert f"cannot reach {url}" in result.stderr
    assert "GPUSCHED_URL" in result.stderr
    assert retries.RETRY_TIMEOUT_SECONDS > 5  # longer than a restart takes (A50)


@pytest.mark.parametrize(
    ("to", "code", "sentence"),
    [
        ("> /dev/full", 1, "error: the output cannot be written: No space left on device\n"),
        (">&-", 1, "error: the output cannot be written: stdout is closed\n"),
        ("| true", 1, ""),
        ("2>&- > /dev/null", 0, ""),
    ],
)
def test_unwritable_output_exits_1_with_a_sentence(server: FakeServer, to: str, code: int, sentence: str) -> None:
    """A58: a closed pipe gets no message."""
    server.on("GET", "/tenants", Answer(200, {"items": [{"name": "nlp"}], "next_cursor": None}))
    for args in ("tenant list", "version") if to != "| true" else ("tenant list",):
        line = f"set -o pipefail; {sys.executable} -m gpusched.cli.main {args} {to}"
        env = {**os.environ, "GPUSCHED_URL": server.url}
        completed = subprocess.run(["bash", "-c", line], cwd=ROOT, env=env, capture_output=True, timeout=60)
        assert (completed.returncode, completed.stderr.decode()) == (code, sentence), args


def test_unencodable_character_is_printed_by_its_number(server: FakeServer) -> None:
    """As stderr always does; another user's name must not break a list."""
    server.on("GET", "/tenants", Answer(200, {"items": [{"name": "täglich"}, {"name": "b"}], "next_cursor": None}))
    process = start(server.url, "tenant", "list", "-o", "name", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, b"t\\xe4glich\nb\n", b"")


@pytest.mark.parametrize("form", ["json", "jsonl"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_valid_whatever_the_terminal_can_encode(server: FakeServer, form: str, encoding: str) -> None:
    tenant = {"name": "täglich \u20ac \U0001f680 \x9b1m \xad"}
    server.on("GET", "/tenants", Answer(200, {"items": [tenant], "next_cursor": None}))
    process = start(server.url, "tenant", "list", "-o", form, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, b"")
    text = out.decode(encoding)
    found = json.loads(text)
    assert (found[0] if form == "json" else found)["name"] == tenant["name"]
    assert ("ä" in text, "\x9b" in text) == (encoding != "ascii", False)


def test_result_of_a_task_is_valid_json(server: FakeServer) -> None:
    """A soft hyphen is no printable character, and its number in Python is no escape of JSON."""
    output = "sil\xadbe \ufeff \U000e0001 ä"
    server.on("GET", "/tasks/17", Answer(200, {"items": [{**TASK, "output": output}]}))
    assert json.loads(call(server.url, "task", "status", "17").stdout) == output


def test_ctrl_c_while_the_modules_load_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "_run", interrupted)
    monkeypatch.setattr(main, "_open_streams", lambda: None)
    with pytest.raises(SystemExit) as end:
        main.main()
    assert (end.value.code, *capfd.readouterr()) == (130, "", "")


INTERRUPTED = {
    "submit": ["submit", "--", "true"],
    "submit of many": ["submit", "-f", "jobs.yaml"],
    "lease": ["lease", "--gpus", "2", "--for", "2h"],
    "secret": ["secret", "delete", "wandb", "-t", "nlp", "--yes"],
    "dry run": ["submit", "--dry-run", "-f", "jobs.yaml"],
    "list": ["ps"],
}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_interrupted_write_notes_that_it_may_have_been_carried_out(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Ctrl-C is pressed before the answer: repeated, the command would submit or lease twice."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(httpx.Client, "request", interrupted)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.yaml").write_text("[{command: [a]}, {command: [b]}]")
    result = call(server.url, *INTERRUPTED[name])
    assert result.exit_code == 130
    assert ("may have carried out the request" in result.stderr) == (name not in ("dry run", "list"))


def test_command_of_another_scheduler_is_answered_with_ours(server: FakeServer) -> None:
    """`squeue` and `stop` are spelled like `queue` and `top`, which are not what their user wants."""
    listed = call(server.url, "--help").stdout
    for name, ours in group._OURS.items():
        result = call(server.url, name, "42")
        assert (result.exit_code, f"\n  {ours} " in listed) == (2, True)
        assert result.stderr.endswith(f"No such command '{name}'. Did you mean '{ours}'?\n")
    assert call(server.url, "node", "jobs").stderr.endswith("No such command 'jobs'.\n")
