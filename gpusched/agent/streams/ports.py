"""Find the sockets that listen on a TCP port of this machine's loopback address, and whether a rank owns them."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

_LISTENING = "0A"
# As the kernel prints them on little-endian machines: those that a connection to a loopback address can reach.
_V4 = {"00000000", "0100007F"}
_V6 = {"0" * 32, "0" * 24 + "01000000"}
_V4_IN_V6 = {"0000000000000000FFFF00000100007F", "0000000000000000FFFF000000000000"}


@dataclass(frozen=True)
class Listeners:
    """`host`: the loopback address to connect to. `inodes`: all sockets that may accept the connection."""

    host: str
    inodes: frozenset[str]


def listeners(port: int, proc: str = "/proc") -> Listeners | None:
    """Return who listens on a port, or None."""
    return _listeners(_tables(port, proc), port)


def concerned(port: int, from_port: int, proc: str = "/proc") -> set[str]:
    """Return the sockets that listen on a port, and the accepted one of a connection from `from_port`."""
    tables = _tables(port, proc)
    listening, inode = _listeners(tables, port), _accepted(tables, port, from_port)
    return {*(listening.inodes if listening else ()), *([inode] if inode else [])}


def accepted(port: int, from_port: int, proc: str = "/proc") -> str | None:
    """Return the socket of the process that has accepted a connection to `port` of this machine from its `from_port`;
    None while none has, or if it has closed it."""
    return _accepted(_tables(port, proc), port, from_port)


def _tables(port: int, proc: str) -> tuple[list[list[str]], list[list[str]]]:
    """Return the lines of both tables that contain this port. Each table takes the kernel milliseconds to print."""
    text = f":{port:04X}"
    return _lines(f"{proc}/net/tcp", text), _lines(f"{proc}/net/tcp6", text)


def _listeners(tables: tuple[list[list[str]], list[list[str]]], port: int) -> Listeners | None:
    v4 = _inodes(tables[0], port, _V4) | _inodes(tables[1], port, _V4_IN_V6)
    v6 = _inodes(tables[1], port, _V6)
    if not v4 and not v6:
        return None
    return Listeners("127.0.0.1" if v4 else "::1", frozenset(v4 | v6))


def _accepted(tables: tuple[list[list[str]], list[list[str]]], port: int, from_port: int) -> str | None:
    ends = f":{port:04X}", f":{from_port:04X}"
    for table in tables:
        for fields in table:
            if fields[1].endswith(ends[0]) and fields[2].endswith(ends[1]) and fields[9] != "0":
                return fields[9]
    return None


def are_owned(inodes: Iterable[str], pids: Iterable[int], proc: str = "/proc") -> bool:
    """Return whether processes among `pids` hold all of these sockets."""
    missing = {f"socket:[{inode}]" for inode in inodes}
    for pid in pids:
        missing -= _links(f"{proc}/{pid}/fd")
        if not missing:
            return True
    return not missing


def _inodes(lines: list[list[str]], port: int, addresses: set[str]) -> set[str]:
    local = {f"{address}:{port:04X}" for address in addresses}
    return {fields[9] for fields in lines if fields[3] == _LISTENING and fields[1] in local}


def _lines(path: str, text: str) -> list[list[str]]:
    """Return the fields of the lines that contain `text`; a busy node has thousands of others."""
    try:
        with open(path) as file:
            return [line.split() for line in file if text in line]
    except OSError:  # a kernel without IPv6
        return []


def _links(directory: str) -> set[str]:
    """Return what the file handles of a process point to; empty if it is gone or not readable."""
    links: set[str] = set()
    try:
        for handle in os.listdir(directory):
            try:
                links.add(os.readlink(f"{directory}/{handle}"))
            except OSError:  # closed meanwhile
                continue
    except OSError:
        return set()
    return links
