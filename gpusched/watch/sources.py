"""The sources that rules observe. Each returns texts that are new since the last look; what exists at the first look is
not new, except for your own monitors."""

import errno
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Protocol

from gpusched.client.errors import Invalid
from gpusched.watch import commands
from gpusched.watch.commands import CannotLook
from gpusched.watch.rules import Rule

MAX_BYTES = 1 << 20  # of a log at once: the end counts


class Source(Protocol):
    """Observes one thing. A class of your own needs only this method."""

    def observe(self) -> Iterable[str]:
        """Return the texts that are new since the last call."""


class Log:
    """The lines that a file gets. A file that was replaced or truncated is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Open between looks: a file that is rotated may get lines after the last look at it.
        self._file = self._opened()
        self._offset, self._incomplete = os.fstat(self._file.fileno()).st_size if self._file else 0, b""

    def observe(self) -> list[str]:
        is_replaced = self._is_replaced()
        following = self._opened() if is_replaced else None
        lines = self._new_lines()
        if is_replaced:
            if self._file:
                self._file.close()
            self._file, self._offset, self._incomplete = following, 0, b""
            lines += self._new_lines()
        return lines

    def _new_lines(self) -> list[str]:
        try:
            size = os.fstat(self._file.fileno()).st_size if self._file else 0
            if size < self._offset:
                self._offset, self._incomplete = 0, b""
            if self._file is None or size == self._offset:
                return []
            start = max(self._offset, size - MAX_BYTES)
            data = os.pread(self._file.fileno(), size - start, start)
        except OSError as error:
            if error.errno != errno.ESTALE:  # another machine removed the file: its end is lost
                raise
            return []
        if start == self._offset:
            data = self._incomplete + data
        self._offset = size
        *lines, incomplete = data.split(b"\n")
        self._incomplete = incomplete[-MAX_BYTES:]  # a progress bar may end no line for days
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def _is_replaced(self) -> bool:
        """Return whether the name belongs to another file now, or to none."""
        try:
            present = self._path.stat()
        except FileNotFoundError:
            return self._file is not None
        try:
            return self._file is None or not os.path.samestat(present, os.fstat(self._file.fileno()))
        except OSError:
            return True

    def _opened(self) -> BinaryIO | None:
        try:
            # A pipe without a writer must not hold up the other rules.
            return open(self._path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))
        except FileNotFoundError:
            return None


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
        "command": lambda: Snapshot(lambda: set(commands.output(rule.command))),
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


def _slurm_queue(user: str) -> set[str]:
    """Return `ID STATE NAME` of each job of the user in Slurm's queue."""
    return set(commands.output(["squeue", "--noheader", f"--user={user}", "--format=%i %T %j"]))


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
