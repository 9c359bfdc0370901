"""The directories of embedded control planes: removed once their supervisor has ended, and not before."""

import fcntl
import tempfile
from pathlib import Path
from typing import TextIO

import pytest

from gpusched.lib.process import embedded_machine


def test_directory_is_not_removed_by_another_start_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    flock = fcntl.flock

    def flock_after_another_start(file: TextIO, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            embedded_machine.remove_abandoned()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock_after_another_start)
    directory, lock = embedded_machine._create_directory()
    embedded_machine.remove_abandoned()
    assert directory.exists()
    lock.close()
    embedded_machine.remove_abandoned()
    assert not directory.exists()
