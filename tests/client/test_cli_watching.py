"""Commands that run over time: `top`, `--watch`, `wait`; and shell completion."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpusched.cli.cluster import top
from gpusched.cli.terminal import screen
from gpusched.client import Client
from gpusched.client.transport import polling
from tests.client.answers import QUEUED
from tests.client.commandline import ROOT, call, start
from tests.client.fakeserver import Answer, FakeServer, Request, job, sequence
from tests.waiting import wait_for


class Terminal:
    """A command on a terminal of 80 x 24."""

    def __init__(self, url: str, *args: str) -> None:
        self.ours, theirs = pty.openpty()
        environ = {**os.environ, "TERM": "xterm", "GPUSCHED_URL": url, "LINES": "24", "COLUMNS": "80", "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpusched.cli.main", *args], cwd=ROOT, env=environ, stdin=theirs, stdout=theirs,
            stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            process_group=0,  # SIGTSTP does not stop a group without a parent in its session, as the tests' may be
        )  # fmt: skip
        os.close(theirs)
        self.seen = b""

    def until(self, text: bytes) -> bytes:
        deadline = time.monotonic() + 20
        while text not in self.seen:
            assert select.select([self.ours], [], [], deadline - time.monotonic())[0], self.seen
            self.seen += os.read(self.ours, 65536)
        return self.seen

    def end(self) -> tuple[int, bytes]:
        _, err = self.process.communicate(timeout=20)
        os.close(self.ours)
        return self.process.returncode, err


def frames_of(output: bytes) -> list[list[str]]:
    """Return the drawn frames, line by line, without escape sequences."""
    return [
        frame.replace("\x1b[K", "").replace("\x1b[J", "").split("\r\n") for frame in output.decode().split("\x1b[H")[1:]
    ]


def crowd(server: FakeServer) -> None:
    """More than fits on a screen."""
    devices = [
        {"id": n, "index": n, "model": "NVIDIA H100 80GB HBM3", "health": "ok", "held": "free"} for n in range(8)
    ]
    nodes = [{"name": f"node-with-a-long-name-{n}", "state": "online", "devices": devices} for n in range(40)]
    jobs = [job(n, "running", nodes=[f"node-{m}" for m in range(20)], name="x" * 90) for n in range(1, 41)]
    queue = [{"job_id": n, "name": "y" * 90, "reason": {"code": "c", "sentence": "z" * 90}} for n in range(50, 90)]
    for path, items in (("/nodes", nodes), ("/jobs", jobs), ("/queue", queue)):
        server.on("GET", path, Answer(200, {"items": items}))


@pytest.mark.parametrize(("action", "code"), [(b"q", 0), (b"jQk", 0), (signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_top_fits_a_small_terminal_and_restores_it(full: FakeServer, action: bytes | signal.Signals, code: int) -> None:
    crowd(full)
    terminal = Terminal(full.url, "top")
    terminal.until(b"\x1b[J")
    if isinstance(action, bytes):
        os.write(terminal.ours, action)
    else:
        terminal.process.send_signal(action)
    output = terminal.until(b"\x1b[?1049l")
    assert terminal.end() == (code, b"")
    assert output.index(b"\x1b[?1049h") < output.index(b"node-with-a-long-nam")
    lines = frames_of(output.partition(b"\x1b[?25h")[0])[0]
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert text.count(" more") == 3
    assert "RUNNING" in text and "WAITING" in text and "........" in text


@pytest.mark.parametrize(("kind", "is_drawn"), [("dumb", False), ("xterm", True)])
def test_only_a_terminal_that_can_draw_gets_a_screen(
    monkeypatch: pytest.MonkeyPatch, kind: str, is_drawn: bool
) -> None:
    """Others, such as a shell in Emacs, would show escape sequences, every two seconds."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", kind)
    assert screen.is_terminal() is is_drawn


def test_ctrl_z_gives_the_terminal_back_until_the_command_continues(full: FakeServer) -> None:
    terminal = Terminal(full.url, "top")
    before = termios.tcgetattr(terminal.ours)
    terminal.until(b"\x1b[J")
    during = termios.tcgetattr(terminal.ours)
    terminal.process.send_signal(signal.SIGTSTP)
    terminal.until(b"\x1b[?25h\x1b[?1049l")
    wait_for(lambda: status(terminal.process.pid) == "T", 10, "the command to stop")
    assert termios.tcgetattr(terminal.ours) == before != during
    terminal.seen = b""
    terminal.process.send_signal(signal.SIGCONT)
    terminal.until(b"\x1b[?1049h\x1b[?25l")
    terminal.until(b"\x1b[J")
    assert termios.tcgetattr(terminal.ours) == during
    os.write(terminal.ours, b"q")
    terminal.until(b"\x1b[?1049l")
    assert terminal.end() == (0, b"")


def status(pid: int) -> str:
    """Return R, S or T for a process that runs, sleeps or is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_list_uses_the_lines_that_others_leave_free() -> None:
    assert top._heights(24, (2, 3, 4)) == [3, 4, 5]
    assert top._heights(24, (1, 100, 100)) == [2, 9, 9]
    assert sum(top._heights(24, (100, 100, 100))) == 20
    assert top._heights(None, (100, 2, 3)) == [101, 3, 4]


def test_top_does_not_count_the_jobs_that_it_has_not_read(full: FakeServer) -> None:
    """Of a queue of thousands it reads 200."""

    def queue(request: Request) -> Answer:
        return Answer(200, {"items": [QUEUED] * min(12_000, int(request.query["limit"])), "next_cursor": "more"})

    full.on("GET", "/queue", queue)
    with Client(full.url) as client:
        screen, pipe = top.frame(client, 80, 24), top.frame(client, None, None)
    assert re.fullmatch("… more than 1[0-9]{2} more", screen[-1])
    assert (pipe[-1], sum(line == pipe[-2] for line in pipe)) == ("… more", 200)


def test_top_in_a_pipe_prints_everything_once(full: FakeServer) -> None:
    crowd(full)
    with Client(full.url) as client:
        assert max(map(len, top.frame(client, 80, 24))) <= 80
    result = call(full.url, "top")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "more" not in result.stdout
    assert "x" * 20 in result.stdout and "z" * 90 in result.stdout


def test_top_distinguishes_idle_busy_free_and_unavailable_gpus(full: FakeServer) -> None:
    def device(allocation: str, health: str = "ok", percent: int | None = None) -> Mapping[str, object]:
        return {"id": 1, "held": allocation, "health": health, "reading": {"utilisation_percent": percent}}

    devices = [device("exclusive", percent=97), device("exclusive", percent=0), device("free"), device("free", "dirty")]
    full.on("GET", "/nodes", Answer(200, {"items": [{"name": "n1", "state": "online", "devices": devices}]}))
    assert "n1    online  #=.!  48 %" in call(full.url, "top").stdout


@pytest.mark.parametrize("name", ["ps", "nodes", "queue"])
def test_watch_redraws_on_a_terminal(full: FakeServer, name: str) -> None:
    crowd(full)
    terminal = Terminal(full.url, name, "--watch")
    terminal.until(b"\x1b[J")
    request_count = len(full.requests)
    os.write(terminal.ours, b" ")
    wait_for(lambda: len(full.requests) > request_count, 10, "a request")
    os.write(terminal.ours, b"q")
    terminal.until(b"\x1b[?1049l")
    assert terminal.end() == (0, b"")
    assert all(len(line) <= 80 for line in frames_of(terminal.seen)[0])
    assert len(frames_of(terminal.seen)[0]) == 24


def test_watch_into_a_pipe_continues_until_ctrl_c(full: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", pause)
    result = call(full.url, "ps", "--watch", "-o", "name")
    assert (result.exit_code, result.stdout) == (0, "42\n43\n" * 3)


def test_failure_while_watching_exits_with_its_code(full: FakeServer) -> None:
    """A58: and the terminal is as it was."""
    full.on("GET", "/jobs", sequence(Answer(200, {"items": []}), Answer(403, {"detail": "the token has expired"})))
    terminal = Terminal(full.url, "ps", "--watch")
    terminal.until(b"\x1b[J")
    os.write(terminal.ours, b" ")
    terminal.until(b"\x1b[?1049l")
    assert terminal.end() == (4, b"error: the token has expired\n")


def test_wait_exits_0_or_1_and_7_on_a_timeout(full: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A58"""
    monkeypatch.setattr(polling, "QUICK_SECONDS", 0.001)
    full.on("GET", "/jobs/42", sequence(Answer(200, job(state="running")), Answer(200, job(state="completed"))))
    assert call(full.url, "wait", "42").exit_code == 0
    full.on("GET", "/jobs/43", Answer(200, job(43, "failed", exit_code=7)))
    waited = call(full.url, "wait", "42", "43", "-o", "name")
    assert (waited.exit_code, waited.stdout) == (1, "42\n43\n")
    full.on("GET", "/jobs/42", Answer(200, job(state="running")))
    late = call(full.url, "wait", "--timeout", "0.02", "42")
    assert (late.exit_code, late.stdout) == (7, "")
    assert "job 42 is still running, and the timeout has passed" in late.stderr


def test_wait_has_one_timeout_for_all_and_prints_ended_jobs(full: FakeServer) -> None:
    """A58"""
    for job_id in (1, 2, 3, 4):
        full.on("GET", f"/jobs/{job_id}", Answer(200, job(job_id, "completed" if job_id == 3 else "running")))
    began = time.monotonic()
    late = call(full.url, "wait", "--timeout", "1", "-o", "name", "1", "2", "3", "4")
    assert (late.exit_code, late.stdout) == (7, "3\n")
    assert time.monotonic() - began >= 1
    assert sum(request_count.path == "/api/v1/jobs/1" for request_count in full.requests) > 1
    # No time is left for these, and they are looked at once.
    assert [
        sum(request_count.path == f"/api/v1/jobs/{other}" for request_count in full.requests) for other in (2, 3, 4)
    ] == [1, 1, 1]


def test_history_of_a_job_lists_its_events(full: FakeServer) -> None:
    assert call(full.url, "history", "42").stdout.splitlines()[1].split() == [
        "2030-01-01T10:00:00Z", "submitted", "0", "ada"]  # fmt: skip


def test_shell_completes_commands_and_flags() -> None:
    def completed(arguments: str, position: int) -> list[str]:
        env = {
            **os.environ,
            "_GPUSCHED_COMPLETE": "complete_bash",
            "COMP_WORDS": arguments,
            "COMP_CWORD": str(position),
        }
        code = "from gpusched.cli.main import main; main()"
        finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout.split()

    assert {"ps", "policy"} <= set(completed("gpusched p", 1))
    assert "--watch" in completed("gpusched ps --w", 2)


def test_simulate_runs_the_simulator_with_its_exit_code(server: FakeServer, tmp_path: object) -> None:
    trace = f"{tmp_path}/none.csv"
    process = start(server.url, "simulate", trace, "--nodes", "2")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, b"")
    assert b"none.csv" in err
    assert server.requests == []


def test_simulate_needs_only_a_trace_and_lists_its_options(tmp_path: Path) -> None:
    """Under its own name, from any folder, also one with a file that is named like a part of the server."""
    (tmp_path / "scheduling.py").write_text("raise SystemExit('not this one')")
    (tmp_path / "trace.csv").write_text("job_id,submitted_at,gpus,run_seconds,tenant\na,0,8,3600,x\nb,0,8,3600,x\n")

    def simulated(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "gpusched.cli.main", "simulate", *arguments]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)

    finished = simulated("trace.csv")
    assert (finished.returncode, "trace.csv on 24 GPUs" in finished.stdout) == (0, True), finished
    assert "without --nodes: on 3 nodes of 8 GPUs" in finished.stderr
    help_text = simulated("--help")
    assert (help_text.returncode, help_text.stdout.startswith("usage: gpusched simulate ")) == (0, True), help_text
    assert "--policy" in help_text.stdout and "manage.py" not in help_text.stdout
    assert simulated().returncode == simulated("trace.csv", "--nonsense").returncode == 2
