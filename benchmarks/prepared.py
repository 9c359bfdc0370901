"""A data directory after its first start, made once and copied: a `Stack` is ready in a third of the time.

Each process makes its own, or all that are given STACK_TEMPLATE one, so that it never outlives a change of the code."""

import atexit
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from gpusched.lib.db.embedded import Server
from gpusched.lib.process.one_machine import ROOT

_PASSWORD = "admin_password"
_POSTGRES = "postgres"


def copy_to(data_dir: Path) -> str:
    """Makes `data_dir`, which must not exist: migrated, with the first admin, tenant and tokens; gives the admin's
    password. What points to other places (sockets, a database below /var/lib) is not copied but made anew."""
    template = _template()
    data_dir.mkdir(mode=0o755)
    made, own = (Server(place / _POSTGRES).data for place in (template, data_dir))
    for path, into in (
        (template / "secret_key", data_dir),
        (template / "tokens", data_dir),
        (made.parent / "password", own.parent),
        (made, own.parent),
    ):
        subprocess.run(["cp", "-a", str(path), str(into)], check=True)
    return (template / _PASSWORD).read_text()


def outside() -> dict[str, str]:
    """The environment without what is meant for another gpusched."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("GPUSCHED_", "DATABASE_URL", "DJANGO_"))}


def remove(place: Path) -> None:
    """Takes a template away, wherever its database lies."""
    Server(place / "data" / _POSTGRES).remove()
    shutil.rmtree(place, ignore_errors=True)


@cache
def _template() -> Path:
    given = os.environ.get("STACK_TEMPLATE")
    place = Path(given or tempfile.mkdtemp(prefix="gpusched-template-"))
    place.mkdir(exist_ok=True)
    place.chmod(0o755)  # PostgreSQL's user goes through it
    if not given:
        atexit.register(remove, place)
    template = place / "data"
    with (place / "lock").open("w") as lock:  # of several processes one makes it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (template / _PASSWORD).exists():
            _make(template)
    return template


def _make(template: Path) -> None:
    """Prepare as `up` does before it starts its parts (gpusched/lib/process/one_machine.py)."""
    shutil.rmtree(template, ignore_errors=True)
    template.mkdir(mode=0o755)
    database = Server(template / _POSTGRES)
    database.start()
    try:
        own = {"GPUSCHED_DATA_DIR": str(template), "GPUSCHED_DATABASE_URL": database.url()}
        done = subprocess.run(
            [sys.executable, "manage.py", "bootstrap"], cwd=ROOT, env={**outside(), **own}, text=True,
            stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
    finally:
        database.stop()
    (template / _PASSWORD).write_text(json.loads(done.stdout.splitlines()[-1])[_PASSWORD])
