"""Root gives what it writes into a data directory to the owner of that directory, the Unix user of the server."""

import os
from pathlib import Path
from typing import TextIO


def give_to_owner(*paths: Path) -> None:
    """As root, give each of these files to the owner of its directory; as another user, change nothing."""
    if os.geteuid() == 0:
        for path in paths:
            place = path.parent.stat()
            os.chown(path, place.st_uid, place.st_gid)


def open_lock(data_dir: Path) -> TextIO:
    """Open the file that is locked while gpusched, or its embedded database, runs with this data directory."""
    file = (data_dir / "up.lock").open("w")
    give_to_owner(data_dir / "up.lock")
    return file
