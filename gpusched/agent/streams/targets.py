"""Connect to a port or a Unix socket of one rank, and to nothing else: not to another rank, nor to the node's own
services."""

import asyncio
import os
import socket
import stat
from collections.abc import Callable, Sequence
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
_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
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
    port = await lane.run(partial(_find, networks, directory, target.port))
    connection = await _connected_tcp(lane, port)
    try:
        # Another process may have taken the port meanwhile.
        await lane.run(partial(port.require_own, connection.getsockname()[1]))
    except BaseException:
        connection.close()
        raise
    return connection


@dataclass(frozen=True)
class _Port:
    """A port of a rank. `addresses`: the loopback addresses to try. `make_socket` returns a socket in the network of
    the rank. `require_own` gets the connection's own port, and raises Refused if it is not one to the rank."""

    number: int
    addresses: Sequence[tuple[socket.AddressFamily, str]]
    make_socket: Callable[[socket.AddressFamily], socket.socket]
    require_own: Callable[[int], None]


async def _connected_tcp(lane: Lane, port: _Port) -> socket.socket:
    """Connect to the first address that accepts. Raises Refused."""
    failure = "it does not answer"
    for family, host in port.addresses:
        connection = await lane.run(partial(port.make_socket, family))
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            address = (host, port.number)
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(connection, address), CONNECT_SECONDS)
        except OSError as error:
            connection.close()
            failure = str(error) or failure
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise Refused(Reason.NOT_LISTENING, f"port {port.number} accepts no connection: {failure}")


def _find(networks: Networks, directory: Path, port: int) -> _Port:
    """Return a port of a rank. Raises Refused."""
    spec = rank_dir.read(directory, rank_dir.SPEC) or {}
    if "container" not in spec:
        return _own_port(partial(_processes, directory), port)
    try:
        container = networks.container(spec)
        if container.has_own_network():  # whatever listens there belongs to the rank
            return _Port(port, _LOOPBACK, partial(_socket_inside, networks, container), lambda _: None)
    except Unreachable as error:
        raise Refused(Reason.NOT_LISTENING, str(error)) from error
    except OSError as error:
        raise Refused(Reason.NOT_LISTENING, "the rank's container does not run") from error
    return _own_port(partial(_processes_of, container), port)


def _socket_inside(networks: Networks, container: Container, family: socket.AddressFamily) -> socket.socket:
    try:
        return networks.socket(container, family)
    except Unreachable as error:
        raise Refused(Reason.NOT_LISTENING, str(error)) from error


def _processes(directory: Path) -> list[int]:
    """Return the processes of a rank without a container."""
    supervisor = rank_dir.holder(directory)
    return processes.descendants(supervisor) if supervisor else []


def _processes_of(container: Container) -> list[int]:
    return [container.pid, *processes.descendants(container.pid)] if container.is_alive() else []


def _own_port(own: Callable[[], list[int]], port: int) -> _Port:
    """Return a port in the network of the node, if processes of the rank listen there. Raises Refused, with the same
    reason if another process does: which services a node has is no business of a job."""
    listeners = ports.listeners(port)
    if listeners is None or not ports.are_owned(listeners.inodes, own()):
        raise _not_listening(port)
    family = socket.AF_INET6 if ":" in listeners.host else socket.AF_INET
    return _Port(port, [(family, listeners.host)], socket.socket, partial(_require_own, own, port))


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
    """Return the uid of the rank's processes; in a container, the one in its command line."""
    owner = spec.get("account") or spec.get("container") or {}
    return int(owner.get("uid", os.geteuid()))


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
