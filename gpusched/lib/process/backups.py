"""Back up and restore everything but the logs of jobs: the database and the secret key, in one file."""

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType

import psycopg
from psycopg.conninfo import conninfo_to_dict

from gpusched.lib.db import embedded
from gpusched.lib.db.connections import writable
from gpusched.lib.db.locks import Lock
from gpusched.lib.ownership import give_to_owner
from gpusched.lib.process.children import die_with_parent

DUMP, KEY = "database.dump", "secret_key"
# All tables and views, also those that a backup lacks: a newer version, or single sign-on, has added them since. Their
# foreign keys would keep those of the backup from being replaced. They are in `public`, or in the schema of the user's
# own name if there is one.
_DROP = """
DO $$
DECLARE statements text;
BEGIN
    SELECT string_agg(format('DROP %s IF EXISTS %I.%I CASCADE',
                             CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, current_schema(), relname), '; ')
      INTO statements FROM pg_class c
     WHERE relnamespace = to_regnamespace(quote_ident(current_schema())) AND relkind IN ('r', 'p', 'v') AND NOT EXISTS (
           SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e');
    IF statements IS NOT NULL THEN EXECUTE statements; END IF;
END $$;
"""
# An extension, or a schema with its name, or the comment on one, in the list of what a dump contains.
_OF_ADMINISTRATOR = re.compile(r"^\d+; \d+ \d+ (?:COMMENT - )?(?:EXTENSION|SCHEMA (?:- )?(\S+)) ")
Migrations = set[tuple[str, str]]
_MIGRATION = ("id", "app", "name", "applied")
_LAST = "last_backup.json"
_FILES = f"gpusched-{'[0-9]' * 8}T{'[0-9]' * 6}Z.tar"
_UNFINISHED, _LOCK = "unfinished-", "lock"
_NO_TLS = "\nThe embedded program has no TLS; if the database requires it, install PostgreSQL's client programs"
# The variable of each keyword of an address that has one.
_VARIABLES = {
    option.keyword.decode(): option.envvar.decode() for option in psycopg.pq.Conninfo.get_defaults() if option.envvar
}


class BackupError(RuntimeError):
    """The backup or the restore failed, with the reason as a sentence."""


def back_up(data_dir: Path, database_url: str, secret_key: str, directory: Path, now: datetime) -> Path:
    """Write a backup into `directory` and return its file, which only this user can read. gpusched may run."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    database_url = writable(database_url)  # a standby may be behind
    target = directory / f"gpusched-{now:%Y%m%dT%H%M%SZ}.tar"
    step = "a backup needs twice its size while it is written; --into names another directory"
    with _space_in(directory, step), _unfinished(directory) as place:
        dump, key, archive = (place / name for name in (DUMP, KEY, "backup.tar"))
        _run("pg_dump", ["--format=custom", "--no-owner", f"--file={dump}"], database_url)
        _require_tables(database_url)
        key.write_text(secret_key)
        archive.touch(mode=0o600)
        with tarfile.open(archive, "w") as tar:
            tar.add(dump, DUMP)
            tar.add(key, KEY)
        with archive.open("rb") as file:
            os.fsync(file.fileno())
        archive.rename(target)
    if directory.parent.absolute() == data_dir.absolute():  # elsewhere only this user may read it
        give_to_owner(directory, target)
    _write(data_dir / _LAST, json.dumps({"at": now.isoformat(), "file": str(target.absolute())}))
    return target


def remove_older(latest: Path, keep: int) -> list[Path]:
    """Delete the backups in the directory of `latest`, except for that one and the `keep` - 1 latest others. Return
    the deleted files. `latest` remains even if the clock was ahead when others were made."""
    others = sorted(set(latest.parent.glob(_FILES)) - {latest}, reverse=True)
    for file in others[keep - 1 :]:
        file.unlink(missing_ok=True)
    return others[keep - 1 :]


def last_backup(data_dir: Path) -> tuple[datetime, Path] | None:
    """Return when the latest backup was made, and its file; None if there was none."""
    try:
        record = json.loads((data_dir / _LAST).read_text())
    except FileNotFoundError:
        return None
    return datetime.fromisoformat(record["at"]), Path(record["file"])


def restore(
    archive: Path,
    data_dir: Path,
    database_url: str,
    prepare: Callable[[str], str],
    check: Callable[[Migrations], object] = lambda migrations: None,
) -> int:
    """Replace the database and the secret key by those of a backup. gpusched must not run.

    `prepare` gets the URL of the database before, and returns statements for the end of the same transaction: this
    process may be killed, and a web process that still runs may write. Return the number that the last one selects.
    `check` gets the migrations of the backup before anything is changed, and may raise an error.
    `database_url`: empty for the embedded server, which this starts meanwhile. A restore that fails changes nothing."""
    with _unfinished(data_dir) as place:  # beside the data: the statements need as much space
        with _space_in(data_dir, "the unpacked backup needs it"):
            try:
                _unpack(archive, place)
            except (OSError, KeyError, tarfile.TarError) as error:
                raise BackupError(f"{archive} is not a backup of gpusched: {error}") from error
        with database(data_dir, database_url) as url, _stopped(url):
            check(_migrations(place / DUMP, url))
            drop, statements, prepared = (place / name for name in ("drop.sql", "restore.sql", "prepared.sql"))
            drop.write_text(_DROP)
            prepared.write_text(f"RESET search_path; {prepare(url)}")  # the statements of a backup clear it
            with _space_in(data_dir, "the unpacked backup needs it"):
                _write_statements(place / DUMP, statements, url)
            options = ["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]
            files = [f"--file={file}" for file in (drop, statements, prepared)]
            output = _run("psql", [*options, "--single-transaction", *files], url)
        _write(data_dir / KEY, (place / KEY).read_text())
    return int(output.split()[-1])


def _write_statements(dump: Path, statements: Path, url: str) -> None:
    """Write the statements of a backup, but for what belongs to the administrator of its server: the user of the
    database may neither drop nor create extensions, nor perhaps schemas, and another server lacks the roles and
    tablespaces."""
    with psycopg.connect(url) as connection:
        schemas = {name for (name,) in connection.execute("SELECT nspname FROM pg_namespace")}
    contents, kept = _run("pg_restore", ["--list", str(dump)], url), dump.with_suffix(".list")
    entries = [(line, _OF_ADMINISTRATOR.search(line)) for line in contents.splitlines()]
    kept.write_text("\n".join(line for line, found in entries if not found or found[1] not in {None, *schemas}))
    options = ["--clean", "--if-exists", "--no-owner", "--no-privileges", "--no-publications", "--no-subscriptions"]
    _run("pg_restore", [*options, "--no-tablespaces", f"--use-list={kept}", f"--file={statements}", str(dump)], url)


def _migrations(dump: Path, url: str) -> Migrations:
    """Return the applied migrations of a backup, as (app, name)."""
    content = _run("pg_restore", ["--data-only", "--table=django_migrations", "--file=-", str(dump)], url)
    fields = [line.split("\t") for line in content.splitlines()]
    return {(row[1], row[2]) for row in fields if len(row) == len(_MIGRATION)}


def _require_tables(url: str) -> None:
    """Refuse an empty database: its backup would replace the one that matters."""
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT 1 FROM pg_tables WHERE schemaname = current_schema() LIMIT 1")
        is_empty = found.fetchone() is None
    if is_empty:
        step = "check GPUSCHED_DATABASE_URL and GPUSCHED_DATA_DIR"
        raise BackupError(f"there is nothing to back up: the database is empty; {step}")


@contextmanager
def without_migration(database_url: str) -> Iterator[None]:
    """Wait for a migration, and let none begin meanwhile: pg_dump fails if a table or view changes as it reads it."""
    with psycopg.connect(writable(database_url), autocommit=True) as connection:
        connection.execute("SET statement_timeout = 0")
        connection.execute("SET lock_timeout = 0")
        connection.execute("SELECT pg_advisory_lock_shared(%s)", [Lock.MIGRATE])
        yield


@contextmanager
def database(data_dir: Path, database_url: str) -> Iterator[str]:
    """Yield the address of the database. Without `database_url`, start the embedded server meanwhile."""
    if database_url:
        yield writable(database_url)
        return
    server = embedded.Server(data_dir / "postgres")
    server.start(preexec=die_with_parent(signal.SIGINT))
    try:
        yield server.url()
    finally:
        server.stop()


@contextmanager
def _stopped(url: str) -> Iterator[None]:
    """Require that no worker runs cycles in the database, on any machine, and let none begin meanwhile."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", [Lock.LEADER]).fetchone()
        if not row or not row[0]:
            raise BackupError("gpusched is running: a worker runs cycles in this database; stop all parts first")
        yield


@contextmanager
def _space_in(directory: Path, step: str) -> Iterator[None]:
    """Name the directory if its disk is full: the errors of a write, and of PostgreSQL's programs, do not."""
    try:
        yield
    except (BackupError, OSError) as error:
        if os.strerror(errno.ENOSPC) not in str(error):
            raise
        raise BackupError(f"no space is left in {directory}: free some, and try again; {step}") from error


@contextmanager
def _unfinished(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory in `directory`. SIGTERM, as of `timeout` and systemd, deletes it, too: it has all
    data and the key, and a copy would stay of each backup that took too long. The next call deletes what SIGKILL
    left."""
    _delete_abandoned(directory)
    previous = signal.signal(signal.SIGTERM, _exit)
    try:
        with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=directory) as place, _locked(Path(place)):
            yield Path(place)
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Mark a directory as in use. The file gets its name when it is locked, so an unlocked one is abandoned."""
    unnamed = place / f"{_LOCK}.new"
    with unnamed.open("w") as lock:
        with suppress(OSError):  # a file system without locks: nothing deletes the directory then
            fcntl.flock(lock, fcntl.LOCK_EX)
            unnamed.rename(place / _LOCK)
        yield


def _delete_abandoned(directory: Path) -> None:
    for place in directory.glob(f"{_UNFINISHED}*"):
        with suppress(OSError), (place / _LOCK).open("r+") as lock:  # it is in use, or another user's
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(place, ignore_errors=True)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _unpack(archive: Path, place: Path) -> None:
    """Write the two files of a backup into `place`. Not by `extractall`: Python 3.11.2 of Debian 12 has no `filter`."""
    with tarfile.open(archive) as tar:
        for name in (DUMP, KEY):
            content = tar.extractfile(name)
            if content is None:
                raise KeyError(f"{name} is not a file")
            with content, (place / name).open("wb") as target:
                shutil.copyfileobj(content, target)


def _write(path: Path, text: str) -> None:
    """Replace a file, which only this user can read, as a whole or not at all: this process may be killed."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(handle)
        give_to_owner(Path(temporary))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _run(program: str, arguments: list[str], url: str) -> str:
    """Run a program of PostgreSQL, and return its output. It gets the address by variables: other users can read a
    command line."""
    parts = conninfo_to_dict(url)
    variables = {variable: str(parts[name]) for name, variable in _VARIABLES.items() if parts.get(name)}
    # The embedded server needs programs of its own version, or newer ones.
    is_embedded = str(parts.get("host", "")).startswith("/")
    path = None if is_embedded else shutil.which(program)
    result = _call(path or str(embedded.client_program(program)), arguments, variables)
    # Debian's programs may be older than the server, or than the one that wrote the backup.
    if result.returncode and path and program != "psql":
        newer = _call(str(embedded.client_program(program)), arguments, variables)
        if newer.returncode:  # the reason may be that of either: both are too old, or the file is damaged
            result.stderr += newer.stderr
        else:
            result = newer
    if result.returncode:
        step = "" if path or is_embedded else _NO_TLS
        raise BackupError(f"{program} failed: {result.stderr.strip()[-2000:]}{step}")
    return result.stdout


def _call(program: str, arguments: list[str], variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a program, which ends with this process: a dump, or a restore, would otherwise go on without it."""
    return subprocess.run(
        [program, *arguments], env={**os.environ, **variables}, capture_output=True, text=True,
        preexec_fn=die_with_parent(),
    )  # fmt: skip
