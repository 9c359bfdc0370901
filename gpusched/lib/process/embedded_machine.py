"""The supervisor of an embedded control plane (gpusched/embedded.py): all parts in a temporary directory, which it
removes when it is stopped or its parent ends."""

import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TextIO

from gpusched import env
from gpusched.agent.host.machine import PretendSpec
from gpusched.agent.processes import end_all_children
from gpusched.lib.db.embedded import FAST, Server
from gpusched.lib.process import prepared_data
from gpusched.lib.process.one_machine import START_SECONDS, Machine, StartError
from gpusched.lib.process.parts import Part
from gpusched.lib.web.local_address import direct

PREFIX = "gpusched-embedded-"
_LOCK = "supervisor.lock"
_PR_SET_CHILD_SUBREAPER = 36


class Interrupted(BaseException):
    """SIGTERM, before the machine handles it itself."""


@dataclass
class EmbeddedMachine(Machine):
    """A machine that starts from prepared data, reports to its parent, and is ready once its nodes are online.

    It stops when its parent ends. `parent`: a pidfd, which notices every end. A pipe does not: a process that the
    parent has forked would keep it open. Nor does the kernel's signal at a parent's death, which comes already when the
    thread ends that started this process."""

    parent: int = -1
    later: list[Part] = field(default_factory=list)

    def _bootstrap(self) -> dict[str, str | None]:
        return {"join_token": (self.data_dir / prepared_data.JOIN_TOKEN).read_text(), "admin_password": None}

    def plan_parts(self, facts: dict[str, str | None]) -> list[Part]:
        """Leave housekeeping for later: it would take processor time from the parts that the client waits for."""
        plan = super().plan_parts(facts)
        self.later = [part for part in plan if part.name == "housekeeping"]
        return [part for part in plan if part not in self.later]

    def _greet(self, facts: dict[str, str | None], seconds: float) -> None:
        token = (self.data_dir / "tokens" / "admin").read_text().strip()
        nodes = sum(PretendSpec.parse(spec).nodes for spec in self.fleet)
        deadline = time.monotonic() + START_SECONDS
        while not self.stopping and self._online_nodes(token) < nodes:
            if time.monotonic() > deadline:
                raise StartError("the pretend nodes did not come online")
            self._restart_fallen()
            self._pause(0.02)
        _report(url=self.url, token=token)
        self.parts += self.later
        for part in self.later:
            part.start(self._output(part))

    def _pause(self, seconds: float) -> None:
        # Not a thread that waits for the end: this process forks.
        if select.select([self.parent], [], [], seconds)[0]:
            self.stopping = True

    def _online_nodes(self, token: str) -> int:
        url, headers = f"{self.url}/api/v1/cluster/status", {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310
        with direct.open(request, timeout=30) as answer:
            return int(json.load(answer)["online_nodes"])


def main(parent: int, fleet: list[str]) -> int:
    """Run until SIGTERM or the end of the process `parent`. Return the exit status."""
    signal.signal(signal.SIGTERM, _interrupt)
    handle = os.pidfd_open(os.getppid())
    if os.getppid() != parent:  # it ended before
        return 1
    # Processes that jobs leave behind become children of this one, so it can end them.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    remove_abandoned()
    directory, lock = _create_directory()
    try:
        _run(directory, fleet, handle)
    except Interrupted:
        return 0
    except (StartError, prepared_data.PrepareError, env.SettingError, OSError, ValueError) as error:
        _report(error=str(error))
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_all_children()
        _remove(directory)
        lock.close()
    return 0


def _create_directory() -> tuple[Path, TextIO]:
    """Return a directory and its lock. Under its name, the lock is never free while this process lives: another start
    would remove the directory."""
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    if os.geteuid() == 0:
        directory.chmod(0o711)  # for PostgreSQL's user
    lock = (directory / f"{_LOCK}.new").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    Path(lock.name).rename(directory / _LOCK)
    return directory, lock


def _run(directory: Path, fleet: list[str], parent: int) -> None:
    for spec in fleet:
        PretendSpec.parse(spec)
    with (directory / "up.log").open("w", buffering=1) as output:

        def log(line: str) -> None:
            output.write(line + "\n")

        prepared_data.copy_to(directory, log)
        EmbeddedMachine(
            directory, env.read(), port=0, demo=False, agent=True, log=log, fleet=fleet, database_settings=FAST,
            parent=parent,
        ).run()  # fmt: skip


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted


def _report(**message: str) -> None:
    """Write a line of JSON to the parent, if there still is one."""
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - else Python reports the error again at its end


def remove_abandoned() -> None:
    """Remove the directories of this user whose supervisor was killed: their locks are free."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if directory.stat().st_uid != os.geteuid():
                continue
            with (directory / _LOCK).open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(directory)
        except OSError:  # in use, still being created, or being removed by another process
            continue


def _remove(directory: Path) -> None:
    Server(directory / "postgres").remove()
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2:]))
