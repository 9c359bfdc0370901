"""Make sockets in the network of a rank's container, where podman and docker give it one of its own.

A small process joins the network and passes sockets back. It is a process because only one without threads can join
the user namespace of a rootless container. Standard library only."""

import contextlib
import ctypes
import os
import select
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusched.agent import processes
from gpusched.agent.containers import client

_ROOT = str(Path(__file__).resolve().parents[3])
_START = f"import sys; sys.path.insert(0, {_ROOT!r}); from gpusched.agent.streams.container_network import main; main()"
# In the order of joining: a network belongs to a user namespace.
_NAMESPACES = ("user", "net")
ANSWER_SECONDS = 5.0


class Unreachable(Exception):
    """The container's network cannot be joined. The text is a sentence."""


@dataclass(frozen=True)
class Container:
    """The first process of a running container, which (pid, start) identifies."""

    pid: int
    start: int

    def is_alive(self) -> bool:
        process = processes.inspect(self.pid)
        return process is not None and process.start == self.start

    def has_own_network(self) -> bool:
        """Return whether its network is another one than the agent's. Raises OSError."""
        return not _is_same("net", self.pid)


def find(spec: dict[str, Any]) -> Container:
    """Return the running container of a rank's spec.json. Raises Unreachable. Blocks, as it asks the runtime."""
    code, output = client.call(spec, "container", "inspect", "--format", "{{.State.Pid}}", client.name_of(spec))
    pid = int(output) if code == 0 and output.strip().isdigit() else 0
    process = processes.inspect(pid) if pid else None
    if process is None:
        raise Unreachable("the rank's container does not run")
    # An agent in a container of its own would see another process under this number.
    if not _is_of_container(pid, spec["container"]["id_file"]):
        raise Unreachable("the agent cannot see the processes of the rank's container")
    return Container(pid, process.start)


class Networks:
    """The networks of containers that have had streams: one process each, which ends with its container. Methods block;
    one thread at a time calls them."""

    def __init__(self) -> None:
        self._containers: dict[str, Container] = {}
        self._networks: dict[Container, Network] = {}

    def container(self, spec: dict[str, Any]) -> Container:
        """Return the container of a rank. Raises Unreachable."""
        name = client.name_of(spec)
        known = self._containers.get(name)
        if known is None or not known.is_alive():
            known = self._containers[name] = find(spec)
        return known

    def socket(self, container: Container, family: socket.AddressFamily) -> socket.socket:
        """Return a TCP socket in a container's network. Raises Unreachable."""
        network = self._networks.get(container)
        if network is None:
            self._drop_ended()
            network = self._networks[container] = Network(container)
        try:
            return network.socket(family)
        except OSError as error:
            self._networks.pop(container).close()
            raise Unreachable(f"the network of the rank's container cannot be joined: {error}") from error

    def _drop_ended(self) -> None:
        self._containers = {name: each for name, each in self._containers.items() if each.is_alive()}
        for container in [each for each in self._networks if not each.is_alive()]:
            self._networks.pop(container).close()

    def close(self) -> None:
        """Leave all networks."""
        for network in self._networks.values():
            network.close()
        self._networks.clear()


class Network:
    """The agent's side of a process in the network of a container."""

    def __init__(self, container: Container) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_SECONDS)
        handles = [theirs.fileno()]
        try:
            handles.append(os.pidfd_open(container.pid))
            handles += [os.open(f"/proc/{container.pid}/ns/{name}", os.O_RDONLY) for name in _NAMESPACES]
            if not container.is_alive():  # the handles may be another process's
                raise ProcessLookupError("the rank's container has ended")
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", _START, *map(str, handles)], pass_fds=handles,
                stdin=subprocess.DEVNULL, start_new_session=True, env={},
            )  # fmt: skip
        except OSError as error:
            self._socket.close()
            raise Unreachable(f"the network of the rank's container cannot be joined: {error}") from error
        finally:
            theirs.close()
            for handle in handles[1:]:
                os.close(handle)

    def socket(self, family: socket.AddressFamily) -> socket.socket:
        """Return a TCP socket. Raises OSError, also if the process has ended."""
        self._socket.send(bytes([family]))
        message, handles, _, _ = socket.recv_fds(self._socket, 200, 1)
        if not handles:
            raise OSError(message.decode(errors="replace") or "its process has ended")
        return socket.socket(fileno=handles[0])

    def close(self) -> None:
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


def main() -> None:
    """Join the namespaces of these handles, then make a socket for each request, until the agent closes its end or the
    container ends."""
    handle, container, *namespaces = map(int, sys.argv[1:])
    with socket.socket(fileno=handle) as agent:
        problem = _join(namespaces)
        while container not in select.select([handle, container], [], [])[0] and (request := agent.recv(1)):
            try:
                if problem:
                    raise OSError(problem)
                with socket.socket(request[0]) as made:
                    socket.send_fds(agent, [b"ok"], [made.fileno()])
            except OSError as error:
                agent.send(str(error).encode()[:200] or b"error")


def _join(handles: list[int]) -> str:
    """Join namespaces. Return what went wrong, or an empty text."""
    library = ctypes.CDLL(None, use_errno=True)
    for name, handle in zip(_NAMESPACES, handles, strict=True):
        # The kernel refuses to join the present user namespace again.
        if os.fstat(handle).st_ino != os.stat(f"/proc/self/ns/{name}").st_ino and library.setns(handle, 0) != 0:
            return f"{name} namespace: {os.strerror(ctypes.get_errno())}"
    return ""


def _is_same(namespace: str, pid: int) -> bool:
    return os.stat(f"/proc/{pid}/ns/{namespace}").st_ino == os.stat(f"/proc/self/ns/{namespace}").st_ino


def _is_of_container(pid: int, id_file: str) -> bool:
    """Return whether a process is in the cgroup of a container, which has the container's id in its name."""
    try:
        number = Path(id_file).read_text().strip()
        return bool(number) and number in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False
