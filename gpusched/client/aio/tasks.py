"""Wait for many tasks, and map inputs to results."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec

from gpusched.client.aio import following
from gpusched.client.aio.connection import AsyncConnection
from gpusched.client.calls import serving
from gpusched.client.errors import Invalid, RateLimited, TaskFailed, Timeout
from gpusched.client.transport import polling
from gpusched.protocol.batches import JSON
from gpusched.protocol.rest.serving import TaskData

# Tasks that `results` keeps in the queue: enough for a server that is far away.
_MAX_RUNNING = 4000
_TOO_LARGE = 413


async def ended(client: AsyncConnection, ids: Sequence[int], timeout: float | None) -> AsyncIterator[TaskData]:
    """Yield each task as soon as it has ended, the tasks of the first MAX_IDS ids first. Raises Timeout after `timeout`
    seconds."""
    deadline = _deadline(timeout)
    waiting = list(ids)
    while waiting:
        batch = await _next_ended(client, waiting, deadline)
        done = {task.id for task in batch}
        waiting = [number for number in waiting if number not in done]
        for task in batch:
            yield task


async def results(
    client: AsyncConnection,
    endpoint: str,
    inputs: Iterable[Any],
    tenant: str | None,
    units: float,
    timeout: float | None,
) -> AsyncIterator[Any]:
    """Submit inputs and yield their results in order. Raises TaskFailed for the first without a result."""
    deadline = _deadline(timeout)
    submits = _Submits(client, endpoint, inputs, tenant, units)
    order: deque[int] = deque()
    arrived: dict[int, TaskData] = {}
    while True:
        while (running := len(order) - len(arrived)) < _MAX_RUNNING:
            new = await submits.send_next(_remaining(deadline), waits_for_room=not running)
            if not new:
                break
            order += new
        while order and order[0] in arrived:
            yield await _output(client, arrived.pop(order.popleft()))
        waiting = [number for number in order if number not in arrived]
        if not waiting:
            return
        arrived |= {task.id: task for task in await _next_ended(client, waiting, deadline)}


class _Submits:
    """The submits of inputs, in requests that the server accepts: it refuses one that exceeds the room in the queue, or
    a limit of the user or of requests."""

    def __init__(
        self, client: AsyncConnection, endpoint: str, inputs: Iterable[Any], tenant: str | None, units: float
    ) -> None:
        self._client, self._endpoint, self._tenant, self._units = client, endpoint, tenant, units
        self._inputs = iter(inputs)
        self._unsent: list[Any] = []
        self._size = self._max_size = serving.MAX_INPUTS

    async def send_next(self, seconds: float, *, waits_for_room: bool) -> list[int]:
        """Submit the next inputs. Return the ids of their tasks; none if all inputs are submitted, or if there is no
        room now and the caller does not wait for it."""
        self._unsent += islice(self._inputs, serving.MAX_INPUTS - len(self._unsent))
        while self._unsent:
            size = 1 if serving.is_bytes(self._unsent[0]) else self._next_size()
            is_patient = waits_for_room and size == 1
            call = serving.submit_inputs(
                self._endpoint, self._unsent[:size], self._tenant, self._units, waits_for_room=is_patient
            )
            try:
                submitted = await following.send_within(self._client, call, seconds)
            except RateLimited:
                if is_patient:
                    raise
                self._size = max(1, size // 2)
                if not waits_for_room:
                    break
            except Invalid as error:
                is_too_large = error.status == _TOO_LARGE or any(field.code == "too_long" for field in error.errors)
                if size == 1 or not (error.code == "exceeds_burst" or is_too_large):
                    raise
                self._size = self._max_size = size // 2
            else:
                self._unsent = self._unsent[size:]
                self._size = min(2 * self._size, self._max_size)
                return [task.id for task in submitted.items]
        return []

    def _next_size(self) -> int:
        """Return how many of the next inputs go together: those before the next bytes, which go alone."""
        part = self._unsent[: self._size]
        return next((n for n, value in enumerate(part) if serving.is_bytes(value)), len(part))


async def _next_ended(client: AsyncConnection, waiting: Sequence[int], deadline: float) -> list[TaskData]:
    """Return at least one of these tasks that has ended. Raises Timeout after the deadline."""
    pause = polling.QUICK_SECONDS
    while True:
        requested_at = time.monotonic()
        seconds = deadline - requested_at
        call = serving.ended_tasks(waiting[: serving.MAX_IDS], max(0.0, seconds))
        if page := (await following.send_within(client, call, _remaining(deadline))).items:
            return page
        if seconds <= 0:
            raise Timeout(
                f"task {waiting[0]} has not ended, and the timeout has passed",
                next_step="it continues; wait longer or cancel it",
            )
        if time.monotonic() - requested_at < pause:
            # While too many clients wait, the server answers at once: it must not be polled in a tight loop.
            await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = polling.longer(pause)


def _deadline(timeout: float | None) -> float:
    if timeout is not None and math.isnan(timeout):
        raise Invalid(f"timeout must be a number of seconds, not {timeout}")
    return math.inf if timeout is None else time.monotonic() + timeout


def _remaining(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


async def output(client: AsyncConnection, task: TaskData) -> Any:
    """Return the result of a completed task: JSON values, or bytes of any other type."""
    if task.output_type in ("", JSON) and (task.output_bytes or 0) <= serving.MAX_INLINE_BYTES:
        return task.output
    content = await client.send(serving.task_result(task.id))
    return msgspec.json.decode(content) if task.output_type == JSON else content


async def _output(client: AsyncConnection, task: TaskData) -> Any:
    if task.state != "completed":
        raise TaskFailed(f"task {task.id} {task.state}: {task.error or task.error_code}", code=task.error_code)
    return await output(client, task)
