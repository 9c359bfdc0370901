"""How many threads each destination may use, so that those which answer slowly, or never, leave some for others.

A destination is a host or a service, not a route: when a mail server is away, the routes of all its users are."""

from collections import Counter
from collections.abc import Iterable

from cryptography.fernet import InvalidToken

from gpusched.lib.cache import Cache
from notifications import services, targets

# A send that takes longer makes its destination slow, until one takes less.
SLOW_SECONDS = 4.0
_destinations: Cache[str, str] = Cache(seconds=3600.0, max_entries=10_000)


class Shares:
    """The destinations that were slow last. One may use all threads but one; a slow one, one thread; and all slow ones
    together half of them."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._slow: set[str] = set()

    def round(self, in_use: Iterable[str]) -> "Round":
        """Return the shares that are left while sends to these destinations run."""
        return Round(self._threads, frozenset(self._slow), Counter(in_use))

    def record(self, destination: str, seconds: float) -> None:
        """Record how long a send took."""
        if seconds > SLOW_SECONDS:
            self._slow.add(destination)
        else:
            self._slow.discard(destination)


class Round:
    """The threads that are in use, by destination, while new sends are chosen."""

    def __init__(self, threads: int, slow: frozenset[str], in_use: Counter[str]) -> None:
        self._threads, self._slow, self._in_use = threads, slow, in_use

    def take(self, sealed_target: str) -> bool:
        """Take a thread for a target. Return whether its destination may use one more."""
        destination = destination_of(sealed_target)
        if destination in self._slow:
            slow = sum(count for name, count in self._in_use.items() if name in self._slow)
            is_free = not self._in_use[destination] and slow < self._threads // 2
        else:
            is_free = self._in_use[destination] < self._threads - 1
        self._in_use[destination] += is_free
        return is_free


def destination_of(sealed_target: str) -> str:
    """Return the host or the service of a target; empty if it was sealed with another key."""
    return _destinations.get(sealed_target, lambda: _destination(sealed_target))


def _destination(sealed_target: str) -> str:
    try:
        return services.destination(targets.unseal(sealed_target))
    except InvalidToken:
        return ""
