"""Threads that work on requests: a maximum number at once, besides those that wait for something else."""

import asyncio
import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

from django.db import connections

P = ParamSpec("P")
T = TypeVar("T")
_thread_state = threading.local()
# How long the process waits at its end for requests in progress.
_SHUTDOWN_SECONDS = 5.0
# A thread without a request for this time ends, and with it its database connection, whose process has 6 MiB. Some
# stay, as a new one has to connect first.
IDLE_SECONDS = 60.0
KEPT_THREADS = 2


class _Answer(Future[T]):
    """The answer to a request. `is_disconnected`: the client has gone; work that has begun continues. `hold_seconds`:
    how long to delay the response."""

    is_disconnected = False
    hold_seconds = 0.0

    def cancel(self) -> bool:
        self.is_disconnected = True
        return super().cancel()


class RequestThreads(Executor):
    """A pool of `maximum` threads that keep their database connections. While one has yielded its slot, another works
    in its place; that many threads end when it takes the slot back. The thread that became idle last gets the next
    request, so that those which are not needed end."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._requests: deque[tuple[_Answer[Any], Callable[[], Any]]] = deque()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        # Each idle thread waits to acquire its own lock. `_idle` counts also those that were woken and do not run yet.
        self._waiting: list[threading.Lock] = []
        self._idle = self._yielded = 0
        self._is_closed = False
        atexit.register(self.shutdown)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> _Answer[T]:
        answer = _Answer[T]()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the process ends")
            self._requests.append((answer, partial(fn, *args, **kwargs)))
            self._start_thread()
        return answer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._is_closed = True
            while self._waiting:
                self._waiting.pop().release()
            threads = list(self._threads)
        until = time.monotonic() + (_SHUTDOWN_SECONDS if wait else 0.0)
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0.0))

    @property
    def yielded(self) -> int:
        """Return how many threads have yielded their slot: they wait."""
        return self._yielded

    def yield_slots(self, change: int) -> None:
        """Record that a thread yields its slot (1) or takes it back (-1)."""
        with self._lock:
            self._yielded += change
            self._start_thread()

    def _start_thread(self) -> None:
        """Wake an idle thread for the last request, or start a new one."""
        if len(self._requests) <= self._idle:
            if self._waiting:
                self._waiting.pop().release()
        elif len(self._threads) < self.maximum + self._yielded:
            thread = threading.Thread(target=self._work, name="request", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _work(self) -> None:
        while (request := self._next_request()) is not None:
            answer, work = request
            if answer.set_running_or_notify_cancel():
                _thread_state.threads, _thread_state.answer = self, answer
                try:
                    answer.set_result(work())
                except BaseException as error:  # noqa: BLE001 the caller gets it
                    answer.set_exception(error)
            del request, answer, work  # otherwise they live until the next request
        connections.close_all()

    def _next_request(self) -> tuple[_Answer[Any], Callable[[], Any]] | None:
        """Return the request that has waited longest, or None if this thread must end."""
        with self._lock:
            while len(self._threads) <= self.maximum + self._yielded:
                if self._requests:
                    return self._requests.popleft()
                if self._is_closed or not self._wait():
                    break
            self._threads.discard(threading.current_thread())
            return None

    def _wait(self) -> bool:
        """Wait, without the pool's lock, until another thread has something for this one. Return False if it is not
        needed."""
        wakeup = threading.Lock()
        wakeup.acquire()
        self._waiting.append(wakeup)
        self._idle += 1
        self._lock.release()
        try:
            wakeup.acquire(timeout=IDLE_SECONDS)
        finally:
            self._lock.acquire()
            self._idle -= 1
        if wakeup not in self._waiting:
            return True
        self._waiting.remove(wakeup)
        return len(self._threads) <= KEPT_THREADS


@contextmanager
def yield_slot() -> Iterator[None]:
    """Let another thread work on requests while this one waits. Unless it is in a transaction, also close its database
    connection. Do nothing outside of requests."""
    threads: RequestThreads | None = getattr(_thread_state, "threads", None)
    if threads is None:
        yield
        return
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
    threads.yield_slots(1)
    try:
        yield
    finally:
        threads.yield_slots(-1)


def hold_answer(seconds: float) -> None:
    """Delay the response to this thread's request. The thread works on other requests meanwhile."""
    answer = getattr(_thread_state, "answer", None)
    if answer is not None:
        answer.hold_seconds = seconds


async def answered(threads: RequestThreads, work: Callable[[], T]) -> T:
    """Return what `work` returns in one of the threads, after the time for which it held its answer."""
    answer = threads.submit(work)
    result = await asyncio.wrap_future(answer)
    if answer.hold_seconds:
        await asyncio.sleep(answer.hold_seconds)
    return result


def client_gone_check() -> Callable[[], bool]:
    """Return a function for any thread that returns whether the client of this thread's request has gone."""
    answer = getattr(_thread_state, "answer", None)
    return lambda: bool(answer is not None and answer.is_disconnected)
