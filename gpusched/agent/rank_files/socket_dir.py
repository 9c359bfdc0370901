"""The folder of a rank for Unix sockets that streams reach: writable for the rank's user, on a path that is short
enough for a socket, and removed with the rank."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpusched.agent.rank_files import removal, secret_files
from gpusched.agent.rank_files.rank_dir import FULL

VARIABLE = "GPUSCHED_SOCKET_DIR"
# The kernel's limit for a socket's path is 107 bytes; gpusched/protocol/streams.py limits the names.
MAX_PATH_BYTES = 58
_PREFIX = "s"  # so that it is never taken for a directory of secrets


def make(directory: Path, account: Mapping[str, Any] | None) -> str | None:
    """Create the folder of a rank and return its path; None if every path is too long for sockets, or jobs have filled
    the memory. OSError if it fails."""
    path = f"{secret_files.home_of(directory)}/{_name(directory)}"
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        return None
    removal.remove(path)  # left by a preparation that was cut short
    try:
        os.mkdir(path, 0o700)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return None
    if account:
        os.chown(path, account["uid"], account["gid"])
    return path


def short_path(target: Path, folder: str) -> str:
    """Return a path of a directory that is short enough for sockets in it: its own, or that of a link in the folder. If
    jobs have filled the memory, its own in any case."""
    if len(bytes(target)) <= MAX_PATH_BYTES:
        return str(target)
    link = f"{folder}/.{target.name}"  # streams reach no such name
    try:
        os.symlink(target, link)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return str(target)
    return link


def remove(directory: Path) -> None:
    """Remove the folder of a rank, if it has one."""
    for home in (secret_files.in_memory(), directory):
        removal.remove(f"{home}/{_name(directory)}")


def sweep(ranks: Path) -> None:
    """Remove the folders of ranks that no longer exist below this directory."""
    existing = {_name(rank) for rank in ranks.iterdir()}
    family = f"{_PREFIX}{secret_files.family_of(ranks)[:8]}"
    with contextlib.suppress(OSError):
        for name in os.listdir(secret_files.in_memory()):
            if name.startswith(family) and name not in existing:
                removal.remove(f"{secret_files.in_memory()}/{name}")


def _name(directory: Path) -> str:
    name = secret_files.name_of(directory)
    return f"{_PREFIX}{name[:8]}{name[16:]}"
