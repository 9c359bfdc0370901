"""The secrets of a rank as files that only its user reads: in memory where there is such a file system, and gone with
the rank. Standard library only."""

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpusched.agent.rank_files import removal

# Of what Linux keeps in memory, the only place that is there for every user.
MEMORY = "/dev/shm"  # noqa: S108 - a directory of one's own is made in it, and looked at  # nosec B108
KEY = "secrets_dir"  # in spec.json


def write(directory: Path, secrets: Mapping[str, str], account: Mapping[str, Any] | None) -> str:
    """Writes one file (0400) for each secret of the rank in a directory; gives where. OSError if that cannot be."""
    target = f"{_home(directory)}/{_name(directory)}"
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


def remove(directory: Path, spec: Mapping[str, Any] | None = None) -> None:
    """Removes those of a rank, if it has any, also where no spec.json came to say where they are."""
    told = (spec or {}).get(KEY)
    for target in (told, *(f"{home}/{_name(directory)}" for home in (_in_memory(), directory))):
        if isinstance(target, str):
            removal.remove(target)


def sweep(ranks: Path) -> None:
    """Removes those of ranks below this directory that are not there any more."""
    there = {_name(rank) for rank in ranks.iterdir()}
    with contextlib.suppress(OSError):
        for name in os.listdir(_in_memory()):
            if name.startswith(_family(ranks)) and name not in there:
                removal.remove(f"{_in_memory()}/{name}")


def _name(directory: Path) -> str:
    """The same for the same rank, without naming it, and beginning alike for all ranks of one node."""
    return _family(directory.parent) + hashlib.sha256(bytes(directory)).hexdigest()[:16]


def _family(ranks: Path) -> str:
    return hashlib.sha256(bytes(ranks)).hexdigest()[:16]


def _in_memory() -> str:
    return f"{MEMORY}/gpusched-{os.geteuid()}"


def _home(directory: Path) -> str:
    """In memory in a directory that is this user's own, whoever made one of that name before; else in the rank's."""
    home = _in_memory()
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            os.mkdir(home, 0o700)
        found = os.lstat(home)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            os.chmod(home, 0o711 if os.geteuid() == 0 else 0o700)
            return home
    return str(directory)
