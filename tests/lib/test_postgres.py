"""The embedded PostgreSQL: where its files are, and what a failed start leaves."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gpusched.lib.db import embedded
from gpusched.lib.db.embedded import FAST, PostgresError, Server

OWNER = pwd.getpwnam("daemon").pw_uid  # any that is neither root nor nobody
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts PostgreSQL as another user")


@pytest.fixture
def in_var_lib(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories that the test creates in /var/lib: other tests have theirs there at the same time."""
    created: list[Path] = []
    make = tempfile.mkdtemp

    def recorded(*args: Any, **options: Any) -> str:
        path: str = make(*args, **options)
        created.extend([Path(path)] if path.startswith("/var/lib/") else [])
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", recorded)
    return created


@pytest.fixture
def private(tmp_path: Path, in_var_lib: list[Path]) -> Iterator[Path]:
    """A folder that only its owner can enter, as root's home is on Debian."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    yield folder
    assert not any(path.exists() for path in in_var_lib)


def wheel_in(folder: Path) -> Path:
    """Copy the wheel with its libraries, as pip would install it there."""
    package = embedded._wheel()
    for name in (package.name, f"{package.name}.libs"):
        shutil.copytree(package.parent / name, folder / name, symlinks=True)
    return folder / package.name


@needs_root
def test_server_starts_when_data_and_wheel_are_in_a_private_folder(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = wheel_in(private)
    os.chmod(package / "pginstall" / "bin" / "initdb", 0o700)  # as a umask of 077 leaves it
    monkeypatch.setattr(embedded, "_wheel", lambda: package)
    server = Server(private / "postgres", settings=FAST)
    (private / "postgres").mkdir()
    server.start()
    try:
        assert Path(f"/proc/{server.pid()}").stat().st_gid == pwd.getpwnam("nobody").pw_gid, "not the group of root"
        copy = server.data.parent / "wheel"
        assert (copy / f"{package.name}.libs").is_dir()
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        server.stop()
        shutil.rmtree(copy)
        (copy.with_suffix(".new") / package.name).mkdir(parents=True)  # an interrupted copy
        server.start()
    finally:
        server.remove()
    assert not server.directory.exists()


@pytest.mark.parametrize("binary", ["initdb", "postgres"])
def test_failed_first_start_leaves_nothing(binary: str, private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = wheel_in(private)
    failing = package / "pginstall" / "bin" / binary
    failing.unlink()
    failing.write_text("#!/bin/sh\necho libpq is missing >&2\nexit 127\n")
    failing.chmod(0o755)
    monkeypatch.setattr(embedded, "_wheel", lambda: package)
    server = Server(private / "postgres", settings=FAST)
    with pytest.raises(PostgresError, match="libpq is missing"):
        server.start(timeout_seconds=1)
    assert not server.directory.exists()


def test_first_start_that_was_killed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a power failure: nothing cleans up after initdb."""
    tmp_path.chmod(0o755)
    server = Server(tmp_path / "postgres", settings=FAST)
    run = subprocess.run

    def killed(command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        done = run(command, **options)
        if command[0].endswith("initdb"):
            (Path(command[2]) / "global" / "pg_control").unlink()  # as if initdb had not come so far
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(subprocess, "run", killed)
    monkeypatch.setattr(Server, "remove", lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        server.start()
    monkeypatch.undo()
    try:
        server.start(timeout_seconds=5)
    finally:
        server.remove()


def test_variables_of_another_server_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PGSERVICE": "no-such", "PGOPTIONS": "-c no_such=1", "PGPORT": "5433"}.items():
        monkeypatch.setenv(name, value)
    tmp_path.chmod(0o755)
    server = Server(tmp_path / "postgres", settings=FAST)
    server.start()
    try:
        monkeypatch.setenv("PGPORT", "5433")  # of the shell of a later command
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("SHOW port").fetchone() == ("5432",)
    finally:
        server.remove()


def test_failed_later_start_keeps_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    server = Server(tmp_path / "postgres", settings=FAST)
    server.start()
    try:
        server.stop()
        (server.data / "postgresql.auto.conf").open("a").write("no_such_setting = 1\n")
        with pytest.raises(PostgresError, match="no_such_setting"):
            server.start(timeout_seconds=1)
        assert (server.data / "PG_VERSION").exists()
    finally:
        server.remove()


@pytest.fixture
def recovering(tmp_path: Path) -> Iterator[Server]:
    """A server whose next start recovers for 2 seconds."""
    tmp_path.chmod(0o755)
    server = Server(tmp_path / "postgres", settings=FAST)
    server.start()
    server.stop()
    (server.data / "recovery.signal").touch()
    server._chown(server.data / "recovery.signal")
    (server.data / "postgresql.auto.conf").open("a").write("restore_command = 'sleep 1; exit 1'\n")
    yield server
    server.remove()


def test_start_waits_for_recovery(recovering: Server) -> None:
    """A start that gave up would stop the server, and the next one would begin recovery anew."""
    recovering.start(timeout_seconds=0.5)
    with psycopg.connect(recovering.url()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background"])
def shell(request: pytest.FixtureRequest) -> Iterator[None]:
    """The shell that starts the server: SIGINT is ignored in the background of a script."""
    previous = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("shell")
def test_start_that_is_no_longer_wanted_ends(recovering: Server) -> None:
    recovering.is_wanted = lambda: recovering.process is None
    with pytest.raises(PostgresError):
        recovering.start()
    assert recovering.process is None


def test_missing_data_is_never_replaced_by_an_empty_database(tmp_path: Path) -> None:
    """An unmounted disk must not look like a first start."""
    server = Server(tmp_path / "postgres")
    server.directory.mkdir()
    pointer = server.directory / "location"
    pointer.write_text(f"{tmp_path}/unmounted\n")
    with pytest.raises(PostgresError, match=r"unmounted, which does not exist\. Mount or restore it"):
        server.start()
    assert pointer.exists()


@pytest.fixture
def owned(in_var_lib: list[Path]) -> Iterator[Path]:
    """A data directory as systemd creates it for the units: that of another user, whom alone it lets in."""
    with tempfile.TemporaryDirectory(prefix="gpusched-owned-") as directory:  # other users enter /tmp, not `tmp_path`
        os.chown(directory, OWNER, OWNER)
        yield Path(directory)
        assert in_var_lib == []


@needs_root
def test_root_uses_the_database_of_the_owner_of_the_data_directory(owned: Path) -> None:
    """`backup` and `restore` by an administrator, who once got an empty database elsewhere, which the units cannot use."""
    server = Server(owned / "postgres", settings=FAST)
    for number in (1, 2):
        server.start()
        try:
            with psycopg.connect(server.url(), autocommit=True) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS start (number int)")
                connection.execute("INSERT INTO start VALUES (%s)", [number])
                assert connection.execute("SELECT count(*) FROM start").fetchone() == (number,)
            process = Path(f"/proc/{server.pid()}").stat()
            assert (process.st_uid, process.st_gid) == (OWNER, pwd.getpwuid(OWNER).pw_gid)
        finally:
            server.stop()
    # A copy of the programs, which anybody may use, is there if the owner cannot enter this checkout.
    files = [path for path in (owned / "postgres").rglob("*") if "wheel" not in path.parts]
    assert {path.stat().st_uid for path in files} == {OWNER}
