"""Pace the refusals of one tenant's submits, so that a loop of them leaves the web process to other tenants."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpusched.lib.api.problems import Problem
from gpusched.lib.limits import LONGEST_REFUSAL_SECONDS, REFUSALS_AT_ONCE, REFUSALS_PER_SECOND
from gpusched.lib.web.request_threads import hold_answer

_MAX_TENANTS = 10_000


class Pace:
    """A rate of refusals per tenant: `burst` at once, then `per_second`; others wait at most `longest` seconds."""

    def __init__(
        self, per_second: float, burst: int, longest: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._each, self._longest, self._now = 1.0 / per_second, longest, now
        self._ahead = burst * self._each
        self._turns: dict[int, float] = {}  # by tenant: when the latest refusal was due at an even pace
        self._lock = threading.Lock()

    def wait_seconds(self, tenant_id: int) -> float:
        """Take the tenant's next turn and return how far away it is."""
        with self._lock:
            now = self._now()
            if len(self._turns) >= _MAX_TENANTS:
                self._turns = {tenant: due for tenant, due in self._turns.items() if due > now - self._ahead}
            due = max(self._turns.get(tenant_id, 0.0), now - self._ahead) + self._each
            self._turns[tenant_id] = min(due, now + self._longest)
            return max(self._turns[tenant_id] - now, 0.0)


_pace = Pace(REFUSALS_PER_SECOND, REFUSALS_AT_ONCE, LONGEST_REFUSAL_SECONDS)


@contextmanager
def paced(tenant_id: int) -> Iterator[None]:
    """Delay the answer to a refusal raised inside to the tenant's next turn. No thread waits for it."""
    try:
        yield
    except Problem:
        hold_answer(_pace.wait_seconds(tenant_id))
        raise
