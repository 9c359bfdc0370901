"""A standby that follows an embedded PostgreSQL."""

import shutil
from pathlib import Path

from gpusched.lib.db.embedded import Server


def start_pair(primary: Server, directory: Path) -> Server:
    """Copy the primary, which must not run, to `directory`. Start it, and the copy as its standby; return that."""
    standby = Server(directory, primary.settings)
    others = shutil.ignore_patterns("socket", "socket_directory", "log")
    shutil.copytree(primary.data.parent, standby.data.parent, ignore=others, dirs_exist_ok=True)
    _own_as(primary.data.parent, standby.data.parent)
    primary.start()
    (standby.data / "standby.signal").touch()
    with (standby.data / "postgresql.auto.conf").open("a") as conf:
        conf.write(f"primary_conninfo = '{primary.url('postgres')}'\n")
    standby.start()
    return standby


def _own_as(source: Path, copy: Path) -> None:
    for path in (source, *source.rglob("*")):
        target = copy / path.relative_to(source)
        if target.exists():
            shutil.chown(target, path.stat().st_uid, path.stat().st_gid)
