"""A data directory after its first start, created once and copied: a `Stack` is ready in a third of the time.

Each process creates its own, or all with the same STACK_TEMPLATE share one; it never outlives a code change.
"""

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

from gpusched.installation import SERVER_ROOT
from gpusched.lib.db.embedded import Server

_PASSWORD = "admin_password"
_POSTGRES = "postgres"


def copy_to(data_dir: Path) -> str:
    """Create `data_dir`, which must not exist: migrated, with the first admin, tenant and tokens; return the admin's
    password. Links to other places (sockets, a database below /var/lib) are created anew."""
    template = _template()
    data_dir.mkdir(mode=0o755)
    source, target = (Server(place / _POSTGRES).data for place in (template, data_dir))
    for path, into in (
        (template / "secret_key", data_dir),
        (template / "tokens", data_dir),
        (source.parent / "password", target.parent),
        (source, target.parent),
    ):
        subprocess.run(["cp", "-a", str(path), str(into)], check=True)
    return (template / _PASSWORD).read_text()


def outside() -> dict[str, str]:
    """Return the environment without the variables of another gpusched."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("GPUSCHED_", "DATABASE_URL", "DJANGO_"))}


def remove(place: Path) -> None:
    """Remove a template, wherever its database is."""
    Server(place / "data" / _POSTGRES).remove()
    shutil.rmtree(place, ignore_errors=True)


@cache
def _template() -> Path:
    shared = os.environ.get("STACK_TEMPLATE")
    place = Path(shared or tempfile.mkdtemp(prefix="gpusched-template-"))
    place.mkdir(exist_ok=True)
    place.chmod(0o755)  # PostgreSQL's user must be able to traverse it
    if not shared:
        atexit.register(remove, place)
    template = place / "data"
    with (place / "lock").open("w") as lock:  # one of several processes creates it
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
        variables = {"GPUSCHED_DATA_DIR": str(template), "GPUSCHED_DATABASE_URL": database.url()}
        result = subprocess.run(
            [sys.executable, "manage.py", "bootstrap"], cwd=SERVER_ROOT, env={**outside(), **variables}, text=True,
            stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
    finally:
        database.stop()
    (template / _PASSWORD).write_text(json.loads(result.stdout.splitlines()[-1])[_PASSWORD])
