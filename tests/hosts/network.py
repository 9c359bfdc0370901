"""Hosts for the test: network namespaces on one bridge, with an address each. Needs root and iproute2, iptables."""

import ctypes
import os
import subprocess
from contextlib import suppress
from typing import Literal, Self

_PREFIX, _NET, _SWITCH = "gpuhosts-", "10.77.0", "gpuhosts-switch"
NETWORK = f"{_NET}.0/24"
_CLONE_NEWNET = 0x40000000
Direction = Literal["both", "in", "out"]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class Host:
    """A namespace. Processes in it reach the other hosts alone."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.namespace = name, _PREFIX + name
        self.address = f"{_NET}.{number}"
        self._port = f"v{number}"
        _run("ip", "netns", "add", self.namespace)
        self._inside("ip", "link", "set", "lo", "up")
        _run("ip", "-n", _SWITCH, "link", "add", self._port, "type", "veth", "peer", "eth0", "netns", self.namespace)
        _run("ip", "-n", _SWITCH, "link", "set", self._port, "master", "bridge", "up")
        self._inside("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self._inside("ip", "link", "set", "eth0", "up")

    def _inside(self, *command: str) -> None:
        _run(*self.command(*command))

    def command(self, *command: str) -> list[str]:
        """Return the command that runs on this host."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def cut(self, direction: Direction = "both") -> None:
        """Drop what the host receives, sends, or both, without a word to either side."""
        for chain, device, ends in (("INPUT", "-i", ("in", "both")), ("OUTPUT", "-o", ("out", "both"))):
            if direction in ends:
                self._inside("iptables", "-A", chain, device, "eth0", "-j", "DROP")

    def mend(self) -> None:
        self._inside("iptables", "-F")


class Network:
    """`with Network() as network:` removes all hosts at the end; processes on them must have ended."""

    def __init__(self) -> None:
        self.hosts: list[Host] = []

    def __enter__(self) -> Self:
        _run("ip", "netns", "add", _SWITCH)
        _run("ip", "-n", _SWITCH, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", _SWITCH, "link", "set", "bridge", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for namespace in [*(host.namespace for host in self.hosts), _SWITCH]:
            with suppress(RuntimeError):
                _run("ip", "netns", "delete", namespace)

    def add(self, name: str) -> Host:
        host = Host(name, len(self.hosts) + 2)
        self.hosts.append(host)
        return host


def enter(host: Host) -> None:
    """Move this thread, and the threads that it starts later, to the host."""
    handle = os.open(f"/var/run/netns/{host.namespace}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {host.namespace}")
    finally:
        os.close(handle)
