"""The agent's side of the launcher, the small process that forks supervisors (supervisor/launcher_process.py)."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[3])
# No site directory is needed, and starting without it takes a third of the time and memory.
_IMPORT = "from gpusched.agent.supervisor import launcher_process"
_START = f"import sys; sys.path.insert(0, {_ROOT!r}); {_IMPORT}; launcher_process.main()"


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
                # In UTF-8 whatever the locale: supervisors encode the arguments and variables of jobs.
                [sys.executable, "-S", "-E", "-X", "utf8", "-c", _START, str(theirs.fileno()), *self._arguments],
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
