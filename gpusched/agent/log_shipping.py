"""Ship the output of jobs by offset: the server reports its size, and the agent sends from there to the last byte
within the limit (log_truncation.py)."""

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
# How often files are checked: a page that follows a log should feel live, 1,600 files should cost nothing.
POLL_SECONDS = 0.4
# Pieces of one log per turn, so that a large one does not starve the others.
PIECES = 4
# Before a failed log is retried; doubled each time.
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 2.0, 30.0


class _NotNow(Exception):
    """The server cannot take the log at present."""


async def run_shipping(node: Node, http: httpx.AsyncClient) -> None:
    """Ship all logs for ever. Unsent output stays in its file; a problem with one log does not delay the others."""
    is_behind, clock = False, asyncio.get_running_loop().time
    freed_at = clock()
    while True:
        # Without ranks there is nothing to check until one arrives: 200 idle nodes in one agent cost nothing.
        timeout = 0.0 if is_behind else POLL_SECONDS if node.ranks.table else None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(node.log_may_grow.wait(), timeout)
        node.log_may_grow.clear()
        try:
            sizes = await asyncio.to_thread(_sizes, node)
            is_behind = any([await _ship_unless_paused(node, rank, size, http) for rank, size in sizes])
        except httpx.TransportError as error:  # the server is unreachable: that holds for all logs
            logger.debug("%s: logs wait: %s", node.identity.name, error)
            is_behind = False
            await _free_disk(node)
            await asyncio.sleep(PAUSE_SECONDS)
        if clock() - freed_at > PAUSE_SECONDS:
            freed_at = clock()
            if any(rank.log_paused_until > freed_at for rank in node.ranks.table.all()):
                await _free_disk(node)


def _sizes(node: Node) -> list[tuple[RankState, int]]:
    """Return the ranks with their logs' sizes. Runs in a thread: a disk that hangs must not keep the node silent."""
    sizes = []
    for rank in node.ranks.table.all():
        if not rank.log_dropped and (rank.started or rank.ended):
            with contextlib.suppress(OSError):  # there is none yet, or it cannot be read now
                sizes.append((rank, os.stat(node.ranks.log_path(rank.key)).st_size))
    return sizes


async def _ship_unless_paused(node: Node, rank: RankState, size: int, http: httpx.AsyncClient) -> bool:
    """Send some of one log unless it is paused; return True if there is more to send at once."""
    now = asyncio.get_running_loop().time()
    if now < rank.log_paused_until:
        return False
    try:
        is_behind = await _ship(node, rank, size, http)
    except httpx.TransportError:
        raise
    except FileNotFoundError:  # dropped meanwhile
        return False
    except Exception as error:  # noqa: BLE001 - a refusal, an invalid answer, a file that a job has spoiled
        rank.log_pause = min(MAX_PAUSE_SECONDS, max(PAUSE_SECONDS, rank.log_pause * 2))
        rank.log_paused_until = now + rank.log_pause
        fields = rank_fields(rank.key, node.identity.name)
        logger.debug("the log of %s waits %d s: %r", rank.key, rank.log_pause, error, extra=fields)
        return False
    rank.log_pause = 0.0
    return is_behind


async def _free_disk(node: Node) -> None:
    """Free the disk of cut log parts while the server takes nothing: a job that prints without end must not fill it."""
    for rank in node.ranks.table.all():
        with contextlib.suppress(OSError, ValueError):
            await node.in_thread(partial(_parts, node, rank))


async def _ship(node: Node, rank: RankState, size: int, http: httpx.AsyncClient) -> bool:
    """Send up to PIECES of one log; return True if there is more."""
    if size == rank.log_sent_size and rank.ended is None:
        return False
    if size and rank.log_sent is None:
        # After a restart of the agent only the server knows the position, and its maximum size.
        await _send(node, rank, 0, b"", http)
    parts = await node.in_thread(partial(_parts, node, rank))
    total = log_truncation.total(parts)
    for _ in range(PIECES):
        if rank.log_dropped or rank.log_sent is None or rank.log_sent >= total:
            break
        offset = rank.log_sent
        piece = await asyncio.to_thread(log_truncation.read, node.ranks.log_path(rank.key), parts, offset, PIECE_BYTES)
        await _send(node, rank, offset, piece, http)
        if rank.log_sent == offset and not rank.log_dropped:
            raise _NotNow(f"the log of {rank.key} does not grow on the server")
    else:
        if rank.log_sent is not None and rank.log_sent < total:
            return True
    rank.log_sent_size = size
    return False


def _parts(node: Node, rank: RankState) -> list[log_truncation.Part]:
    """Return the parts to send by now, and free the disk of those never to be sent. Runs in a thread."""
    is_final, path = rank.ended is not None, node.ranks.log_path(rank.key)
    size = os.stat(path).st_size
    limit = node.ranks.log_limit(rank, size)
    if limit is not None:
        rank.log_freed = log_truncation.free_disk(path, size, limit, rank.log_freed)
    return log_truncation.parts(size, limit, is_final=is_final)


async def _send(node: Node, rank: RankState, offset: int, data: bytes, http: httpx.AsyncClient) -> None:
    answer = await http.post(
        f"{node.url}/agent/logs",
        params={"key": rank.key, "offset": str(offset)},
        content=data,
        headers={"Authorization": f"Bearer {node.credentials.presented}"},
    )
    if answer.status_code == 404 and _is_the_servers(answer):
        # The server does not assign this rank to the node: its log will never be read.
        rank.log_dropped = True
    elif answer.status_code != 200:
        raise _NotNow(f"HTTP {answer.status_code}")
    else:
        stored = answers.read(_decode, answer.content, node.url)
        rank.log_sent = stored.size
        node.ranks.limit_logs(stored.most_bytes)


def _is_the_servers(answer: httpx.Response) -> bool:
    """Return True if the server itself answered "not found": a proxy whose server is down answers 404, too."""
    try:
        problem = answers.read(msgspec.json.decode, answer.content, str(answer.url))
    except answers.NotTheServer:
        return False
    return isinstance(problem, dict) and problem.get("code") == "not_found"
