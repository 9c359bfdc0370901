"""A launcher without free processes reports it: the attempt ends, and its job is not at fault."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from gpusched.agent import processes
from gpusched.agent.rank_files import rank_dir
from gpusched.agent.ranks.journal import Journal
from tests.agent.control import eventually

ROOT = Path(__file__).resolve().parents[2]
# A user with no process of its own but this one, where root would be let beyond any limit.
USER = 54321 if os.geteuid() == 0 else os.geteuid()
# The launcher as it is, in a process that may have no child.
LIMITED = f"""
import os, resource, sys
sys.path.insert(0, {str(ROOT)!r})
from gpusched.agent.supervisor import launcher_process
from gpusched.agent.supervisor import failure_class
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid({USER}, {USER}, {USER})
    os.setresuid({USER}, {USER}, {USER})
launcher_process.main()
"""


# Modules whose memory each supervisor would inherit.
LARGE = {"pathlib", "dataclasses", "inspect", "subprocess", "threading", "tempfile", "hashlib", "random", "msgspec"}


def test_end_of_many_processes_does_not_list_them_for_each() -> None:
    """A34: a job may leave thousands, and the time to end them must not grow with their square."""
    code = (
        "import os, signal; from gpusched.agent import processes; calls = []; list_children = processes.children\n"
        "processes.children = lambda pid: [calls.append(pid), *list_children(pid)][1:]\n"
        "for _ in range(300):\n    if os.fork() == 0: signal.pause()\n"
        "processes.end_all_children(); print(len(calls))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 100


def test_processes_are_stopped_before_they_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A34: a fork bomb fills the places of those that are killed, as fast as the supervisor kills."""
    running, stopped, new = {1, 2}, set[int](), iter(range(3, 9))

    def signal_all(pids: Iterable[int], number: int) -> None:
        for pid in set(pids) & running:
            if number == signal.SIGKILL:
                assert stopped == running, f"a kill makes room for a fork of {running - stopped}"
            stopped.add(pid)
        running.update(islice(new, 2))  # forks of those that were not stopped yet

    monkeypatch.setattr(processes, "signal_all", signal_all)
    monkeypatch.setattr(processes, "descendants", lambda pid: sorted(running))
    processes.kill_descendants()
    assert stopped == running == set(range(1, 9))


def test_launcher_process_imports_no_large_module() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import gpusched.agent.supervisor.launcher_process"
    printed = subprocess.check_output([sys.executable, "-S", "-E", "-c", f"{code}; print(*sys.modules)"], text=True)
    assert not LARGE & set(printed.split())


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chown(folder, USER, -1)
        yield Path(folder)


@pytest.fixture
def ask(home: Path) -> Iterator[socket.socket]:
    """The agent's end of a launcher that can fork nothing."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        arguments = [sys.executable, "-S", "-E", "-c", LIMITED, str(theirs.fileno()), str(home / "doorbell"), "free"]
        process = subprocess.Popen(arguments, pass_fds=[theirs.fileno()])
    with ours:
        yield ours
    process.wait(20)


def prepared(journal: Journal, key: str) -> Path:
    directory = journal.ranks / key
    directory.mkdir()
    rank_dir.write(directory, rank_dir.SPEC, {"boot_id": journal.boot_id, "argv": ["true"]})
    for path in (journal.ranks.parent, journal.ranks, directory, directory / rank_dir.SPEC):
        os.chown(path, USER, -1)
    return directory


def test_rank_without_a_supervisor_process_is_a_node_fault(home: Path, ask: socket.socket) -> None:
    journal = Journal(home / "node", rank_dir.boot_id())
    first, second = prepared(journal, "1.1.0"), prepared(journal, "2.1.0")
    for directory in (first, second):
        ask.send(str(directory).encode())
    eventually(lambda: (second / rank_dir.EXIT).exists(), 20, "the launcher to refuse")
    for key in ("1.1.0", "2.1.0"):
        started, ended, is_alive = journal.inspect(key)
        assert ended is not None and (started, is_alive) == (None, False)
        assert (ended.reason, ended.detail) == (
            "node_fault", "no process can be started: Resource temporarily unavailable"
        )  # fmt: skip


def test_launcher_does_not_refuse_an_acquired_rank(home: Path, ask: socket.socket) -> None:
    """The launcher may get a request twice; the rank of a supervisor that lives, or lived, is that one's alone."""
    journal = Journal(home / "node", rank_dir.boot_id())
    acquired, untouched = prepared(journal, "1.1.0"), prepared(journal, "2.1.0")
    handle = rank_dir.lock(acquired)
    assert handle is not None
    os.write(handle, rank_dir.boot_id().encode())
    os.chown(acquired / rank_dir.LOCK, USER, -1)
    for directory in (acquired, untouched):
        ask.send(str(directory).encode())
    eventually(lambda: (untouched / rank_dir.EXIT).exists(), 20, "the launcher to get so far")
    assert not (acquired / rank_dir.EXIT).exists()
    os.close(handle)
    ask.send(str(acquired).encode())
    last = prepared(journal, "3.1.0")
    ask.send(str(last).encode())
    eventually(lambda: (last / rank_dir.EXIT).exists(), 20, "the launcher to get so far")
    assert not (acquired / rank_dir.EXIT).exists()
