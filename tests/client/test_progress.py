"""Progress bars of long operations: only on a terminal, never in the data, and not with NO_COLOR."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from gpusched.cli.terminal.progress import MIN_BYTES, bar
from tests.client.commandline import ROOT, call
from tests.client.fakeserver import Answer, FakeServer, Request, job

PIECE = 1 << 20


def piece_of_a_long_log(request: Request) -> Answer:
    size, offset = MIN_BYTES + PIECE, int(request.query.get("offset", 0))
    headers = {"X-Log-Attempt": "1", "X-Log-Offset": str(offset), "X-Log-Next-Offset": str(offset + PIECE),
               "X-Log-Size": str(size), "X-Log-Complete": "true"}  # fmt: skip
    return Answer(200, b"x" * PIECE, headers)


def at_a_terminal(url: str, out: Path, *arguments: str, **env: str) -> bytes:
    """Run the command with stderr on a terminal and stdout in a file; return the terminal's output."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "GPUSCHED_URL": url, **env}
    if "NO_COLOR" not in env:
        environ.pop("NO_COLOR", None)
    with out.open("wb") as file:
        command = [sys.executable, "-m", "gpusched.cli.main", *arguments]
        subprocess.run(command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=file, stderr=theirs, check=True)
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        return os.read(ours, 1 << 20)
    except OSError:  # there was nothing
        return b""
    finally:
        os.close(ours)


def test_long_log_into_a_file_has_a_bar_on_stderr(server: FakeServer, tmp_path: Path) -> None:
    """A58"""
    server.on("GET", "/jobs/42/logs", piece_of_a_long_log)
    out = tmp_path / "log"
    assert b"log of job 42" in at_a_terminal(server.url, out, "logs", "42")
    assert out.stat().st_size == MIN_BYTES + PIECE
    assert at_a_terminal(server.url, out, "logs", "42", NO_COLOR="1") == b""
    assert out.stat().st_size == MIN_BYTES + PIECE


def test_wait_for_many_jobs_has_a_bar_and_for_few_none(server: FakeServer, tmp_path: Path) -> None:
    for number in range(1, 5):
        server.on("GET", f"/jobs/{number}", Answer(200, job(number, state="completed", exit_code=0)))
    seen = at_a_terminal(server.url, tmp_path / "out", "wait", "1", "2", "3", "4")
    assert b"4 in total" in seen
    assert b"\x1b[?25l" not in seen  # the cursor is not hidden: the shell would have none after Ctrl-Z or SIGTERM
    assert b"in total" not in at_a_terminal(server.url, tmp_path / "out", "wait", "1", "2")


def test_pipe_has_no_bar(server: FakeServer) -> None:
    server.on("GET", "/jobs/42/logs", piece_of_a_long_log)
    result = call(server.url, "logs", "42")
    assert (result.exit_code, result.stderr, len(result.stdout)) == (0, "", MIN_BYTES + PIECE)


@pytest.mark.parametrize(("is_terminal", "term"), [(False, "xterm"), (True, "dumb")])
def test_bar_is_not_drawn_without_a_capable_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool, term: str
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    with bar("x", 10, minimum=1) as is_at:
        is_at(5)
    assert capsys.readouterr().err == ""
