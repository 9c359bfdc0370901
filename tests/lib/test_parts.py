"""Forks of a supervisor are like new processes: they share its memory, and nothing else."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import is_alive
from tests.system.stack import ROOT
from tests.waiting import wait_for

# A supervisor with a lock, a connection and handlers of its own. It forks what `facts` describes, and obeys stdin.
SUPERVISOR = """
import fcntl, random, signal, socket, subprocess, sys
from pathlib import Path
from gpusched.lib.process.parts import Fork
place = Path(sys.argv[1])
lock = (place / "lock").open("w")
fcntl.flock(lock, fcntl.LOCK_EX)
private, (shared, other) = socket.socketpair(), socket.socketpair()
signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGINT, lambda *_: None)
random.seed(1)
sys.stdout.write("of the supervisor\\n")
def fork(name):
    with (place / name).open("wb") as output, (place / f"{name}.err").open("wb") as errors:
        return Fork([sys.executable, str(place / "part.py"), name], (shared.fileno(),), output, errors)
def wait(one, seconds):
    try:
        return one.wait(seconds)
    except subprocess.TimeoutExpired:
        return "timeout"
forks = [fork("first"), fork("second")]
print(shared.fileno(), *(one.pid for one in forks), file=sys.stderr, flush=True)
for line in sys.stdin:
    print(eval(line), file=sys.stderr, flush=True)
"""
PART = """
import json, os, random, signal, sys, time
def target(file):
    try:
        return os.readlink(f"/proc/self/fd/{file}")
    except FileNotFoundError:  # the listing itself
        return ""
facts = {
    "argv": sys.argv, "name": __name__, "group": os.getpgid(0), "session": os.getsid(0), "parent": os.getppid(),
    "files": {file: target(file) for file in os.listdir("/proc/self/fd")}, "random": random.random(),
    "directory": os.getcwd(), "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "handlers": [str(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGINT)],
}
print(json.dumps(facts))
sys.stderr.write("problem\\n")
time.sleep(300)
"""


class Supervisor:
    def __init__(self, place: Path, part: str = PART) -> None:
        (place / "part.py").write_text(part)
        self.place = place
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, str(place)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        self.shared, *self.forks = map(int, self.process.stderr.readline().split())

    def answer(self, expression: str) -> str:
        assert self.process.stdin is not None and self.process.stderr is not None
        print(expression, file=self.process.stdin, flush=True)
        return self.process.stderr.readline().strip()

    def facts(self, name: str) -> dict[str, object]:
        wait_for(lambda: "\n" in (self.place / f"{name}.err").read_text(), 30, "the fork")
        facts: dict[str, object] = json.loads((self.place / name).read_text())
        return facts

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def supervisor(tmp_path: Path):
    running = Supervisor(tmp_path)
    yield running
    running.close()


def test_fork_runs_its_command_as_a_new_process_does(supervisor: Supervisor) -> None:
    facts, [pid, _] = supervisor.facts("first"), supervisor.forks
    command = [str(supervisor.place / "part.py"), "first"]
    assert (facts["argv"], facts["name"], facts["directory"]) == (command, "__main__", str(ROOT))
    assert (facts["parent"], facts["group"], facts["session"]) == (supervisor.process.pid, pid, pid)
    title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()
    assert title == " ".join([sys.executable, *command])
    assert (supervisor.place / "first.err").read_text() == "problem\n"
    assert (supervisor.place / "first").read_text().startswith("{")  # no output of the supervisor
    assert facts["random"] != supervisor.facts("second")["random"]


def test_fork_has_only_its_own_files(supervisor: Supervisor) -> None:
    """No lock and no connection of the supervisor: it would outlive the supervisor in the fork."""
    files = supervisor.facts("first")["files"]
    assert isinstance(files, dict)
    assert files["0"] == "/dev/null"
    assert (files["1"], files["2"]) == (str(supervisor.place / "first"), str(supervisor.place / "first.err"))
    sockets = {int(file) for file, target in files.items() if target.startswith("socket:")}
    assert sockets == {supervisor.shared}
    assert not any(target.endswith("lock") for target in files.values())


def test_fork_has_no_signal_handlers_of_its_supervisor(supervisor: Supervisor) -> None:
    facts = supervisor.facts("first")
    assert facts["blocked"] == 0
    assert facts["handlers"] == [str(signal.SIG_DFL), str(signal.default_int_handler)]
    assert supervisor.answer("forks[0].poll(), wait(forks[0], 0.01)") == "(None, 'timeout')"
    assert supervisor.answer("forks[0].terminate()") == "None"
    assert supervisor.answer("forks[0].wait(30)") == str(-signal.SIGTERM)
    assert supervisor.answer("forks[1].poll()") == "None"
    assert supervisor.answer("forks[1].kill()") == "None"
    assert supervisor.answer("(forks[1].wait(), forks[1].returncode)") == f"({-signal.SIGKILL}, {-signal.SIGKILL})"


def test_fork_ends_with_its_supervisor(supervisor: Supervisor) -> None:
    supervisor.facts("first"), supervisor.facts("second")
    os.kill(supervisor.process.pid, signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, supervisor.forks)), 30, "the forks to end")


@pytest.mark.parametrize(
    ("ending", "status", "message"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit('a reason')", 1, "a reason\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("pass", 0, ""),
    ],
)
def test_fork_has_the_exit_status_of_its_command(tmp_path: Path, ending: str, status: int, message: str) -> None:
    supervisor = Supervisor(tmp_path, f"import sys\n{ending}")
    try:
        assert supervisor.answer("[one.wait(30) for one in forks]") == str([status] * 2)
        assert (tmp_path / "first.err").read_text().endswith(message)
    finally:
        supervisor.close()
