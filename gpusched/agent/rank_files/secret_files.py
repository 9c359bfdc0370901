"""The secrets of a rank as files that only its user can read: in memory if possible, and removed with the rank."""

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpusched.agent.rank_files import removal
from gpusched.agent.rank_files.rank_dir import FULL, SECRETS_KEY

# The only in-memory directory of Linux that exists for every user.
MEMORY = "/dev/shm"  # noqa: S108 - only a checked directory of our own in it is used  # nosec B108


def write(directory: Path, secrets: Mapping[str, str], account: Mapping[str, Any] | None) -> str:
    """Write each secret of the rank to a file (0400) in a directory; return its path. OSError if it fails."""
    try:
        return _write(home_of(directory), directory, secrets, account)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return _write(str(directory), directory, secrets, account)  # jobs have filled the memory


def _write(home: str, directory: Path, secrets: Mapping[str, str], account: Mapping[str, Any] | None) -> str:
    target = f"{home}/{name_of(directory)}"
    removal.remove(target)  # left by a preparation that was cut short
    try:
        os.mkdir(target, 0o700)
        for name, value in secrets.items():
            _write_file(f"{target}/{name}", value.encode(), account)
        if account:
            os.chown(target, account["uid"], account["gid"])
    except OSError:
        removal.remove(target)
        raise
    return target


def _write_file(path: str, data: bytes, account: Mapping[str, Any] | None) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    try:
        if account:
            os.fchown(handle, account["uid"], account["gid"])
        while data:
            data = data[os.write(handle, data) :]
    finally:
        os.close(handle)


def remove(directory: Path, spec: Mapping[str, Any] | None = None) -> None:
    """Remove the secrets of a rank, if it has any, even without a spec.json that names their directory."""
    recorded = (spec or {}).get(SECRETS_KEY)
    for target in (recorded, *(f"{home}/{name_of(directory)}" for home in (in_memory(), directory))):
        if isinstance(target, str):
            removal.remove(target)


def sweep(ranks: Path) -> None:
    """Remove the secrets of ranks that no longer exist below this directory."""
    existing = {name_of(rank) for rank in ranks.iterdir()}
    with contextlib.suppress(OSError):
        for name in os.listdir(in_memory()):
            if name.startswith(family_of(ranks)) and name not in existing:
                removal.remove(f"{in_memory()}/{name}")


def name_of(directory: Path) -> str:
    """Return the rank's directory name: stable, without the rank's key, and with a common prefix for all ranks of a
    node."""
    return family_of(directory.parent) + hashlib.sha256(bytes(directory)).hexdigest()[:16]


def family_of(ranks: Path) -> str:
    """Return the common prefix of the names of all ranks of a node."""
    return hashlib.sha256(bytes(ranks)).hexdigest()[:16]


def in_memory() -> str:
    """Return this user's own directory in memory, which may not exist."""
    return f"{MEMORY}/gpusched-{os.geteuid()}"


def home_of(directory: Path) -> str:
    """Return the in-memory directory if it is this user's own, whoever created the name; else the rank's directory."""
    home = in_memory()
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            os.mkdir(home, 0o700)
        status = os.lstat(home)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            os.chmod(home, 0o711 if os.geteuid() == 0 else 0o700)
            return home
    return str(directory)
