"""The launcher: a small process without threads that forks supervisors, less than a millisecond each. Standard library
only.

Forking from the agent itself would copy its threads' locks and its memory. The launcher ends when its agent does; the
supervisors live on, unless the jobs belong to the agent (`own`).

Each page of memory that a supervisor touches is copied for it. So this process, and what it imports, is kept small: no
pathlib, dataclasses, subprocess, threading or tempfile, and no file objects (tests/agent/test_launcher.py)."""

import gc
import os
import signal
import socket
import sys

from gpusched.agent.rank_files import rank_dir
from gpusched.agent.supervisor import supervisor
from gpusched.protocol.reasons import EndReason

MAX_BYTES = 65536


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
            _fork(message.decode(), socket_path, parent, handle)


def _fork(directory: str, socket_path: str, parent: int | None, handle: int) -> None:
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
        import traceback  # needs much memory, rarely

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _refuse(directory: str, detail: str) -> None:
    handle = rank_dir.lock(directory)
    if handle is None:
        return
    try:
        if not rank_dir.is_taken(handle):
            fact = {"at": rank_dir.now(), "reason": str(EndReason.NODE_FAULT), "detail": detail}
            rank_dir.write(directory, rank_dir.EXIT, fact)
    finally:
        os.close(handle)
