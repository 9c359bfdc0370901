"""The launcher: a small process without threads that forks supervisors, a millisecond each. Standard library only.

Forking from the agent itself would copy its threads' locks and its memory. The launcher ends when its agent does; the
supervisors live on, unless the jobs belong to the agent (`own`)."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path

from gpusched.agent.rank_files import rank_dir
from gpusched.agent.supervisor import supervisor
from gpusched.protocol.reasons import EndReason

_ROOT = str(Path(__file__).resolve().parents[3])
# No site directory is needed, and starting without it takes a third of the time and memory.
_START = f"import sys; sys.path.insert(0, {_ROOT!r}); from gpusched.agent.ranks.launcher import main; main()"
MAX_BYTES = 65536


class Launcher:
    """The agent's side of the launcher."""

    def __init__(self, socket_path: Path, own_jobs: bool) -> None:
        self._arguments = [str(socket_path), "own" if own_jobs else "free"]
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        # Each node launches from its own thread.
        self._lock = threading.Lock()

    def launch(self, directory: Path) -> None:
        """Ask the launcher to fork a supervisor for a rank. Safe to repeat: the first supervisor takes the rank, others
        exit. Blocks while the launcher is busy; starts another launcher if it was killed."""
        with self._lock:
            for attempt in (1, 2):
                if self._process is None or self._process.poll() is not None:
                    self._start()
                try:
                    assert self._socket is not None
                    self._socket.sendall(str(directory).encode())
                    return
                except (BrokenPipeError, ConnectionResetError):
                    if attempt == 2:
                        raise

    def _start(self) -> None:
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Its own session: Ctrl-C in the agent's terminal must not reach the jobs' supervisors.
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _START, str(theirs.fileno()), *self._arguments],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
                # Supervisors may run beside jobs of the same user, which can read a process's environment.
                env={name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ},
            )  # fmt: skip
        self._socket = ours

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.wait()
            self._process = None


def main() -> None:
    """Run the launcher process: one rank directory per message until the agent closes its end."""
    handle, socket_path, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.SIGNALS)
    # The kernel reaps the supervisors; each of them restores SIGCHLD for its own children.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.disable()
    gc.freeze()
    parent = os.getpid() if mode == "own" else None
    with socket.socket(fileno=handle) as requests:
        while message := requests.recv(MAX_BYTES):
            _fork(Path(message.decode()), socket_path, parent, handle)


def _fork(directory: Path, socket_path: str, parent: int | None, handle: int) -> None:
    try:
        pid = os.fork()
    except OSError as error:
        _refuse(directory, f"no process can be started: {error.strerror}")
        return
    if pid:
        return
    status = 1
    try:
        os.setsid()
        os.close(handle)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        supervisor.run(directory, socket_path, parent)
        status = 0
    except BaseException:  # noqa: BLE001 - nothing may unwind into the launcher's own loop
        # Goes to the agent's log. The agent finds a rank without supervisor and without end, and reports that.
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _refuse(directory: Path, detail: str) -> None:
    handle = rank_dir.lock(directory)
    if handle is None:
        return
    try:
        if not rank_dir.is_taken(handle):
            fact = {"at": rank_dir.now(), "reason": str(EndReason.NODE_FAULT), "detail": detail}
            rank_dir.write(directory, rank_dir.EXIT, fact)
    finally:
        os.close(handle)
