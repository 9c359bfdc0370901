"""Lets what was written to a connection leave at the end of the same turn of the event loop.

Twisted asks the kernel first whether it may write, for each answer and each message to a page, and takes the question
back afterwards: measured, two thirds of what a write costs. Now that is asked only when the kernel took less than there
was."""

import asyncio
from typing import Any

from twisted.internet import reactor
from twisted.internet.tcp import Server

_loop: Any = reactor


def write_at_once() -> None:
    """For each connection that this process accepts. Relies on names of Twisted's own."""
    Server._leaves_soon = False  # type: ignore[attr-defined]
    Server.startWriting = _start  # type: ignore[method-assign]


def _start(connection: Any) -> None:
    if not connection._leaves_soon and connection not in _loop._writers:
        connection._leaves_soon = True
        asyncio.get_running_loop().call_soon(_leave, connection)


def _leave(connection: Any) -> None:
    """With the reactor's own handling of failures; what is left goes its usual way."""
    connection._leaves_soon = False
    if connection.connected:
        _loop._readOrWrite(connection, False)
    if connection.connected and (connection.offset < len(connection.dataBuffer) or connection._tempDataLen):
        _loop.addWriter(connection)
