"""Ships the output of jobs by offset: the server says how much it has, the agent sends from there, to the last byte
that the limit leaves (logcut.py)."""

import asyncio
import contextlib
import logging
import os
from functools import partial

import httpx
import msgspec

from gpusched.agent import logcut
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
                with contextlib.suppress(FileNotFoundError):  # forgotten meanwhile
                    await _ship(node, rank, http)
        except (_NotNow, httpx.HTTPError, msgspec.DecodeError) as error:
            logger.debug("%s: logs wait: %s", node.identity.name, error)
            await _keep_room(node)
            await asyncio.sleep(PAUSE_SECONDS)


async def _keep_room(node: Node) -> None:
    """While the server takes nothing, a job that prints without end must not fill the disk."""
    for rank in list(node.ranks.known.values()):
        with contextlib.suppress(FileNotFoundError):
            await node.in_thread(partial(_parts, node, rank))


async def _ship(node: Node, rank: Rank, http: httpx.AsyncClient) -> None:
    if rank.log_dropped or (rank.started is None and rank.ended is None):
        return
    try:
        size = os.stat(node.ranks.log_path(rank.key)).st_size
    except FileNotFoundError:
        return
    if size == rank.log_seen and rank.ended is None:
        return
    if size and rank.log_sent is None:
        # After a restart of the agent only the server knows how far it got, and how much it wants at most.
        await _send(node, rank, 0, b"", http)
    wanted = await node.in_thread(partial(_parts, node, rank))
    most = logcut.total(wanted)
    while not rank.log_dropped and rank.log_sent is not None and rank.log_sent < most:
        offset = rank.log_sent
        piece = await asyncio.to_thread(logcut.read, node.ranks.log_path(rank.key), wanted, offset, PIECE_BYTES)
        await _send(node, rank, offset, piece, http)
        if rank.log_sent == offset:
            raise _NotNow(f"the log of {rank.key} does not grow on the server")
    rank.log_seen = size


def _parts(node: Node, rank: Rank) -> list[logcut.Part]:
    """What is to be sent by now; what never will be is given back to the disk. In a thread."""
    is_final, path = rank.ended is not None, node.ranks.log_path(rank.key)
    size = os.stat(path).st_size
    limit = node.ranks.log_limit(rank, size)
    if limit is not None:
        rank.log_given = logcut.give_back(path, size, limit, rank.log_given)
    return logcut.parts(size, limit, is_final=is_final)


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
        told = _decode(answer.content)
        rank.log_sent = told.size
        node.ranks.wants_at_most(told.most_bytes)
