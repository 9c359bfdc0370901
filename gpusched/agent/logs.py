"""Ships the output of jobs by offset: the server says how much it has, the agent sends from there, to the last byte."""

import asyncio
import contextlib
import logging
import os

import httpx
import msgspec

from gpusched.agent.node import Node
from gpusched.agent.ranks import Rank
from gpusched.protocol.messages import LogAnswer

logger = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(LogAnswer).decode
PIECE_BYTES = 256 * 1024
# How often files are looked at: a page that follows a log should feel live, 1,600 files should cost nothing.
LOOK_SECONDS = 0.4
PAUSE_SECONDS = 2.0


class _NotNow(Exception):
    """The server cannot take it at present."""


async def keep_shipping(node: Node, http: httpx.AsyncClient) -> None:
    """Never ends. What cannot be sent stays in its file."""
    while True:
        # Nothing runs, nothing to look at: 200 idle nodes in one agent cost nothing.
        patience = LOOK_SECONDS if node.ranks.known else None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(node.log_grew.wait(), patience)
        node.log_grew.clear()
        try:
            for rank in list(node.ranks.known.values()):
                await _ship(node, rank, http)
        except (_NotNow, httpx.HTTPError, msgspec.DecodeError) as error:
            logger.debug("%s: logs wait: %s", node.identity.name, error)
            await asyncio.sleep(PAUSE_SECONDS)


async def _ship(node: Node, rank: Rank, http: httpx.AsyncClient) -> None:
    if rank.log_dropped or (rank.started is None and rank.ended is None):
        return
    try:
        size = os.stat(node.ranks.log_path(rank.key)).st_size
    except FileNotFoundError:
        return
    if size == 0 or (rank.log_sent is not None and rank.log_sent >= size):
        return
    if rank.log_sent is None:
        # After a restart of the agent only the server knows how far it got.
        await _send(node, rank, 0, b"", http)
    while not rank.log_dropped and rank.log_sent is not None and rank.log_sent < size:
        offset = rank.log_sent
        piece = await asyncio.to_thread(_read, node.ranks.log_path(rank.key), offset)
        await _send(node, rank, offset, piece, http)
        if rank.log_sent == offset:
            raise _NotNow(f"the log of {rank.key} does not grow on the server")


def _read(path: str, offset: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(PIECE_BYTES)


async def _send(node: Node, rank: Rank, offset: int, data: bytes, http: httpx.AsyncClient) -> None:
    answer = await http.post(
        f"{node.identity.url}/agent/logs",
        params={"key": rank.key, "offset": str(offset)},
        content=data,
        headers={"Authorization": f"Bearer {node.identity.credential}"},
    )
    if answer.status_code == 404:
        # Not this node's, as far as the server knows: nobody will ever read it.
        rank.log_dropped = True
    elif answer.status_code != 200:
        raise _NotNow(f"HTTP {answer.status_code}")
    else:
        rank.log_sent = _decode(answer.content).size
