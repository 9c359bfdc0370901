"""Ships the output of jobs by offset: the server says how much it has, the agent sends from there, to the last byte
that the limit leaves (log_truncation.py)."""

import asyncio
import contextlib
import logging
import os
from functools import partial

import httpx
import msgspec

from gpusched.agent import answers
from gpusched.agent.node import Node
from gpusched.agent.rank_files import log_truncation
from gpusched.agent.ranks.rank_state import RankState
from gpusched.json_log import rank_fields
from gpusched.protocol.agent_messages import LogAnswer

logger = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(LogAnswer).decode
PIECE_BYTES = 256 * 1024
# How often files are looked at: a page that follows a log should feel live, 1,600 files should cost nothing.
LOOK_SECONDS = 0.4
# Of one log in its turn, so that a large one starves none of the others.
PIECES = 4
# Before a log that could not be sent is tried again; twice as long each time.
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 30.0


class _NotNow(Exception):
    """The server cannot take it at present."""


async def run_shipping(node: Node, http: httpx.AsyncClient) -> None:
    """Never ends. What cannot be sent stays in its file; what is wrong with one log holds up no other."""
    is_behind, clock = False, asyncio.get_running_loop().time
    room_at = clock()
    while True:
        # Nothing runs, nothing to look at: 200 idle nodes in one agent cost nothing.
        patience = 0.0 if is_behind else LOOK_SECONDS if node.ranks.known else None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(node.log_grew.wait(), patience)
        node.log_grew.clear()
        try:
            is_behind = any([await _turn(node, rank, http) for rank in node.ranks.known.all()])
        except httpx.TransportError as error:  # nobody is there: that holds for all of them
            logger.debug("%s: logs wait: %s", node.identity.name, error)
            is_behind = False
            await _keep_room(node)
            await asyncio.sleep(PAUSE_SECONDS)
        if clock() - room_at > PAUSE_SECONDS:
            room_at = clock()
            if any(rank.log_waits_until > room_at for rank in node.ranks.known.all()):
                await _keep_room(node)


async def _turn(node: Node, rank: RankState, http: httpx.AsyncClient) -> bool:
    """Sends some of one log, unless it is to wait; True if there is more to send at once."""
    now = asyncio.get_running_loop().time()
    if now < rank.log_waits_until:
        return False
    try:
        is_behind = await _ship(node, rank, http)
    except httpx.TransportError:
        raise
    except FileNotFoundError:  # forgotten meanwhile
        return False
    except Exception as error:  # noqa: BLE001 - a refusal, an answer that is none, a file that a job has spoiled
        rank.log_pause = min(LONGEST_PAUSE_SECONDS, max(PAUSE_SECONDS, rank.log_pause * 2))
        rank.log_waits_until = now + rank.log_pause
        concerned = rank_fields(rank.key, node.identity.name)
        logger.debug("the log of %s waits %d s: %r", rank.key, rank.log_pause, error, extra=concerned)
        return False
    rank.log_pause = 0.0
    return is_behind


async def _keep_room(node: Node) -> None:
    """While the server takes nothing, a job that prints without end must not fill the disk."""
    for rank in node.ranks.known.all():
        with contextlib.suppress(OSError, ValueError):
            await node.in_thread(partial(_parts, node, rank))


async def _ship(node: Node, rank: RankState, http: httpx.AsyncClient) -> bool:
    """Sends up to PIECES of one log; True if there is more."""
    if rank.log_dropped or (rank.started is None and rank.ended is None):
        return False
    try:
        size = os.stat(node.ranks.log_path(rank.key)).st_size
    except FileNotFoundError:
        return False
    if size == rank.log_seen and rank.ended is None:
        return False
    if size and rank.log_sent is None:
        # After a restart of the agent only the server knows how far it got, and how much it wants at most.
        await _send(node, rank, 0, b"", http)
    wanted = await node.in_thread(partial(_parts, node, rank))
    most = log_truncation.total(wanted)
    for _ in range(PIECES):
        if rank.log_dropped or rank.log_sent is None or rank.log_sent >= most:
            break
        offset = rank.log_sent
        piece = await asyncio.to_thread(log_truncation.read, node.ranks.log_path(rank.key), wanted, offset, PIECE_BYTES)
        await _send(node, rank, offset, piece, http)
        if rank.log_sent == offset and not rank.log_dropped:
            raise _NotNow(f"the log of {rank.key} does not grow on the server")
    else:
        if rank.log_sent is not None and rank.log_sent < most:
            return True
    rank.log_seen = size
    return False


def _parts(node: Node, rank: RankState) -> list[log_truncation.Part]:
    """What is to be sent by now; what never will be is given back to the disk. In a thread."""
    is_final, path = rank.ended is not None, node.ranks.log_path(rank.key)
    size = os.stat(path).st_size
    limit = node.ranks.log_limit(rank, size)
    if limit is not None:
        rank.log_given = log_truncation.give_back(path, size, limit, rank.log_given)
    return log_truncation.parts(size, limit, is_final=is_final)


async def _send(node: Node, rank: RankState, offset: int, data: bytes, http: httpx.AsyncClient) -> None:
    answer = await http.post(
        f"{node.identity.url}/agent/logs",
        params={"key": rank.key, "offset": str(offset)},
        content=data,
        headers={"Authorization": f"Bearer {node.identity.credential}"},
    )
    if answer.status_code == 404 and _is_the_servers(answer):
        # Not this node's, as far as the server knows: nobody will ever read it.
        rank.log_dropped = True
    elif answer.status_code != 200:
        raise _NotNow(f"HTTP {answer.status_code}")
    else:
        told = answers.read(_decode, answer.content, node.identity.url)
        rank.log_sent = told.size
        node.ranks.wants_at_most(told.most_bytes)


def _is_the_servers(answer: httpx.Response) -> bool:
    """Whether the server itself says "not found": a proxy without its server says 404, too, and means nothing by it."""
    try:
        told = answers.read(msgspec.json.decode, answer.content, str(answer.url))
    except answers.NotTheServer:
        return False
    return isinstance(told, dict) and told.get("code") == "not_found"
