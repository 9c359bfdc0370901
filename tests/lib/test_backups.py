"""The file of a backup; tests/e2e/test_restore.py restores a real one."""

import errno
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from psycopg.conninfo import make_conninfo

from gpusched.lib.db.embedded import Server
from gpusched.lib.db.locks import Lock
from gpusched.lib.process import backups
from gpusched.management.commands import migrate
from jobs.lifecycle.restored_ids import SKIPPED_IDS, before_restore
from tests.waiting import wait_for

NO_DATABASE = "postgresql://gpusched@127.0.0.1:1/gpusched"


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


def test_older_backups_are_deleted_and_nothing_else(tmp_path: Path) -> None:
    """The one just made remains, even if the clock was ahead when the others were made."""
    names = [f"gpusched-2030010{day}T000000Z.tar" for day in range(1, 6)]
    others = ["gpusched-20300101T000000Z.tar.gpg", "gpusched-old.tar", "backup.tar"]
    for name in [*names, *others]:
        (tmp_path / name).touch()
    deleted = backups.remove_older(tmp_path / names[0], 3)
    assert {file.name for file in deleted} == {names[1], names[2]}
    assert {file.name for file in tmp_path.iterdir()} == {names[0], *names[3:], *others}
    assert backups.remove_older(tmp_path / names[0], 3) == []
    backups.remove_older(tmp_path / names[0], 1)
    assert {file.name for file in tmp_path.iterdir()} == {names[0], *others}


def test_number_of_kept_backups_is_at_least_one() -> None:
    with pytest.raises(CommandError, match="--keep must be at least 1"):
        call_command("backup", "--keep", "0")


def test_file_that_is_no_backup_is_named(tmp_path: Path) -> None:
    with pytest.raises(backups.BackupError, match=r"a\.tar is not a backup of gpusched"):
        backups.restore(write_tar(tmp_path / "a.tar", {backups.KEY: "key"}), tmp_path, "", lambda url: "SELECT 0")


def test_embedded_program_that_fails_at_another_server_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot connect to a server that requires TLS."""
    monkeypatch.setenv("PATH", "")
    url = "postgresql://gpusched@127.0.0.1:1/gpusched?sslmode=require"
    with pytest.raises(backups.BackupError, match=r"(?s)pg_dump failed: .*SSL.*\bTLS\b.*client programs"):
        backups.back_up(tmp_path, url, "key", tmp_path / "backups", datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def database_url() -> Iterator[str]:
    """An empty database on the server of the tests."""
    server = os.environ["GPUSCHED_DATABASE_URL"]
    name = f"restored_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield make_conninfo(server, dbname=name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_restore_replaces_tables_that_are_newer_than_the_backup(database_url: str, tmp_path: Path) -> None:
    """Single sign-on and newer versions add tables, views and columns that refer to the tables of the backup."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE person (id int PRIMARY KEY); INSERT INTO person VALUES (1)")
        connection.execute("CREATE TABLE team (id int PRIMARY KEY); CREATE VIEW people AS SELECT id FROM person")
        file = backups.back_up(tmp_path, database_url, "key", tmp_path, datetime(2026, 1, 1, tzinfo=UTC))
        connection.execute("CREATE TABLE login (id int REFERENCES person); CREATE VIEW logins AS SELECT * FROM people")
        connection.execute("ALTER TABLE team ADD owner int REFERENCES person; INSERT INTO person VALUES (2)")
        backups.restore(file, tmp_path, database_url, lambda url: "SELECT 0")
        tables = connection.execute("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
                                    " AND relkind IN ('r', 'v') ORDER BY 1").fetchall()  # fmt: skip
        assert tables == [("people",), ("person",), ("team",)]
        assert connection.execute("SELECT id FROM people").fetchall() == [(1,)]


def test_tables_in_a_schema_of_their_own_are_backed_up_and_restored(database_url: str, tmp_path: Path) -> None:
    """In a schema of the user's name, which PostgreSQL uses before `public`, everything worked but the backup."""
    url = make_conninfo(database_url, options="-c search_path=own")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA own")
        with pytest.raises(backups.BackupError, match="the database is empty"):
            backups.back_up(tmp_path, url, "key", tmp_path, datetime(2026, 1, 1, tzinfo=UTC))
        connection.execute("CREATE TABLE jobs_job (id bigserial PRIMARY KEY); INSERT INTO jobs_job DEFAULT VALUES")
        file = backups.back_up(tmp_path, url, "key", tmp_path, datetime(2026, 1, 1, tzinfo=UTC))
        connection.execute("INSERT INTO jobs_job VALUES (7); CREATE TABLE newer (id bigint REFERENCES jobs_job)")
        assert backups.restore(file, tmp_path, url, before_restore) == 1
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'own'").fetchall()
        assert tables == [("jobs_job",)]


def test_restore_leaves_the_objects_of_the_administrator_alone(database_url: str, tmp_path: Path) -> None:
    """An extension, such as pg_stat_statements, a role that may read, and a schema in a database of another owner: no
    restore succeeded."""
    user, reader = f"owner_{os.getpid()}", f"reader_{os.getpid()}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'x'; CREATE ROLE {reader}")
        connection.execute(f"CREATE SCHEMA {user} AUTHORIZATION {user}")
        connection.execute("CREATE EXTENSION vector; COMMENT ON EXTENSION plpgsql IS 'of the administrator'")
        url = make_conninfo(database_url, user=user, password="x")
        with psycopg.connect(url, autocommit=True) as own:
            own.execute(f"CREATE TABLE person (id int); GRANT SELECT ON person TO {reader}")
        file = backups.back_up(tmp_path, url, "key", tmp_path, datetime(2026, 1, 1, tzinfo=UTC))
        connection.execute(f"DROP OWNED BY {reader}; DROP ROLE {reader}; INSERT INTO {user}.person VALUES (1)")
        backups.restore(file, tmp_path, url, lambda url: "SELECT 0")
        assert connection.execute(f"SELECT * FROM {user}.person").fetchall() == []
        connection.execute(f"DROP OWNED BY {user} CASCADE; DROP ROLE {user}")


def test_older_programs_on_the_path_give_way_to_the_embedded_ones(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of PostgreSQL 15, which Debian 12 installs beside a server, read neither a server nor a backup of 16."""
    for name in ("pg_dump", "pg_restore"):
        (tmp_path / name).write_text("#!/bin/sh\necho aborting because of server version mismatch >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE person (id int PRIMARY KEY)")
        file = backups.back_up(tmp_path, database_url, "key", tmp_path, datetime(2026, 1, 1, tzinfo=UTC))
    backups._unpack(file, tmp_path)
    (tmp_path / "damaged").write_bytes(b"PGDMP" + bytes(50))
    with pytest.raises(backups.BackupError, match=r"(?s)version mismatch.*unsupported version \(0\.0\)"):
        backups._run("pg_restore", ["--file=-", str(tmp_path / "damaged")], "postgresql:///")
    statements, elsewhere = tmp_path / "restore.sql", "postgresql://gpusched@127.0.0.1:1/gpusched"
    backups._run("pg_restore", [f"--file={statements}", str(tmp_path / backups.DUMP)], elsewhere)
    assert "CREATE TABLE public.person" in statements.read_text()
    with pytest.raises(backups.BackupError, match="version mismatch"):
        backups.back_up(tmp_path, elsewhere, "key", tmp_path, datetime(2026, 1, 1, tzinfo=UTC))


def test_restore_is_refused_while_a_worker_runs_cycles(database_url: str, tmp_path: Path) -> None:
    """Whatever started it: systemd, a container, or another head."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE person (id int PRIMARY KEY)")
        file = backups.back_up(tmp_path, database_url, "key", tmp_path, datetime(2026, 1, 1, tzinfo=UTC))
        connection.execute("INSERT INTO person VALUES (1)")
        connection.execute("SELECT pg_advisory_lock(%s)", [Lock.LEADER])
        with pytest.raises(backups.BackupError, match="gpusched is running: a worker"):
            backups.restore(file, tmp_path, database_url, lambda url: "SELECT 0")
        assert connection.execute("SELECT id FROM person").fetchall() == [(1,)]
        connection.execute("SELECT pg_advisory_unlock(%s)", [Lock.LEADER])
        assert backups.restore(file, tmp_path, database_url, lambda url: "SELECT 0") == 0
        assert connection.execute("SELECT id FROM person").fetchall() == []


def test_restore_that_fails_changes_nothing(database_url: str, tmp_path: Path) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE person (id int PRIMARY KEY); CREATE FUNCTION one() RETURNS int AS 'SELECT 1'"
                           " LANGUAGE sql")  # fmt: skip
        file = backups.back_up(tmp_path, database_url, "key", tmp_path, datetime(2026, 1, 1, tzinfo=UTC))
        connection.execute("INSERT INTO person VALUES (1); CREATE SCHEMA other; CREATE VIEW other.v AS SELECT one()")
        with pytest.raises(backups.BackupError, match=r"psql failed: .*cannot drop function"):
            backups.restore(file, tmp_path, database_url, lambda url: "SELECT 0")
        assert connection.execute("SELECT id FROM person").fetchall() == [(1,)]


def test_second_restore_of_a_backup_gives_no_id_twice(database_url: str, tmp_path: Path) -> None:
    """Agents remember what ran after the first one, and never start a rank of the same name."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE jobs_job (id bigserial PRIMARY KEY); INSERT INTO jobs_job DEFAULT VALUES")
        file = backups.back_up(tmp_path, database_url, "key", tmp_path, now)
        ids = []
        for _ in range(3):
            assert backups.restore(file, tmp_path, database_url, before_restore) == 1
            [row] = connection.execute("INSERT INTO jobs_job DEFAULT VALUES RETURNING id").fetchall()
            ids.append(row[0])
        connection.execute("DROP TABLE jobs_job")
        backups.restore(file, tmp_path, database_url, before_restore)  # as into a new database
    assert all(later > earlier + SKIPPED_IDS // 2 for earlier, later in pairwise([1, *ids])), ids


def test_restore_leaves_the_gap_in_its_own_transaction(database_url: str, tmp_path: Path) -> None:
    """A submit after the commit, by a web process that was not stopped, got the id of a job that had run."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE jobs_job (id bigserial PRIMARY KEY); INSERT INTO jobs_job DEFAULT VALUES")
        file = backups.back_up(tmp_path, database_url, "key", tmp_path, now)
        with pytest.raises(backups.BackupError, match="division by zero"):
            backups.restore(file, tmp_path, database_url, lambda url: before_restore(url) + "SELECT 1 / 0")
        backups.restore(file, tmp_path, database_url, before_restore)
        [[last]] = connection.execute("SELECT last_value FROM jobs_job_id_seq").fetchall()
    assert last == 2 + SKIPPED_IDS


def test_backup_that_this_version_cannot_use_is_refused_before_anything_changes(
    database_url: str, tmp_path: Path
) -> None:
    """It replaced the database, and only the next start refused it. After a rollback, one of the next version works."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE django_migrations (id serial, app text, name text, applied timestamptz)")
        add = "INSERT INTO django_migrations (app, name) VALUES (%s, %s)"
        connection.cursor().executemany(add, [*migrate._own(), ("jobs", "9999_later")])
        file = backups.back_up(tmp_path, database_url, "key", tmp_path, datetime(2026, 1, 1, tzinfo=UTC))
        found: list[backups.Migrations] = []
        backups.restore(file, tmp_path, database_url, lambda url: "SELECT 0", found.append)
        assert migrate.is_newer(found[0]) and not migrate.is_newer(migrate._own())
        connection.execute("DELETE FROM django_migrations WHERE app = 'serving'")
        file = backups.back_up(tmp_path, database_url, "key", tmp_path, datetime(2026, 1, 2, tzinfo=UTC))
        with pytest.raises(CommandError, match="nothing was changed"):
            backups.restore(file, tmp_path, database_url, pytest.fail, migrate.is_newer)


def test_full_disk_is_named_with_its_directory(database_url: str, tmp_path: Path, monkeypatch: Any) -> None:
    """A backup printed only "No space left on device", and a restore that the file was no backup."""

    def write(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE person (id int)")
    now = datetime(2026, 1, 1, tzinfo=UTC)
    file = backups.back_up(tmp_path, database_url, "key", tmp_path / "good", now)
    monkeypatch.setattr(shutil, "copyfileobj", write)
    with pytest.raises(backups.BackupError, match=f"no space is left in {tmp_path}: .*unpacked"):
        backups.restore(file, tmp_path, database_url, lambda url: "SELECT 0")
    monkeypatch.setattr(tarfile.TarFile, "add", write)
    with pytest.raises(backups.BackupError, match=f"no space is left in {tmp_path}/bad: .*--into"):
        backups.back_up(tmp_path, database_url, "key", tmp_path / "bad", now)
    assert not any((tmp_path / "bad").iterdir())


def test_backup_waits_for_a_migration_and_holds_off_the_next(database_url: str) -> None:
    """pg_dump failed when a view was replaced: "could not open relation with OID"."""
    with psycopg.connect(database_url, autocommit=True) as migration:
        migration.execute("SELECT pg_advisory_lock(%s)", [Lock.MIGRATE])
        threading.Timer(0.3, migration.execute, ["SELECT pg_advisory_unlock_all()"]).start()
        with backups.without_migration(database_url):
            assert migration.execute("SELECT pg_try_advisory_lock(%s)", [Lock.MIGRATE]).fetchall() == [(False,)]


@pytest.mark.parametrize("name", [backups.KEY, backups._LAST])
def test_file_that_cannot_be_written_as_a_whole_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A process that was killed left an empty key, with which nothing starts, or a record that no doctor could read."""
    file = tmp_path / name
    file.write_text("previous")
    state: list[str] = []

    def killed(*_: object) -> None:
        state.append(file.read_text())
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        backups._write(file, "next")
    assert state == ["previous"]
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("key", "is_warned"), [("", False), ("restored", False), ("another", True)])
def test_restore_warns_of_a_key_that_overrides_the_one_of_the_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, capsys: pytest.CaptureFixture[str],
    key: str, is_warned: bool,
) -> None:  # fmt: skip
    settings.DATA_DIR, settings.ENV = tmp_path, replace(settings.ENV, secret_key=key)

    def restore(*_: object) -> int:
        (tmp_path / backups.KEY).write_text("restored\n")
        return 4

    monkeypatch.setattr(backups, "restore", restore)
    call_command("restore", "a.tar")
    output = capsys.readouterr()
    assert "restored 4 jobs" in output.out
    assert ("GPUSCHED_SECRET_KEY is set" in output.err) is is_warned


def test_embedded_database_ends_with_a_killed_backup(tmp_path: Path) -> None:
    """Otherwise the next start finds it running in its directory, and fails."""
    program = (
        "import sys, time; from pathlib import Path; from gpusched.lib.process import backups\n"
        "with backups.database(Path(sys.argv[1]), '') as url: print(url, flush=True); time.sleep(600)"
    )
    tmp_path.chmod(0o755)
    command = [sys.executable, "-c", program, str(tmp_path)]
    server = Server(tmp_path / "postgres")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as backup:
        try:
            assert backup.stdout is not None
            assert backup.stdout.readline().startswith("postgresql://")
            pid = int((server.data / "postmaster.pid").read_text().split()[0])
            backup.kill()
            wait_for(lambda: not psutil.pid_exists(pid), 30, "PostgreSQL to end")
        finally:
            server.remove()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_backup_that_is_killed_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    """pg_dump went on. `timeout`, and systemd, end a command with SIGTERM: each time a whole dump and the key stayed.
    What SIGKILL leaves, the next backup deletes, but not what another one writes at this moment."""
    into, pid = tmp_path / "backups", tmp_path / "pid"
    (tmp_path / "pg_dump").write_text(f"#!/bin/sh\necho $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600\n")
    (tmp_path / "pg_dump").chmod(0o755)
    program = (
        "import sys; from datetime import UTC, datetime; from pathlib import Path\n"
        "from gpusched.lib.process.backups import back_up; place = Path(sys.argv[1])\n"
        f"back_up(place, {NO_DATABASE!r}, 'key', place / 'backups', datetime.now(UTC))"
    )
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], env=path) as backup:
        wait_for(pid.exists, 30, "pg_dump to run")
        fail_to_back_up(into)
        assert len(list(into.iterdir())) == 1
        backup.send_signal(number)
        assert backup.wait(30) == (143 if number == signal.SIGTERM else -number)
    wait_for(lambda: not psutil.pid_exists(int(pid.read_text())), 10, "pg_dump to end")
    if number == signal.SIGKILL:
        fail_to_back_up(into)
    assert not any(into.iterdir())


def fail_to_back_up(into: Path) -> None:
    with pytest.raises(backups.BackupError):
        backups.back_up(into.parent, NO_DATABASE, "key", into, datetime.now(UTC))


@pytest.mark.parametrize("command", [["backup"], ["restore", "a.tar"]])
def test_database_that_cannot_be_used_is_reported_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, command: list[str]
) -> None:
    def refuse(*_: object) -> None:
        raise psycopg.OperationalError("connection refused")

    settings.DATA_DIR = tmp_path
    monkeypatch.setattr("gpusched.management.commands.backup.database_url", lambda: "postgresql://127.0.0.1:1/gpusched")
    monkeypatch.setattr(backups, "restore", refuse)
    monkeypatch.setattr(backups, "back_up", refuse)
    with pytest.raises(CommandError, match=r"(?i)connection refused"):
        call_command(*command)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write for another user")
def test_root_backs_up_and_restores_for_the_owner_of_the_data_directory(tmp_path: Path) -> None:
    """An administrator on a machine with the systemd units, whose user must be able to read all of it afterwards."""
    owner, now = pwd.getpwnam("daemon").pw_uid, datetime(2026, 1, 1, tzinfo=UTC)
    data_dir = Path(tempfile.mkdtemp(prefix="gpusched-owned-"))  # other users enter /tmp, not `tmp_path`
    (data_dir / backups.KEY).write_text("key")
    for path in (data_dir, data_dir / backups.KEY):
        os.chown(path, owner, owner)
    with backups.database(data_dir, "") as url, psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(backups.BackupError, match="the database is empty"):
            backups.back_up(data_dir, url, "key", tmp_path, now)
        connection.execute("CREATE TABLE person (id int)")
        file = backups.back_up(data_dir, url, "key", data_dir / "backups", now)
        elsewhere = backups.back_up(data_dir, url, "key", tmp_path, now)
    backups.restore(file, data_dir, "", lambda url: "SELECT 0")
    # A copy of PostgreSQL's programs is there if the owner cannot enter this checkout.
    files = [path for path in data_dir.rglob("*") if "wheel" not in path.parts]
    assert {path.lstat().st_uid for path in files} == {owner}
    assert (elsewhere.stat().st_uid, elsewhere.stat().st_mode & 0o777) == (0, 0o600)
    shutil.rmtree(data_dir)
