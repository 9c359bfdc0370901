"""How a supervisor tells its agent that something happened to a rank. Standard library only."""

import contextlib
import json
import os
import socket
from pathlib import Path


def notify(path: str, directory: Path) -> None:
    """Has the agent look at the rank of this directory; one that is away will look by itself when it is back."""
    home, _, name = path.rpartition("/")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as bell, contextlib.suppress(OSError):
        # The kernel refuses socket paths of 108 bytes and more; by way of a handle of its directory each one fits.
        handle = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            bell.sendto(json.dumps(str(directory)).encode(), f"/proc/self/fd/{handle}/{name}")
        finally:
            os.close(handle)
