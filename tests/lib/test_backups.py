"""The file of a backup; tests/e2e/test_restore.py restores a real one."""

import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpusched.lib.process import backups


def write_tar(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, text in files.items():
            (path.parent / "member").write_text(text)
            tar.add(path.parent / "member", name)
    return path


def test_backup_is_unpacked_by_the_python_of_debian_12(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.2, whose `extractall` has no `filter`."""

    def extractall(self: object, path: Any = ".", members: Any = None, *, numeric_owner: bool = False) -> None:
        raise NotImplementedError

    monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)
    archive = write_tar(tmp_path / "a.tar", {backups.DUMP: "dump", backups.KEY: "key", "../outside": "no"})
    (tmp_path / "place").mkdir()
    backups._unpack(archive, tmp_path / "place")
    assert {path.name: path.read_text() for path in (tmp_path / "place").iterdir()} == {
        backups.DUMP: "dump", backups.KEY: "key"
    }  # fmt: skip
    assert not (tmp_path / "outside").exists()


def test_file_that_is_no_backup_is_named(tmp_path: Path) -> None:
    with pytest.raises(backups.BackupError, match=r"a\.tar is not a backup of gpusched"):
        backups.restore(write_tar(tmp_path / "a.tar", {backups.KEY: "key"}), tmp_path, "", lambda url: 0)


def test_embedded_program_that_fails_at_another_server_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot connect to a server that requires TLS."""
    monkeypatch.setenv("PATH", "")
    url = "postgresql://gpusched@127.0.0.1:1/gpusched?sslmode=require"
    with pytest.raises(backups.BackupError, match=r"(?s)pg_dump failed: .*SSL.*\bTLS\b.*client programs"):
        backups.back_up(tmp_path, url, "key", tmp_path / "backups", datetime(2026, 1, 1, tzinfo=UTC))
