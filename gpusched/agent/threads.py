"""The threads of the agent, all started at its start: none can start once a job has used up the machine's processes.
And the order of the work in them."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
# One node needs seven at once: for its ranks, its checkpoints, its driver, its facts, its trash, its logs, its streams.
THREADS = 16
_PREFIX = "agent"


def start(count: int = THREADS) -> ThreadPoolExecutor:
    """Return a pool of threads that all run already. Raises RuntimeError if they cannot start."""
    pool = ThreadPoolExecutor(count, thread_name_prefix=_PREFIX)
    started = threading.Barrier(count + 1)
    try:
        for _ in range(count):
            pool.submit(started.wait)
        started.wait()
    except BaseException:
        started.abort()
        raise
    return pool


def have_ended(pool: ThreadPoolExecutor, seconds: float) -> bool:
    """End the threads once they have done their work. Return False if some still work after `seconds`: a driver, or a
    disk, that hangs."""
    pool.shutdown(wait=False)
    until = time.monotonic() + seconds
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(_PREFIX)]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


class Lane:
    """Run blocking work in threads, one piece at a time and in order. A caller that stops waiting leaves its piece
    running: the next one still waits for it."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._pieces: set[asyncio.Task[object]] = set()

    async def run(self, work: Callable[[], T]) -> T:
        piece = asyncio.create_task(self._run(work))
        self._pieces.add(piece)  # the event loop holds only weak references
        piece.add_done_callback(self._pieces.discard)
        return await asyncio.shield(piece)

    async def _run(self, work: Callable[[], T]) -> T:
        async with self._turn:
            return await asyncio.to_thread(work)
