"""The sources that rules observe. Each returns texts that are new since the last look; what exists at the first look is
not new, except for your own monitors."""

import glob
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Protocol

from gpusched.client.errors import Invalid
from gpusched.watch.rules import Rule

MAX_BYTES = 1 << 20  # of a log at once: the end counts
_COMMAND_SECONDS = 30.0


class Source(Protocol):
    """Observes one thing. A class of your own needs only this method."""

    def observe(self) -> Iterable[str]:
        """Return the texts that are new since the last call."""


class Log:
    """The lines that a file gets. A file that was replaced or truncated is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None  # device and inode
        self._offset, self._incomplete = self._size(), b""

    def observe(self) -> Iterator[str]:
        size = self._size()
        if size < self._offset:
            self._offset, self._incomplete = 0, b""
        if size == self._offset:
            return
        start = max(self._offset, size - MAX_BYTES)
        with self._path.open("rb") as file:
            file.seek(start)
            data = file.read(size - start)
        if start == self._offset:
            data = self._incomplete + data
        self._offset = size
        *lines, incomplete = data.split(b"\n")
        self._incomplete = incomplete[-MAX_BYTES:]  # a progress bar may end no line for days
        yield from (line.decode(errors="replace").rstrip("\r") for line in lines)

    def _size(self) -> int:
        """Return the size; of another file than at the last look, forget how far that one was read."""
        try:
            facts = self._path.stat()
        except FileNotFoundError:
            return 0
        identity = facts.st_dev, facts.st_ino
        if self._file not in (None, identity):
            self._offset, self._incomplete = 0, b""
        self._file = identity
        return facts.st_size


class CannotLook(Exception):
    """The list cannot be read now."""


class Snapshot:
    """The entries of a list that were not in it at the last look that succeeded."""

    def __init__(self, read: Callable[[], set[str]], *, ended: str = "") -> None:
        self._read, self._ended = read, ended
        self._previous: set[str] | None = None
        with suppress(CannotLook):
            self._previous = read()

    def observe(self) -> Iterator[str]:
        """Raise CannotLook."""
        current = self._read()
        previous = current if self._previous is None else self._previous
        new, gone = current - previous, previous - current
        self._previous = current
        yield from sorted(new)
        if self._ended:
            yield from (f"{self._ended} {entry}" for entry in sorted(gone))


def create(rule: Rule) -> Source:
    """Return the source of a rule. Raise Invalid if a monitor of your own cannot be made."""
    makers: Mapping[str, Callable[[], Source]] = {
        "log": lambda: Log(Path(rule.log).expanduser()),
        "files": lambda: Snapshot(lambda: set(glob.glob(os.path.expanduser(rule.files), recursive=True))),
        "process": lambda: Snapshot(lambda: _processes(re.compile(rule.process)), ended="ended"),
        "command": lambda: Snapshot(lambda: set(_output(rule.command))),
        "slurm": lambda: Snapshot(lambda: _slurm_queue(rule.slurm)),
        "monitor": lambda: _monitor(rule),
    }
    return makers[rule.source]()


def _processes(pattern: re.Pattern[str]) -> set[str]:
    """Return `PID COMMAND LINE` of each process of this user that the pattern finds, without this one."""
    processes = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{entry}").st_uid != os.geteuid() or int(entry) == os.getpid():
                continue
            command = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # it has ended
            continue
        if command and pattern.search(command):
            processes.add(f"{entry} {command}")
    return processes


def _output(command: list[str]) -> list[str]:
    """Return the lines that a command prints. Raise CannotLook if it fails, since lines that are missing for a moment
    would be new afterwards; Invalid if it does not exist."""
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_COMMAND_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise CannotLook(f"{command[0]} has not ended after {_COMMAND_SECONDS:g} s") from error
    except OSError as error:
        raise Invalid(f"{command[0]}: {error.strerror}", next_step="correct `command` in the rules") from error
    if result.returncode:
        raise CannotLook(f"{command[0]} ended with {result.returncode}: {result.stderr.strip()[-200:]}")
    return result.stdout.splitlines()


def _slurm_queue(user: str) -> set[str]:
    """Return `ID STATE NAME` of each job of the user in Slurm's queue."""
    return set(_output(["squeue", "--noheader", f"--user={user}", "--format=%i %T %j"]))


def _monitor(rule: Rule) -> Source:
    module, _, name = rule.monitor.partition(":")
    try:
        source: Source = getattr(import_module(module), name)(**rule.options)
        if not callable(source.observe):
            raise TypeError(f"{name}.observe is not a method")
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise Invalid(
            f"rule {rule.name!r}: {rule.monitor!r} is no monitor: {error}",
            next_step="write MODULE:CLASS, with the module beside the rules, and `options` for its arguments",
        ) from error
    return source
