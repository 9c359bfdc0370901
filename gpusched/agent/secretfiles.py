"""The secrets of a rank as files that only its user reads: in memory where there is such a file system, and gone with
the rank. Standard library only."""

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpusched.agent import removal

# Of what Linux keeps in memory, the only place that is there for every user.
MEMORY = "/dev/shm"  # noqa: S108 - a directory of one's own is made in it, and looked at
KEY = "secrets_dir"  # in spec.json


def write(directory: Path, secrets: Mapping[str, str], account: Mapping[str, Any] | None) -> str:
    """Writes one file (0400) for each secret of the rank in a directory; gives where. OSError if that cannot be."""
    target = f"{_home(directory)}/{hashlib.sha256(bytes(directory)).hexdigest()[:32]}"
    removal.remove(target)  # of a preparation that was cut short
    os.mkdir(target, 0o700)
    for name, value in secrets.items():
        handle = os.open(f"{target}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
        try:
            if account:
                os.fchown(handle, account["uid"], account["gid"])
            data = value.encode()
            while data:
                data = data[os.write(handle, data) :]
        finally:
            os.close(handle)
    if account:
        os.chown(target, account["uid"], account["gid"])
    return target


def remove(spec: Mapping[str, Any] | None) -> None:
    """Removes those of a rank, if it has any."""
    if spec is not None and (target := spec.get(KEY)):
        removal.remove(target)


def _home(directory: Path) -> str:
    """In memory in a directory that is this user's own, whoever made one of that name before; else in the rank's."""
    home = f"{MEMORY}/gpusched-{os.geteuid()}"
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            os.mkdir(home, 0o700)
        found = os.lstat(home)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            os.chmod(home, 0o711 if os.geteuid() == 0 else 0o700)
            return home
    return str(directory)
