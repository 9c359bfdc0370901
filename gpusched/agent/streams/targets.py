"""Connect to a port or a Unix socket of one rank, and to nothing else: not to another rank, nor to the node's own
services."""

import asyncio
import os
import socket
import stat
from functools import partial
from pathlib import Path
from typing import Any

from gpusched.agent import processes
from gpusched.agent.rank_files import rank_dir, socket_dir
from gpusched.agent.streams import ports
from gpusched.agent.threads import Lane
from gpusched.protocol.streams import SOCKET_NAME, Open, Reason

CONNECT_SECONDS = 5.0
_CHECKS = 5
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """The target cannot be reached. The text is a sentence for the opener."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


async def connect(lane: Lane, directory: Path, target: Open) -> socket.socket:
    """Return a connection to a target of the rank in `directory`. Raises Refused. `lane`: for reading /proc, one target
    after the other."""
    if target.port is None:
        return await lane.run(partial(_unix, directory, target.socket or ""))
    listeners = await lane.run(partial(_owned, directory, target.port))
    connection = socket.socket(socket.AF_INET6 if ":" in listeners.host else socket.AF_INET)
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address = (listeners.host, target.port)
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(connection, address), CONNECT_SECONDS)
        # Another process may have taken the port meanwhile.
        await lane.run(partial(_require_own, directory, target.port, connection.getsockname()[1]))
    except OSError as error:
        connection.close()
        detail = f"port {target.port} accepts no connection: {error or 'it does not answer'}"
        raise Refused(Reason.NOT_LISTENING, detail) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _owned(directory: Path, port: int) -> ports.Listeners:
    """Return the sockets of the rank that listen on a port. Raises Refused, with the same reason if another process
    listens there: which services a node has is no business of a job."""
    spec = rank_dir.read(directory, rank_dir.SPEC) or {}
    if "container" in spec:
        detail = "the rank's container has its own network; listen on a Unix socket in GPUSCHED_SOCKET_DIR instead"
        raise Refused(Reason.UNSUPPORTED, detail)
    listeners = ports.listeners(port)
    supervisor = rank_dir.holder(directory)
    if listeners is None or supervisor is None:
        raise _not_listening(port)
    if not ports.are_owned(listeners.inodes, processes.descendants(supervisor)):
        raise _not_listening(port)
    return listeners


def _require_own(directory: Path, port: int, from_port: int) -> None:
    """Raise Refused unless a connection is one to the rank: accepted by it, or waiting at its socket. A program that
    serves one connection may have closed its listening socket by now, or have ended."""
    for _ in range(_CHECKS):
        inodes = _concerned(port, from_port)
        supervisor = rank_dir.holder(directory)
        if not inodes or (supervisor and ports.are_owned(inodes, processes.descendants(supervisor))):
            return
        if _concerned(port, from_port) == inodes:  # else their process has just ended
            break
    raise _not_listening(port)


def _concerned(port: int, from_port: int) -> set[str]:
    listeners, accepted = ports.listeners(port), ports.accepted(port, from_port)
    return {*(listeners.inodes if listeners else ()), *([accepted] if accepted else [])}


def _not_listening(port: int) -> Refused:
    return Refused(Reason.NOT_LISTENING, f"no process of the rank listens on port {port} of 127.0.0.1")


def _unix(directory: Path, name: str) -> socket.socket:
    """Connect to a socket in the rank's folder. No link is followed, and the handle names the very file that was
    checked: the job can replace names there at any moment."""
    spec = rank_dir.read(directory, rank_dir.SPEC) or {}
    folder = (spec.get("environment") or {}).get(socket_dir.VARIABLE)
    if not isinstance(folder, str):
        raise Refused(Reason.UNSUPPORTED, "the rank has no folder for sockets on that node")
    if not SOCKET_NAME.match(name):
        raise Refused(Reason.NOT_LISTENING, f"{name!r} is not a name for a socket")
    try:
        above = os.open(folder, _DIRECTORY)
        try:
            entry = os.open(name, _ENTRY, dir_fd=above)
        finally:
            os.close(above)
    except OSError as error:
        raise Refused(Reason.NOT_LISTENING, f"there is no socket {name} in GPUSCHED_SOCKET_DIR") from error
    try:
        return _connected(entry, name, _user(spec))
    finally:
        os.close(entry)


def _user(spec: dict[str, Any]) -> int:
    account = spec.get("account")
    return int(account["uid"]) if account else os.geteuid()


def _connected(entry: int, name: str, uid: int) -> socket.socket:
    status = os.fstat(entry)
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != uid:
        raise Refused(Reason.NOT_LISTENING, f"{name} in GPUSCHED_SOCKET_DIR is not a socket of the rank's user")
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    try:
        connection.connect(f"/proc/self/fd/{entry}")
    except OSError as error:  # also a full queue: it must not block this thread
        connection.close()
        raise Refused(Reason.NOT_LISTENING, f"socket {name} accepts no connection: {error.strerror}") from error
    return connection
