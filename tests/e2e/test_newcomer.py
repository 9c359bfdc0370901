"""The first steps of a newcomer: start, submit, look, stop. Defaults only, by the commands that they type."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gpusched.agent.processes import descendants
from tests.processes import is_alive
from tests.system import prepared
from tests.system.stack import ROOT, Stack
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.long]
# The port "discard", where nothing listens.
NO_PROXY_HERE = "http://127.0.0.1:9"


class WithAgent(Stack):
    """As `make up` starts it, from nothing: with an agent for this machine, and with the environment of a company: a
    proxy that does not lead back to this machine, and a time zone."""

    no_agent = ()
    is_prepared = False

    def environment(self) -> dict[str, str]:
        hidden = ("no_proxy", "NO_PROXY")
        own = {name: value for name, value in super().environment().items() if name not in hidden}
        return {**own, "http_proxy": NO_PROXY_HERE, "https_proxy": NO_PROXY_HERE, "TZ": "Asia/Kathmandu"}


@pytest.fixture(scope="module")
def up() -> Iterator[Stack]:
    with WithAgent() as running:
        yield running


def command(stack: Stack, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The `gpusched` command as it is typed, with the token file that `up` names."""
    environment = {**stack.environment(), "GPUSCHED_URL": stack.url,
                   "GPUSCHED_TOKEN_FILE": str(stack.data_dir / "tokens" / "admin")}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "gpusched.cli.main", *words], env=environment, cwd=ROOT, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def test_job_starts_without_any_admin_call(up: Stack) -> None:
    """A01: fresh install, defaults only; the agent of this machine joins by itself."""
    done = command(up, "run", "--gpus", "0", "--", "sh", "-c", "echo from the job; echo aside >&2; exit 7", code=7)
    assert done.stdout == "from the job\naside\n"


def test_job_has_the_time_zone_of_the_machine(up: Stack) -> None:
    assert command(up, "run", "--gpus", "0", "--", "date", "+%z").stdout == "+0545\n"


def test_supervisors_ask_the_server_without_a_proxy(up: Stack) -> None:
    environment = {**up.environment(), "GPUSCHED_HTTP_PORT": str(up.port)}
    subprocess.run([sys.executable, "manage.py", "ready"], cwd=ROOT, env=environment, timeout=60, check=True)


def test_submit_ps_why_logs_cancel(up: Stack) -> None:
    name = command(up, "submit", "--gpus", "0", "--", "sleep", "600").stdout.split()[-1]
    wait_for(lambda: "running" in command(up, "ps", "-o", "json").stdout, 20, "it to run")
    assert "running" in command(up, "why", name).stdout
    command(up, "cancel", name)
    wait_for(lambda: "cancelled" in command(up, "ps", "--all").stdout, 20, "it to be cancelled")


def test_impossible_request_is_refused_with_the_largest_possible(up: Stack) -> None:
    """A04, A58: exit code 6, the sentence on stderr, nothing on stdout."""
    done = command(up, "submit", "--gpus", "64", "--", "true", code=6)
    assert done.stdout == ""
    assert "the largest possible is" in done.stderr


def test_second_start_in_the_same_directory_is_refused(up: Stack) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for data_dir, words in ((up.data_dir, "is already running"), (up.directory / "new", f"port {port}")):
            done = subprocess.run(
                [sys.executable, "manage.py", "up", "--port", str(port)], cwd=ROOT, capture_output=True, text=True,
                env={**up.environment(), "GPUSCHED_DATA_DIR": str(data_dir)}, timeout=60,
            )  # fmt: skip
            assert done.returncode == 1
            assert words in done.stderr and "Traceback" not in done.stderr


def stopped_after(line: str, data_dir: Path) -> str:
    """Start from nothing, press Ctrl-C once `up` has printed that line, and return all that it printed."""
    process = subprocess.Popen(
        [sys.executable, "manage.py", "up", "--port", "0"], cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        env={**prepared.outside(), "GPUSCHED_DATA_DIR": str(data_dir)},
    )  # fmt: skip
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1].strip() != line:
        lines.append(process.stdout.readline())
        assert lines[-1], "".join(lines)
    os.killpg(process.pid, signal.SIGINT)
    rest = process.communicate(timeout=120)[0]
    assert process.returncode == 0, rest
    return "".join(lines) + rest


def test_first_start_that_is_stopped_goes_no_further(tmp_path: Path) -> None:
    printed = stopped_after("starting the database", tmp_path / "data")
    assert printed.split("\n") == ["starting the database", "stopping…", "stopped", ""]


def test_first_start_that_is_stopped_shows_the_password_that_it_has_set(tmp_path: Path) -> None:
    printed = stopped_after("starting web server, workers and agent", tmp_path / "data")
    assert "log in as admin with the password " in printed


def live(pids: list[int]) -> list[int]:
    return [pid for pid in pids if is_alive(pid)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_remains_after_the_supervisor_ends(up: Stack, number: int) -> None:
    """Ctrl-C stops everything; kill -9 of the parent leaves no child behind, neither a server's nor a job's."""
    job = up.client().submit(["sleep", "600"], gpus=0)
    wait_for(lambda: up.client().get(job.id).state == "running", 30, "the job to run")
    assert up.client().simulate(["true"], gpus=0).starts_now
    assert up.up is not None
    assert up.pids("scheduling.whatif.process")
    everything = [up.up.pid, *descendants(up.up.pid)]
    assert len(everything) > 5
    os.kill(up.up.pid, number)
    up.up.wait(30)
    wait_for(lambda: not live(everything), 15, "every process to end")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{up.url}/health", timeout=2)
    up.start()
    # Stopped with its node's agent through no fault of its own, it goes back to the queue and starts again.
    wait_for(lambda: up.client().get(job.id).attempt == 2, 60, "the job to start again")
    up.client().cancel(job.id)
