"""The parts of a server, as children of their supervisor: programs, and forks of the supervisor itself once it has
loaded the server (gpusched/preload.py). A fork starts at once, and shares the memory of what is loaded."""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import setproctitle

from gpusched.installation import SERVER_ROOT
from gpusched.lib.process.children import die_with_parent


class Fork:
    """A fork of this process, which has one thread, that runs a command of Python: [python, script, …] or
    [python, "-m", module, …]. The interface is that of subprocess.Popen.

    Of the open files it gets `files`, by the same numbers, and the output; all others it gets as /dev/null, so that no
    lock and no connection outlives this process."""

    def __init__(self, command: Sequence[str], files: Collection[int], output: IO[bytes], errors: IO[bytes]) -> None:
        start = (command, _open_files() - {0, 1, 2, *files}, output.fileno(), errors.fileno(), die_with_parent())
        # It also flushes output, seeds random numbers, and ends without the exit handlers of this process.
        self._process = multiprocessing.get_context("fork").Process(target=_begin, args=start)
        with _all_signals_blocked():
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self._process.exitcode


@dataclass
class Part:
    """A child process that is restarted when it ends: a program with an `environment`, or, without one, a fork."""

    name: str
    command: list[str]
    environment: dict[str, str] | None = None
    files: tuple[int, ...] = ()
    directory: Path = SERVER_ROOT
    process: "subprocess.Popen[bytes] | Fork | None" = None
    started_at: float = 0.0
    pause: float = 0.0

    def start(self, log: Path) -> None:
        with log.open("ab") as output:
            if self.environment is None:
                self.process = Fork(self.command, self.files, output, output)
            else:
                self.process = subprocess.Popen(
                    self.command, env=self.environment, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=output, start_new_session=True, preexec_fn=die_with_parent(),
                )  # fmt: skip
        self.started_at = time.monotonic()

    def terminate(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def wait(self, seconds: float) -> None:
        """Wait until the terminated process has ended, and kill it after `seconds`."""
        if self.process is None:
            return
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _open_files() -> set[int]:
    """Return the numbers of the files that this process has open."""
    folder = Path("/proc/self/fd")
    listed = os.listdir(folder)  # with the listing's own file
    return {int(number) for number in listed if os.path.lexists(folder / number)}


@contextmanager
def _all_signals_blocked() -> Iterator[None]:
    """Keep signals for later: in a fork, the handlers of its parent must not run."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(command: Sequence[str], closed: set[int], output: int, errors: int, bind: Callable[[], None]) -> None:
    """Make this fork what a new process would be, and run its command."""
    os.setsid()
    bind()
    null = os.open(os.devnull, os.O_RDWR)
    for source, target in ((null, 0), (output, 1), (errors, 2)):
        os.dup2(source, target)
    for file in closed:  # not closed: their objects in this process would close what gets their numbers later
        os.dup2(null, file, inheritable=False)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - until the end of the process
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.chdir(SERVER_ROOT)
    setproctitle.setproctitle(" ".join(command))
    if command[1] == "-m":
        sys.argv = [*command[2:]]
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [*command[1:]]
        runpy.run_path(command[1], run_name="__main__")
