"""Notify the agent of a change to a rank, from its supervisor. Standard library only."""

import contextlib
import json
import os
import socket
from typing import Any


def notify(path: str, directory: str, end: dict[str, Any] | None = None) -> None:
    """Ask the agent to read the rank in this directory. An agent that is down reads it when it is back. `end`: its end,
    if it cannot be written."""
    home, _, name = path.rpartition("/")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as notifications,
        contextlib.suppress(OSError),
    ):
        # The kernel refuses socket paths of 108 bytes and more; a path through a handle of its directory always fits.
        handle = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            notifications.sendto(
                json.dumps(directory if end is None else [directory, end]).encode(), f"/proc/self/fd/{handle}/{name}"
            )
        finally:
            os.close(handle)
