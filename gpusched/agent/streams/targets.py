"""Connect to a port or a Unix socket of one rank, and to nothing else: not to another rank, nor to the node's own
services."""

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpusched.agent import processes
from gpusched.agent.rank_files import rank_dir, socket_dir
from gpusched.agent.streams import ports
from gpusched.agent.streams.container_network import Container, Networks, Unreachable
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


async def connect(lane: Lane, networks: Networks, directory: Path, target: Open) -> socket.socket:
    """Return a connection to a target of the rank in `directory`. Raises Refused. `lane`: for reading /proc, one target
    after the other."""
    if target.port is None:
        return await lane.run(partial(_unix, directory, target.socket or ""))
    container = await lane.run(partial(_container, networks, directory))
    if container is not None and container.has_own_network:
        return await _connect_inside(lane, networks, container.process, target.port)
    own = partial(_processes, directory, container)
    listeners = await lane.run(partial(_owned, own, target.port))
    family = socket.AF_INET6 if ":" in listeners.host else socket.AF_INET
    connection = await _connected_tcp(socket.socket(family), listeners.host, target.port)
    try:
        # Another process may have taken the port meanwhile.
        await lane.run(partial(_require_own, own, target.port, connection.getsockname()[1]))
    except BaseException:
        connection.close()
        raise
    return connection


async def _connected_tcp(connection: socket.socket, host: str, port: int) -> socket.socket:
    """Connect a socket. Raises Refused, and closes it then."""
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(connection, (host, port)), CONNECT_SECONDS)
    except OSError as error:
        connection.close()
        detail = f"port {port} accepts no connection: {error or 'it does not answer'}"
        raise Refused(Reason.NOT_LISTENING, detail) from error
    except BaseException:
        connection.close()
        raise
    return connection


@dataclass(frozen=True)
class _Box:
    process: Container
    has_own_network: bool


def _container(networks: Networks, directory: Path) -> _Box | None:
    """Return the container of a rank; None if it runs without one. Raises Refused."""
    spec = rank_dir.read(directory, rank_dir.SPEC) or {}
    if "container" not in spec:
        return None
    try:
        process = networks.container(spec)
        return _Box(process, process.has_own_network())
    except Unreachable as error:
        raise Refused(Reason.NOT_LISTENING, str(error)) from error
    except OSError as error:
        raise Refused(Reason.NOT_LISTENING, "the rank's container does not run") from error


async def _connect_inside(lane: Lane, networks: Networks, container: Container, port: int) -> socket.socket:
    """Connect in the network of a container: whatever listens there belongs to the rank."""
    refusal: Refused | None = None
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            connection = await lane.run(partial(networks.socket, container, family))
            return await _connected_tcp(connection, host, port)
        except Unreachable as error:
            refusal = refusal or Refused(Reason.NOT_LISTENING, str(error))
        except Refused as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def _processes(directory: Path, container: _Box | None) -> list[int]:
    """Return the processes of a rank."""
    if container is not None:
        pid = container.process.pid
        return [pid, *processes.descendants(pid)] if container.process.is_alive() else []
    supervisor = rank_dir.holder(directory)
    return processes.descendants(supervisor) if supervisor else []


def _owned(own: Callable[[], list[int]], port: int) -> ports.Listeners:
    """Return the sockets of the rank that listen on a port. Raises Refused, with the same reason if another process
    listens there: which services a node has is no business of a job."""
    listeners = ports.listeners(port)
    if listeners is None or not ports.are_owned(listeners.inodes, own()):
        raise _not_listening(port)
    return listeners


def _require_own(own: Callable[[], list[int]], port: int, from_port: int) -> None:
    """Raise Refused unless a connection is one to the rank: accepted by it, or waiting at its socket. A program that
    serves one connection may have closed its listening socket by now, or have ended."""
    for _ in range(_CHECKS):
        inodes = ports.concerned(port, from_port)
        if not inodes or ports.are_owned(inodes, own()):
            return
        if ports.concerned(port, from_port) == inodes:  # else their process has just ended
            break
    raise _not_listening(port)


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
