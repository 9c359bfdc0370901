"""Measure the speed of replicas of the OpenAI API by the requests that this web process forwards."""

import time
from typing import Protocol

from serving.replicas.scaling import smoothed


class Measured(Protocol):
    """A forwarded request."""

    @property
    def endpoint_id(self) -> int: ...
    @property
    def max_batch(self) -> int: ...
    @property
    def cost(self) -> float: ...


class Measurements:
    """All state belongs to the event loop."""

    def __init__(self) -> None:
        self._seconds_per_cost: dict[int, float] = {}
        self._measured: set[int] = set()  # the endpoints since the last `take`
        self._ended_at: dict[int, float] = {}

    def ended(self, job_id: int, request: Measured, seconds: float, status: int) -> None:
        """Record the end of a request. A replica works on `max_batch` of them at once."""
        self._ended_at[job_id] = time.monotonic()
        if status < 400:
            value = seconds / request.cost / request.max_batch
            self._seconds_per_cost[request.endpoint_id] = smoothed(
                self._seconds_per_cost.get(request.endpoint_id), value
            )
            self._measured.add(request.endpoint_id)

    def take(self) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """Return the seconds per cost of endpoints, and how many seconds ago the latest request of each replica ended:
        what has changed since the last call."""
        now = time.monotonic()
        ended = [(job_id, now - at) for job_id, at in self._ended_at.items()]
        learned = [(endpoint_id, self._seconds_per_cost[endpoint_id]) for endpoint_id in sorted(self._measured)]
        self._ended_at.clear()
        self._measured.clear()
        return learned, ended
