"""The one cache of values in the memory of a process: bounded, aged, and safe for threads. The module that creates a
cache owns it: no other reads or writes it."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from math import inf
from typing import Any, Generic, TypeVar
from weakref import WeakSet

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
D = TypeVar("D")
_caches: "WeakSet[Cache[Any, Any]]" = WeakSet()
# Keys that share a lock wait for each other's values.
_MAX_LOCKS = 32


class Cache(Generic[K, V]):
    """At most `max_entries` values by key; beyond that the oldest one goes. A value lasts `seconds`, and serves for
    `stale_seconds` more while another thread computes the next one. Threads share values: never change one in place."""

    def __init__(self, *, seconds: float = inf, stale_seconds: float = 0.0, max_entries: int = 1) -> None:
        self.seconds, self.stale_seconds, self.max_entries = seconds, stale_seconds, max_entries
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._writing = threading.Lock()
        self._computing = [threading.RLock() for _ in range(min(max_entries, _MAX_LOCKS))]
        _caches.add(self)

    def get(self, key: K, compute: Callable[[], V], accept: Callable[[V], bool] | None = None) -> V:
        """Return the value. If there is none that `accept` accepts, one thread computes it; the others wait for it."""
        if entry := self._usable(key, accept, self.seconds):
            return entry[1]
        lock = self._computing[hash(key) % len(self._computing)]
        if not lock.acquire(blocking=False):
            if entry := self._usable(key, accept, self.seconds + self.stale_seconds):
                return entry[1]
            lock.acquire()
        try:
            entry = self._usable(key, accept, self.seconds)
            return entry[1] if entry else self.put(key, compute())
        finally:
            lock.release()

    def last(self, key: K, default: D) -> V | D:
        """Return the value, however old; `default` if there is none."""
        entry = self._entries.get(key)
        return entry[1] if entry else default

    def put(self, key: K, value: V) -> V:
        """Store a value and return it."""
        return self.update(key, lambda _: value)

    def update(self, key: K, change: Callable[[V | None], V]) -> V:
        """Replace the value (None: there is none, or its time is over), with no other write in between. `change` must
        be quick."""
        with self._writing:
            now, entry = time.monotonic(), self._entries.get(key)
            value = change(None if entry is None or now - entry[0] > self.seconds else entry[1])
            self._entries[key] = (now, value)
            self._entries.move_to_end(key)
            while len(self._entries) > self.max_entries:
                self._entries.popitem(last=False)
        return value

    def _usable(self, key: K, accept: Callable[[V], bool] | None, seconds: float) -> tuple[float, V] | None:
        entry = self._entries.get(key)
        if entry is None or time.monotonic() - entry[0] > seconds or not (accept is None or accept(entry[1])):
            return None
        return entry


def clear_all() -> None:
    """Empty every cache of the process, so that a test sees nothing of the tests before."""
    for cache in list(_caches):
        cache._entries.clear()
