"""`gpusched run` as a real process: its output, its exit code, and its handling of signals."""

import os
import pty
import signal
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from gpusched.cli.jobs.signal_relay import ENDING, PASSED_ON, catch_signals
from tests.client.commandline import call, start
from tests.client.fakeserver import Answer, FakeServer, GrowingLog, Request, acted, job, problem, sequence
from tests.waiting import wait_for

pytestmark = pytest.mark.long


def ended(**fields: object) -> Answer:
    return Answer(200, job(**{"state": "completed", "attempt": 1, "exit_code": 0, **fields}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (ended(), 0),
        (ended(state="failed", exit_code=7), 7),
        (ended(state="failed", exit_code=None, signal=9), 137),
        (ended(state="failed", exit_code=None), 1),
        (ended(state="cancelled", exit_code=None), 1),
    ],
)
def test_run_prints_the_output_and_exits_as_the_job(server: FakeServer, end: Answer, code: int) -> None:
    text = "µ = 3\n".encode()
    server.on("POST", "/jobs", acted())
    server.on("GET", "/jobs/42", sequence(Answer(200, job()), Answer(200, job(state="running", nodes=["n1"])), end))
    server.on("GET", "/jobs/42/logs", GrowingLog(text[:1], text[1:]))
    result = call(server.url, "run", "--gpus", "1", "--", "true")
    assert (result.exit_code, result.stdout) == (code, text.decode())
    assert "job 42 submitted" in result.stderr
    assert "job 42 is pending: waits for 4 GPUs" in result.stderr
    assert "job 42 is running on n1" in result.stderr


class Interruptible:
    """A job that runs until it is cancelled, and then ends with `end`; with `is_stubborn`, longer."""

    def __init__(self, server: FakeServer, end: Mapping[str, Any] | None = None, *, is_stubborn: bool = False) -> None:
        self.state, self.is_stubborn, self.end, self.how = "running", is_stubborn, dict(end or {}), dict[str, Any]()
        self.log = GrowingLog(b"working\n", *[b""] * 10_000)
        server.on("POST", "/jobs", acted())
        server.on("GET", "/jobs/42", lambda _: Answer(200, job(**{"state": self.state, "attempt": 1, **self.how})))
        server.on("GET", "/jobs/42/logs", self.log)
        server.on("POST", "/jobs/42/cancel", self.cancel)

    def cancel(self, _: Request) -> Answer:
        self.state = "stopping"
        if not self.is_stubborn:
            self.log.pieces[:] = [b"saved\n"]
            self.state, self.how = "cancelled", self.end
        return acted("cancelled", state=self.state)


def interrupt(
    process: subprocess.Popen[bytes], server: FakeServer, method: str, path: str, number: int = signal.SIGINT
) -> None:
    """Send Ctrl-C or another signal once the server has received that request; of the log the third, which shows that
    the answers before were read."""
    count = 3 if path.endswith("/logs") else 1
    wait_for(lambda: sum((a.method, a.path) == (method, f"/api/v1{path}") for a in server.requests) >= count, 20, path)
    process.send_signal(number)


def test_ctrl_c_cancels_and_prints_the_remaining_output(server: FakeServer) -> None:
    Interruptible(server)
    process = start(server.url, "run", "--", "true")
    interrupt(process, server, "GET", "/jobs/42/logs")
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, b"working\nsaved\n")
    assert "cancelling job 42" in err.decode()
    assert "Traceback" not in err.decode()


@pytest.mark.parametrize(
    ("number", "end", "code"),
    [
        (signal.SIGTERM, {}, 143),
        (signal.SIGHUP, {}, 129),
        (signal.SIGINT, {"exit_code": 3}, 3),
        (signal.SIGINT, {"exit_code": 0}, 0),
        (signal.SIGINT, {"signal": 15}, 143),
        (signal.SIGTERM, {"signal": 9}, 137),
    ],
)
def test_ending_signal_cancels_the_job_and_exits_with_its_code(
    server: FakeServer, number: int, end: dict[str, Any], code: int
) -> None:
    Interruptible(server, end)
    process = start(server.url, "run", "--", "true")
    interrupt(process, server, "GET", "/jobs/42/logs", number)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (code, b"working\nsaved\n")
    assert sum(request.path.endswith("/cancel") for request in server.requests) == 1


@pytest.mark.parametrize("is_noisy", [True, False])
def test_closing_the_terminal_cancels_the_job(server: FakeServer, is_noisy: bool) -> None:
    """Neither its output nor a note can be written from then on, and the server is busy for a moment."""
    it = Interruptible(server)
    busy = Answer(503, problem(503, "starting", "the server starts").body, {"Retry-After": "1"})
    failures = [busy]
    server.on("POST", "/jobs/42/cancel", lambda request: failures.pop() if failures else it.cancel(request))
    if is_noisy:
        it.log.pieces[:] = [b"working\n"] * 10_000
    ours, theirs = pty.openpty()
    process = start(server.url, "run", "--", "true", terminal=theirs)
    os.close(theirs)
    output = b""
    while b"working" not in output:
        output += os.read(ours, 4096)
    os.close(ours)
    process.wait(20)
    assert it.state == "cancelled"


def test_closing_the_pipe_notes_that_the_job_continues(server: FakeServer) -> None:
    Interruptible(server).log.pieces[:] = [b"working\n"] * 10_000
    with start(server.url, "run", "--", "true") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"working\n"
        process.stdout.close()
        notes = process.stderr.read().decode()
    assert process.returncode == 1
    assert "job 42 continues; see: gpusched logs -f 42, or end it: gpusched cancel 42" in notes


def test_run_notes_that_the_job_continues_when_the_token_is_revoked(server: FakeServer) -> None:
    """The job keeps its GPUs, so its submitter must learn of it."""
    server.on("POST", "/jobs", acted())
    server.on("GET", "/jobs/42", Answer(200, job(state="running", attempt=1)))
    server.on("GET", "/jobs/42/logs", problem(401, "not_authenticated", "this token is unknown, expired or revoked"))
    result = call(server.url, "run", "--", "true")
    assert result.exit_code == 4
    assert "job 42 continues; see: gpusched logs -f 42, or end it: gpusched cancel 42" in result.stderr
    assert "error: this token is unknown, expired or revoked" in result.stderr


def test_run_that_is_refused_at_the_submit_tells_of_no_job(server: FakeServer) -> None:
    server.on("POST", "/jobs", problem(403, "not_permitted", "this needs the role member in the tenant"))
    result = call(server.url, "run", "--", "true")
    assert "continues" not in result.stderr


def test_signal_during_the_submit_leaves_no_job_behind(server: FakeServer) -> None:
    """The answer to the submit is lost twice, and the signal comes before it is had."""
    Interruptible(server)
    server.on("POST", "/jobs", sequence(Answer(0), Answer(0), acted()))
    process = start(server.url, "run", "--", "true")
    interrupt(process, server, "POST", "/jobs")
    _, err = process.communicate(timeout=20)
    keys = {request.headers["idempotency-key"] for request in server.requests if request.path == "/api/v1/jobs"}
    assert (process.returncode, len(keys)) == (130, 1)
    assert sum(request.path.endswith("/42/cancel") for request in server.requests) == 1
    assert "cancelled as soon as its id is known" in err.decode()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT])
def test_other_signals_are_passed_on_and_run_continues(server: FakeServer, number: signal.Signals) -> None:
    it = Interruptible(server, {"exit_code": 0})

    def signalled(_: Request) -> Answer:
        it.state, it.log.pieces[:] = "completed", [b"saved\n"]
        return acted("running", state="running")

    server.on("POST", "/jobs/42/signal", signalled)
    process = start(server.url, "run", "--", "true")
    interrupt(process, server, "GET", "/jobs/42/logs", number)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"working\nsaved\n")
    [sent] = [request.json for request in server.requests if request.path.endswith("/signal")]
    assert sent == {"signal": number.name.removeprefix("SIG")}


def test_signal_that_cannot_be_passed_on_is_noted_and_run_continues(server: FakeServer) -> None:
    Interruptible(server)
    server.on("POST", "/jobs/42/signal", problem(409, "wrong_state", "only a running job has processes to signal"))
    process = start(server.url, "run", "--", "true")
    interrupt(process, server, "GET", "/jobs/42/logs", signal.SIGUSR1)
    interrupt(process, server, "POST", "/jobs/42/signal")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "USR1 could not be passed on: only a running job has processes to signal" in err.decode()


@pytest.mark.parametrize(
    ("status", "sentence"), [(503, "the server starts"), (429, "too many requests"), (500, "the server failed")]
)
def test_lost_cancel_is_sent_again(server: FakeServer, status: int, sentence: str) -> None:
    """No refusal of the moment leaves the job running after Ctrl-C."""
    it = Interruptible(server)
    process = start(server.url, "run", "--", "true")
    failures = [Answer(status, problem(status, "x", sentence).body, {"Retry-After": "100"})]
    server.on("POST", "/jobs/42/cancel", lambda request: failures.pop() if failures else it.cancel(request))
    interrupt(process, server, "GET", "/jobs/42/logs")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"working\nsaved\n")
    assert f"not cancelled yet: {sentence}" in err.decode()


def test_second_ctrl_c_exits_at_once(server: FakeServer) -> None:
    Interruptible(server, is_stubborn=True)
    process = start(server.url, "run", "--", "true")
    interrupt(process, server, "GET", "/jobs/42/logs")
    interrupt(process, server, "POST", "/jobs/42/cancel")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "before the end of job 42" in err.decode()


def test_ctrl_c_at_the_end_of_the_job_is_not_an_error(server: FakeServer) -> None:
    it = Interruptible(server)

    def too_late(_: Request) -> Answer:
        it.cancel(_)
        return problem(409, "wrong_state", "job 42 has ended")

    server.on("POST", "/jobs/42/cancel", too_late)
    process = start(server.url, "run", "--", "true")
    interrupt(process, server, "GET", "/jobs/42/logs")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "had ended already" in err.decode()


def test_ignored_signal_stays_ignored() -> None:
    """As under nohup: the terminal may close, and the job continues."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catch_signals() as received:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert (received.ending, received.waiting.empty()) == (None, True)
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_signal_handlers_are_restored() -> None:
    numbers = ENDING | PASSED_ON
    previous = {number: signal.getsignal(number) for number in numbers}
    with catch_signals():
        assert signal.getsignal(signal.SIGUSR1) != previous[signal.SIGUSR1]
    assert {number: signal.getsignal(number) for number in numbers} == previous
