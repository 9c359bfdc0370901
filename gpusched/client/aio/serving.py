"""The methods of a client for endpoints, tasks and token buckets."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from gpusched.client.aio.connection import AsyncConnection, items, single
from gpusched.client.calls import serving
from gpusched.client.errors import Invalid, TaskFailed, Timeout
from gpusched.protocol.rest.serving import EndpointData, TaskData

_FINAL = frozenset({"completed", "failed", "cancelled", "expired", "refused"})
_MAX_PER_SUBMIT = 1000


class AsyncServingMethods(AsyncConnection):
    """The methods of a client for endpoints, tasks and token buckets."""

    endpoints = items(serving.endpoints)
    endpoint = single(serving.endpoint)
    drain_endpoint = single(serving.drain_endpoint)
    remove_endpoint = single(serving.remove_endpoint)
    tasks = items(serving.tasks)
    cancel_task = single(serving.cancel_task)
    buckets = items(serving.buckets)
    create_bucket = single(serving.create_bucket)
    delete_bucket = single(serving.delete_bucket)

    async def create_endpoint(
        self,
        name: str,
        template: Mapping[str, Any],
        *,
        tenant: str | None = None,
        **options: Unpack[serving.EndpointOptions],
    ) -> EndpointData:
        """Create an endpoint; `template` is the job request of a replica, like {"command": [...], "gpu_count": 1}."""
        return await self.send(serving.create_endpoint(name, tenant or self.config.tenant, template, options))

    async def submit_task(
        self, endpoint: str, input: Any, *, tenant: str | None = None, units: float = 1.0
    ) -> TaskData:
        """Submit one input (any JSON) and return the task as queued; see `wait_task`."""
        return (await self.send(serving.submit_tasks(endpoint, [input], tenant, units))).items[0]

    async def task(self, task_id: int) -> TaskData:
        """Return a task, with its result if it has ended."""
        return (await self.send(serving.task(task_id))).items[0]

    async def wait_task(self, task_id: int, timeout: float | None = None) -> TaskData:
        """Return the task once it has ended; raises Timeout after `timeout` seconds (the task continues)."""
        ends_at = None if timeout is None else time.monotonic() + timeout
        while True:
            remaining = serving.MAX_WAIT_SECONDS if ends_at is None else ends_at - time.monotonic()
            task = (await self.send(serving.task(task_id, max(0.0, remaining)))).items[0]
            if task.state in _FINAL:
                return task
            if ends_at is not None and time.monotonic() >= ends_at:
                raise Timeout(f"task {task_id} has not ended within {timeout:g} s", next_step="wait again")

    async def map(
        self, endpoint: str, inputs: Sequence[Any], *, tenant: str | None = None, timeout: float | None = None
    ) -> list[Any]:
        """Submit all inputs and return their results in order. Raises TaskFailed for the first without a result."""
        if not inputs:
            raise Invalid("map needs at least one input")
        ends_at = None if timeout is None else time.monotonic() + timeout
        submitted: list[TaskData] = []
        for start in range(0, len(inputs), _MAX_PER_SUBMIT):
            part = inputs[start : start + _MAX_PER_SUBMIT]
            submitted += (await self.send(serving.submit_tasks(endpoint, part, tenant, 1.0))).items
        results = []
        for task in submitted:
            remaining = None if ends_at is None else max(0.0, ends_at - time.monotonic())
            ended = await self.wait_task(task.id, remaining)
            if ended.state != "completed":
                raise TaskFailed(f"task {ended.id} {ended.state}: {ended.error or ended.error_code}")
            results.append(ended.output)
        return results
