"""Let calls of several threads share a statement: those that arrive while one is in progress are in the next one.

A call never waits for others to arrive: a lone one runs at once, alone. A statement for eight calls costs PostgreSQL
little more than one for a single call, and has one commit."""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from django.db import Error, connection

from gpusched.lib.db.outages import is_outage

A = TypeVar("A")
R = TypeVar("R")
# Bounds the size of a statement.
MAX_CALLS = 100
# A call waits for the statement in progress for this long: that one may wait for a lock, or for a lost connection.
MAX_WAIT_SECONDS = 0.1


class _Call(Generic[A, R]):
    """A call of a thread. `wakes` is set once it is done, or leads the next group."""

    def __init__(self, argument: A) -> None:
        self.argument = argument
        self.wakes, self.done = threading.Event(), threading.Event()
        self.result: R | None = None
        self.error: BaseException | None = None

    def finish(self, result: R | None, error: BaseException | None = None) -> None:
        self.result, self.error = result, error
        self.done.set()
        self.wakes.set()


class Grouped(Generic[A, R]):
    """`work` runs a group of calls in one statement outside of transactions, and returns the result of each argument,
    in their order. If a group fails, each of its calls runs alone, so that none fails for another. After an outage none
    does, because the statement may have been executed."""

    def __init__(self, work: Callable[[Sequence[A]], Sequence[R]]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._waiting: list[_Call[A, R]] = []
        self._leader: _Call[A, R] | None = None  # whose thread runs the latest group, or is about to

    def __call__(self, argument: A) -> R:
        """Return the result of `work` for this argument, or raise its error. In a transaction, the call runs alone."""
        if connection.in_atomic_block:
            return self._work([argument])[0]
        call: _Call[A, R] = _Call(argument)
        with self._lock:
            self._waiting.append(call)
            self._leader = self._leader or call
            leads = self._leader is call
        if not leads:
            call.wakes.wait(MAX_WAIT_SECONDS)
        if group := self._taken_by(call):
            self._run(group)
            self._pass_on(call)
        call.done.wait()
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]

    def _taken_by(self, call: _Call[A, R]) -> list[_Call[A, R]]:
        """Return the group that this call leads, with it; none if it is in another group."""
        with self._lock:
            if call not in self._waiting:
                return []
            self._leader = call
            self._waiting.remove(call)
            group = [call, *self._waiting[: MAX_CALLS - 1]]
            self._waiting = self._waiting[MAX_CALLS - 1 :]
            return group

    def _run(self, group: Sequence[_Call[A, R]]) -> None:
        try:
            results = list(zip(group, self._work([call.argument for call in group]), strict=True))
        except BaseException as error:  # noqa: BLE001 each of the callers gets it
            is_undone = isinstance(error, Error) and not is_outage(error)
            for call in group:
                if is_undone and len(group) > 1:
                    self._run([call])
                else:
                    call.finish(None, error)
        else:
            for call, result in results:
                call.finish(result)

    def _pass_on(self, call: _Call[A, R]) -> None:
        """Let the first of the calls that wait lead, unless another one has begun meanwhile."""
        with self._lock:
            if self._leader is call:
                self._leader = self._waiting[0] if self._waiting else None
                if self._leader:
                    self._leader.wakes.set()
