"""The request of each command, and its output on stdout and stderr."""

import csv
import io
import json
import os
import pty
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpusched.cli.jobs.explain_text import explanation_lines
from gpusched.cli.terminal.output import has_colour
from gpusched.client.config import read_file, write_file
from gpusched.client.transport import polling
from gpusched.protocol.rest.explain import Explanation, Position
from tests.client.commandline import COMMANDS, ROOT, call, start
from tests.client.fakeserver import Answer, FakeServer, Request, job, log, problem, sequence

LISTS = ["ps", "nodes", "queue", "history", "history ID", "events", "share", "tenant list", "quota", "token list",
         "token list --service", "usage", "rate list", "audit", "user list", "member list", "endpoint list"]  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_succeeds(full: FakeServer, name: str) -> None:
    result = call(full.url, *COMMANDS[name], stdin="password\n")
    assert result.exit_code == 0, result


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("form", ["table", "wide", "json", "jsonl", "csv", "name"])
def test_lists_print_every_format(full: FakeServer, name: str, form: str) -> None:
    result = call(full.url, *COMMANDS[name], "-o", form)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == "" or name == "usage", "which tells the sum there"
    count = 2 if name in ("ps", "history") else 1
    lines = result.stdout.splitlines()
    if form == "json":
        assert len(json.loads(result.stdout)) == count
    elif form == "jsonl":
        assert len([json.loads(line) for line in lines]) == count
    elif form == "csv":
        rows = list(csv.reader(io.StringIO(result.stdout)))
        assert {len(row) for row in rows} == {len(rows[0])}
        assert len(rows) == count + 1
    else:
        assert len(lines) == count + (form != "name")


def test_nodes_list_the_faults_of_gpus(full: FakeServer) -> None:
    note = "pid 4242 of alice (python)"
    devices = [{"id": 1, "index": 0, "health": "ok"}, {"id": 2, "index": 1, "health": "foreign", "health_note": note},
               {"id": 3, "index": 2, "health": "hot"}]  # fmt: skip
    full.on("GET", "/nodes", Answer(200, {"items": [{"name": "n1", "devices": devices}]}))
    assert f"GPU 1 foreign ({note}), GPU 2 hot" in call(full.url, "nodes", "-o", "csv").stdout


@pytest.mark.parametrize(
    ("state", "intent", "free"),
    [("online", "open", "1"), ("lost", "open", "0"), ("online", "cordoned", "0"), ("online", "draining", "0")],
)
def test_closed_nodes_have_no_free_resources(full: FakeServer, state: str, intent: str, free: str) -> None:
    """A60"""
    node = {"name": "n1", "state": state, "intent": intent, "cpu_cores": 4, "cpu_cores_free": 4, "memory_mb": 9,
            "memory_mb_free": 9, "devices": [{"id": 1, "index": 0, "health": "ok", "held": "free"}]}  # fmt: skip
    full.on("GET", "/nodes", Answer(200, {"items": [node]}))
    [row] = csv.DictReader(io.StringIO(call(full.url, "nodes", "-o", "csv").stdout))
    all_or_nothing = ("4/4", "9/9 MiB") if free == "1" else ("0/4", "0/9 MiB")
    assert (row["free"], row["cpu free"], row["memory free"]) == (free, *all_or_nothing)


def test_gpu_is_quarantined_with_a_note_and_cleared(full: FakeServer) -> None:
    quarantined = call(full.url, "gpu", "quarantine", "2", "--note", "noisy")
    assert (quarantined.exit_code, quarantined.stdout, quarantined.stderr) == (0, "", "GPU 2 is quarantined\n")
    assert (full.requests[-1].path, full.requests[-1].json) == ("/api/v1/gpus/2/quarantine", {"note": "noisy"})
    assert call(full.url, "gpu", "clear", "2").stderr == "GPU 2 is ok\n"
    assert full.requests[-1].path == "/api/v1/gpus/2/clear"
    assert call(full.url, "gpu", "clear", "n1").exit_code == 2


def test_runtimes_of_nodes_and_notes_of_gpus_are_shown(full: FakeServer) -> None:
    devices = [{"id": 17, "index": 1, "health": "quarantined", "health_note": "noisy"}]
    node = {"name": "n1", "runtimes": {"podman": "4.3.1"}, "devices": devices}
    full.on("GET", "/nodes", Answer(200, {"items": [node]}))
    full.on("GET", "/nodes/n1", Answer(200, node))
    assert "podman 4.3.1" in call(full.url, "nodes", "-o", "wide").stdout
    table = call(full.url, "node", "show", "n1")
    assert "noisy" in table.stdout and "17" in table.stdout and "runtimes: podman 4.3.1" in table.stderr


def test_submit_prints_only_the_id(full: FakeServer) -> None:
    result = call(full.url, "submit", "--gpus", "1", "python", "train.py", "--epochs", "3")
    assert (result.stdout, result.stderr) == ("42\n", "job 42 submitted\n")
    assert full.requests[0].json == {"gpu_count": 1, "command": ["python", "train.py", "--epochs", "3"]}


def test_submit_sends_the_fields_of_its_flags(full: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LR", "0.1")
    flags = "-t nlp -n big -p 1000 -g 8 --gpu-model H100 -c 16 -m 64000 -e A=b=c -e LR --gang --ranks 2 --no-requeue"
    more = "--not-preemptible --max-runtime-minutes 90 --label team=x --node-selector zone=a --workdir /data"
    assert call(full.url, "submit", *flags.split(), *more.split(), "--", "true").exit_code == 0
    assert full.requests[0].json == {
        "tenant": "nlp", "name": "big", "priority": 1000, "gpu_count": 8, "gpu_model": "H100", "cpu_cores": 16.0,
        "memory_mb": 64000, "environment": {"A": "b=c", "LR": "0.1"}, "gang_scheduling": True, "ranks": 2,
        "requeue": False, "preemptible": False, "max_runtime_minutes": 90.0, "labels": {"team": "x"},
        "node_selector": {"zone": "a"}, "workdir": "/data", "command": ["true"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["gpu_count: 2\ncommand: [python, t.py]\n", '{"gpu_count": 2, "command": ["python", "t.py"]}']
)
def test_submit_reads_a_file_and_flags_override_it(full: FakeServer, tmp_path: Path, text: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert call(full.url, "submit", "-f", str(file), "--gpus", "4", "--", "--fast").stdout == "42\n"
    assert full.requests[0].json == {"gpu_count": 4, "command": ["python", "t.py"], "args": ["--fast"]}
    assert call(full.url, "submit", "-f", "-", stdin=text).stdout == "42\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [("gpus: 2", "gpus"), ("command: python t.py", "command"), ("- 1", "list of jobs"), ("{", "YAML")],
)
def test_error_names_an_invalid_file(full: FakeServer, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    result = call(full.url, "submit", "-f", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert full.requests == []


def test_submit_sends_a_script_and_its_arguments(full: FakeServer, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\necho $1\n")
    assert call(full.url, "submit", "--script", str(script), "--", "x").exit_code == 0
    assert full.requests[0].json == {"script": "#!/bin/sh\necho $1\n", "args": ["x"]}


def test_ps_lists_live_and_waiting_jobs_by_default(full: FakeServer) -> None:
    call(full.url, "ps")
    call(full.url, "ps", "-a", "-u", "ada", "-l", "1")
    assert full.requests[0].query == {"state": "held,pending,running,scheduled,stopping", "limit": "201"}
    assert full.requests[1].query == {"user": "ada", "limit": "2"}
    assert "more than 1" in call(full.url, "ps", "-l", "1").stderr


def test_why_prints_the_full_explanation(full: FakeServer) -> None:
    lines = call(full.url, "why", "42").stdout.splitlines()
    assert lines[0] == "job 42 is pending: waits for 4 GPUs"
    assert lines[1].startswith("since: 2030-01-01 10:00:00 UTC")
    assert lines[2:] == ["next:  wait", "ahead: 3 jobs, 8 GPUs by priority and age; shares decide before that"]


def test_why_counts_the_gpus_ahead_exactly() -> None:
    explanation = Explanation(job_id=1, state="pending", position=Position(jobs=200_001, gpus=1_600_008))
    assert "ahead: 200001 jobs, 1600008 GPUs by" in explanation_lines(explanation)


def test_logs_print_only_the_output(full: FakeServer) -> None:
    assert call(full.url, "logs", "42").stdout == "epoch 1\nepoch 2\n"
    assert call(full.url, "logs", "42").stderr == ""


@pytest.mark.parametrize("is_lost", [False, True])
def test_logs_of_an_ended_job_print_what_still_arrives(
    full: FakeServer, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """`gpusched wait 42 && gpusched logs 42 > 42.log` kept half of a log of 1 GB, and exited with 0 without a word."""
    monkeypatch.setattr(polling, "LATE_BYTES_SECONDS", 0.0)
    full.on("GET", "/jobs/42", Answer(200, job(state="completed", attempt=1)))
    pieces = log(b"one "), log(b"two ", 4), log(b"three", 8, complete=not is_lost), log(b"", 13, complete=not is_lost)
    full.on("GET", "/jobs/42/logs", sequence(*pieces))
    result = call(full.url, "logs", "42")
    assert (result.exit_code, result.stdout) == (0, "one two three")
    assert ("the rest of its output has not arrived" in result.stderr) is is_lost


def test_tail_begins_at_a_line(full: FakeServer) -> None:
    text = b"epoch 1\nepoch 2\n"

    def from_the_end(request: Request) -> Answer:
        offset = max(0, int(request.query["offset"]))
        return log(text[offset:], offset, len(text))

    full.on("GET", "/jobs/42/logs", from_the_end)
    assert call(full.url, "logs", "--tail", "1", "42").stdout == "epoch 2\n"
    assert full.requests[0].query["offset"] == str(-(1 << 20))


@pytest.mark.parametrize("reads_of_the_job", [0, 1])
def test_tail_of_an_attempt_does_not_hide_the_beginning_of_the_next(full: FakeServer, reads_of_the_job: int) -> None:
    """The new attempt begins after the tail was read: before or after the command reads the job."""
    first, second = b"epoch 1\nepoch 2\n", b"again: epoch 1\n"

    def read(request: Request) -> Answer:
        text = second if request.query.get("attempt") == "2" else first
        offset = int(request.query["offset"])
        offset = max(0, len(text) + offset) if offset < 0 else min(offset, len(text))
        return log(text[offset:], offset, len(text), complete=True, attempt=int(request.query.get("attempt", 1)))

    full.on("GET", "/jobs/42/logs", read)
    jobs = [job(state="running")] * reads_of_the_job + [job(state="completed", attempt=2)]
    full.on("GET", "/jobs/42", sequence(*(Answer(200, each) for each in jobs)))
    assert call(full.url, "logs", "-f", "--tail", "1", "42").stdout == "again: epoch 1\n"


def test_no_output_is_explained_on_stderr(full: FakeServer) -> None:
    full.on("GET", "/jobs/42/logs", log(b"", complete=False, attempt=0))
    full.on("GET", "/jobs/42", Answer(200, job()))
    result = call(full.url, "logs", "42")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no output; it is pending: waits for 4 GPUs" in result.stderr


def test_other_ids_are_processed_when_one_fails(full: FakeServer) -> None:
    result = call(full.url, "cancel", "--yes", "41", "42", "-o", "json")
    assert result.exit_code == 3
    assert [j["id"] for j in json.loads(result.stdout)] == [42]
    assert "no such thing" in result.stderr
    full.on("POST", "/jobs/43/cancel", problem(409, "wrong_state", "has ended"))
    assert call(full.url, "cancel", "--yes", "41", "43", "42").exit_code == 3, "that of the first failure"


def test_other_ids_are_not_tried_when_the_server_is_away(full: FakeServer) -> None:
    """Each would wait as long as the first: `cancel` of 100 jobs ten minutes, `wait` more than three hours."""
    away = Answer(503, problem(503, "starting", "the server starts").body, {"Retry-After": "1000"})
    full.on("POST", "/jobs/43/cancel", away)
    result = call(full.url, "cancel", "--yes", "42", "43", "44", "45", "-o", "json")
    assert result.exit_code == 8
    assert [j["id"] for j in json.loads(result.stdout)] == [42]
    assert "the others, from 44 on, were not tried" in result.stderr
    assert "not tried" not in call(full.url, "cancel", "--yes", "42", "43").stderr


def test_new_token_is_the_only_output_on_stdout(full: FakeServer) -> None:
    result = call(full.url, "token", "create", "ci", "--scope", "read", "--days", "30")
    assert result.stdout == "u12ab.secret\n"
    assert full.requests[0].json == {"name": "ci", "scopes": ["read"], "tenant": None, "expires_in_days": 30.0}


def test_login_stores_the_token_for_its_owner_only(full: FakeServer, tmp_path: Path) -> None:
    result = call("", "login", full.url, "-u", "ada", "--password-stdin", "-t", "nlp", stdin="p w\n")
    file = tmp_path / "config.toml"
    assert read_file(file) == {"url": full.url, "token": "u1.new", "tenant": "nlp"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert full.requests[0].json["password"] == "p w"
    assert full.requests[1].headers["authorization"] == "Bearer u1.new"
    assert "u1.new" not in result.stdout + result.stderr
    call("", "nodes")
    assert full.requests[-1].headers["authorization"] == "Bearer u1.new"


def test_login_keeps_the_default_tenant_only_for_the_same_server(full: FakeServer, tmp_path: Path) -> None:
    """Another server has other tenants: a submit could go to an unknown one, or to another team's."""
    file = tmp_path / "config.toml"
    write_file(file, {"url": full.url + "/", "token": "u1.old", "tenant": "nlp", "own": "stays"})
    args = ["-u", "ada", "--password-stdin"]
    assert "nlp" not in call("", "login", full.url, *args, stdin="x\n").stderr
    assert read_file(file) == {"url": full.url, "token": "u1.new", "tenant": "nlp", "own": "stays"}
    write_file(file, {"url": "https://other.example", "token": "u1.old", "tenant": "nlp", "own": "stays"})
    message = call("", "login", full.url, *args, stdin="x\n").stderr
    assert read_file(file) == {"url": full.url, "token": "u1.new", "own": "stays"}
    assert "tenant nlp of https://other.example is no longer the default" in message
    write_file(file, {"url": "https://other.example", "token": "u1.old", "tenant": "nlp"})
    call("", "login", full.url, *args, "--tenant", "vision", stdin="x\n")
    assert read_file(file)["tenant"] == "vision"


def test_login_replaces_an_invalid_url_in_the_file(full: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('url = "gpu.example"\ntenant = "nlp"\n')
    result = call("", "login", full.url, "-u", "ada", "--password-stdin", stdin="x\n")
    assert result.exit_code == 0, result.stderr
    assert f'url = "{full.url}"' in file.read_text() and "nlp" not in file.read_text()


def test_refused_login_changes_nothing(full: FakeServer, tmp_path: Path) -> None:
    full.on("POST", "/login", problem(401, "bad_login", "wrong user name or password"))
    result = call(full.url, "login", "-u", "ada", "--password-stdin", stdin="x\n")
    assert (result.exit_code, result.stdout) == (4, "")
    assert not (tmp_path / "config.toml").exists()


def test_token_file_is_used(full: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("u9.file\n")
    call(full.url, "--token-file", str(tmp_path / "secret"), "ps")
    assert full.requests[0].headers["authorization"] == "Bearer u9.file"


def test_retry_is_noted_once(full: FakeServer) -> None:
    full.on("GET", "/jobs", sequence(Answer(503), Answer(503), Answer(200, {"items": []})))
    result = call(full.url, "ps")
    assert result.exit_code == 0
    assert result.stderr.count("trying again") == 1


def test_help_shows_examples_before_options(server: FakeServer) -> None:
    for args in COMMANDS.values():
        groups = ("node", "gpu", "tenant", "user", "member", "token", "secret", "rate", "exempt", "cycles", "reserve",
                  "endpoint", "task", "notify")  # fmt: skip
        command = args[:2] if args[0] in groups else args[:1]
        text = call(server.url, *command, "--help").stdout
        assert 0 < text.index(f"  gpusched {' '.join(command)}") < text.index("Options:"), command


def test_pipe_gets_no_colour_and_full_sentences(full: FakeServer) -> None:
    process = start(full.url, "ps", "-o", "wide", FORCE_COLOR="", COLUMNS="40")
    out, err = process.communicate(timeout=20)
    assert err == b""
    assert b"\x1b" not in out
    assert b"waits for 4 GPUs: 0 of 8 suitable are free\n" in out


def test_terminal_gets_colour(full: FakeServer) -> None:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "GPUSCHED_URL": full.url}
    environ.pop("NO_COLOR", None)
    subprocess.run([sys.executable, "-m", "gpusched.cli.main", "ps"], cwd=ROOT, env=environ, stdout=theirs, check=True)
    os.close(theirs)
    assert b"\x1b[33mpending" in os.read(ours, 65536)
    os.close(ours)


@pytest.mark.parametrize(
    ("is_terminal", "env", "expected"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_no_color_disables_colour(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, env: dict[str, str], expected: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal, raising=False)
    assert has_colour() is expected


def test_node_show_prints_gpu_readings_and_leaves_unknown_ones_empty(full: FakeServer) -> None:
    reading = {"temperature_celsius": 91, "throttled_by": ["hardware_thermal"], "sm_clock_mhz": 210}
    devices = [{"id": 1, "index": 0, "memory_mb": 81920, "reading": reading}, {"id": 2, "index": 1}]
    full.on("GET", "/nodes/n1", Answer(200, {"name": "n1", "devices": devices}))
    header, first, second = call(full.url, "node", "show", "n1", "-o", "csv").stdout.splitlines()
    message = dict(zip(header.split(","), first.split(","), strict=True))
    assert (message["heat"], message["throttled by"], message["clock"]) == ("91 C", "hardware_thermal", "210 MHz")
    assert (message["power"], message["ecc"], message["memory"]) == ("", "", "")
    assert set(second.split(",")[3:]) == {""}


def test_csv_has_no_formulas_and_no_escape_sequences(server: FakeServer) -> None:
    """Names come from other users: a spreadsheet would evaluate them, a terminal interpret them."""
    evil: dict[str, Any] = {"user": "-1+1", "name": '=HYPERLINK("http://evil","x")\x1b[31m', "priority": -5}
    server.on("GET", "/jobs", Answer(200, {"items": [job(**evil)], "next_cursor": None}))
    [row] = csv.DictReader(io.StringIO(call(server.url, "ps", "-a", "-o", "csv").stdout))
    assert (row["name"], row["user"]) == ('\'=HYPERLINK("http://evil","x")\\x1b[31m', "'-1+1")
    assert row["priority"] == "-5"


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_endpoint_create_sends_the_program_without_its_separator(full: FakeServer, separator: list[str]) -> None:
    result = call(full.url, "endpoint", "create", "embed", *separator, "python", "-u", "serve.py")
    assert result.exit_code == 0, result.stderr
    template = json.loads(full.requests[-1].body)["template"]
    assert (template["command"], template["args"]) == (["python"], ["-u", "serve.py"])


def test_endpoint_create_without_a_program_is_wrong_usage(full: FakeServer) -> None:
    assert call(full.url, "endpoint", "create", "embed", "--").exit_code == 2
    assert full.requests == []


def test_endpoint_set_sends_only_the_named_options(full: FakeServer) -> None:
    result = call(full.url, "endpoint", "set", "--max", "4", "--cost", "0", "embed")
    assert result.exit_code == 0, result.stderr
    assert (full.requests[-1].method, json.loads(full.requests[-1].body)) == ("PATCH", {"max_replicas": 4, "cost": 0})
    sent = len(full.requests)
    assert call(full.url, "endpoint", "set", "embed").exit_code == 2
    assert len(full.requests) == sent
