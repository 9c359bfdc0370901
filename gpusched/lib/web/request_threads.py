"""The threads that work on requests: so many at once, beside those that wait for something that is not the database."""

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
_here = threading.local()
# Of requests that are worked on when the process ends.
_END_SECONDS = 5.0


class _Answer(Future[T]):
    """`is_left`: whoever asked has gone meanwhile; what has begun is not broken off. `hold_seconds`: how long to wait
    with the response."""

    is_left = False
    hold_seconds = 0.0

    def cancel(self) -> bool:
        self.is_left = True
        return super().cancel()


class RequestThreads(Executor):
    """`most` threads that stay, and keep their database connections. While one of them stands `aside` another works in
    its place; as many as were called in go when they come back."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._requests: deque[tuple[_Answer[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._idle = self._aside = 0
        self._is_closed = False
        atexit.register(self.shutdown)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> _Answer[T]:
        answer = _Answer[T]()
        with self._changed:
            if self._is_closed:
                raise RuntimeError("the process ends")
            self._requests.append((answer, partial(fn, *args, **kwargs)))
            self._call_in()
        return answer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            threads = list(self._threads)
        until = time.monotonic() + (_END_SECONDS if wait else 0.0)
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0.0))

    def step(self, aside: int) -> None:
        """One thread more stands aside (1), or one less (-1)."""
        with self._changed:
            self._aside += aside
            self._call_in()

    def _call_in(self) -> None:
        """Somebody for what has come last: who is idle, or a new thread."""
        if len(self._requests) <= self._idle:
            self._changed.notify()
        elif len(self._threads) < self.most + self._aside:
            thread = threading.Thread(target=self._work, name="request", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            answer, work = taken
            if answer.set_running_or_notify_cancel():
                _here.threads, _here.answer = self, answer
                try:
                    answer.set_result(work())
                except BaseException as error:  # noqa: BLE001 it is the asker's
                    answer.set_exception(error)
            del taken, answer, work  # or they would live until the next one comes
        connections.close_all()

    def _take(self) -> tuple[_Answer[Any], Callable[[], Any]] | None:
        """The request that has waited longest; None: this thread is one too many."""
        with self._changed:
            self._idle += 1
            try:
                while len(self._threads) <= self.most + self._aside:
                    if self._requests:
                        return self._requests.popleft()
                    if self._is_closed:
                        break
                    self._changed.wait()
            finally:
                self._idle -= 1
            self._threads.discard(threading.current_thread())
            return None


@contextmanager
def aside() -> Iterator[None]:
    """The thread waits for somebody else, and another may work on requests meanwhile. Unless it is in a transaction it
    gives back its connection, too. Nothing of this where no request is worked on."""
    threads: RequestThreads | None = getattr(_here, "threads", None)
    if threads is None:
        yield
        return
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
    threads.step(1)
    try:
        yield
    finally:
        threads.step(-1)


def hold_answer(seconds: float) -> None:
    """Have the response to this thread's request sent this much later. The thread works on other requests meanwhile."""
    answer = getattr(_here, "answer", None)
    if answer is not None:
        answer.hold_seconds = seconds


async def answered(threads: RequestThreads, work: Callable[[], T]) -> T:
    """Return what `work` returns in one of the threads, after the time for which it held its answer."""
    answer = threads.submit(work)
    found = await asyncio.wrap_future(answer)
    if answer.hold_seconds:
        await asyncio.sleep(answer.hold_seconds)
    return found


def client_gone_check() -> Callable[[], bool]:
    """Tells, from any thread, whether whoever made the request of this thread has gone."""
    answer = getattr(_here, "answer", None)
    return lambda: bool(answer is not None and answer.is_left)
