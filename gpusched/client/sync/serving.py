# Written from gpusched/client/aio/serving.py by `make client`: edit that file, not this one.
"""The methods of a client for endpoints, tasks and token buckets."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Unpack

from gpusched.client.calls import serving
from gpusched.client.sync import tasks
from gpusched.client.sync.connection import Connection, items, single
from gpusched.protocol.rest.serving import EndpointData, TaskData


class ServingMethods(Connection):
    """The methods of a client for endpoints, tasks and token buckets."""

    endpoints = items(serving.endpoints)
    endpoint = single(serving.endpoint)
    change_endpoint = single(serving.change_endpoint)
    drain_endpoint = single(serving.drain_endpoint)
    remove_endpoint = single(serving.remove_endpoint)
    tasks = items(serving.tasks)
    cancel_task = single(serving.cancel_task)
    task_result = single(serving.task_result)
    buckets = items(serving.buckets)
    create_bucket = single(serving.create_bucket)
    change_bucket = single(serving.change_bucket)
    delete_bucket = single(serving.delete_bucket)

    def create_endpoint(
        self,
        name: str,
        template: Mapping[str, Any],
        *,
        tenant: str | None = None,
        **options: Unpack[serving.EndpointOptions],
    ) -> EndpointData:
        """Create an endpoint; `template` is the job request of a replica, like {"command": [...], "gpu_count": 1}."""
        return self.send(serving.create_endpoint(name, tenant or self.config.tenant, template, options))

    def submit_task(
        self,
        endpoint: str,
        input: Any,
        *,
        tenant: str | None = None,
        units: float = 1.0,
        content_type: str | None = None,
    ) -> TaskData:
        """Submit one input, any JSON or bytes, and return the task as queued; see `wait_task` and `task_output`.
        `content_type`: of bytes, application/octet-stream by default."""
        return (self.send(serving.submit_task(endpoint, input, tenant, units, content_type))).items[0]

    def task_output(self, task: TaskData) -> Any:
        """Return the result of a completed task: JSON values, or bytes of any other type."""
        return tasks.output(self, task)

    def task(self, task_id: int) -> TaskData:
        """Return a task, with its result if it has ended."""
        return (self.send(serving.task(task_id))).items[0]

    def wait_task(self, task_id: int, timeout: float | None = None) -> TaskData:
        """Return the task once it has ended; raises Timeout after `timeout` seconds (the task continues)."""
        for task in self.wait_tasks([task_id], timeout):
            return task
        raise AssertionError("unreachable")

    def wait_tasks(self, task_ids: Iterable[int], timeout: float | None = None) -> Iterator[TaskData]:
        """Yield each of these tasks as soon as it has ended; raises Timeout after `timeout` seconds. Survives server
        restarts."""
        for task in tasks.ended(self, list(dict.fromkeys(task_ids)), timeout):
            yield task

    def map(
        self,
        endpoint: str,
        inputs: Iterable[Any],
        *,
        tenant: str | None = None,
        units: float = 1.0,
        timeout: float | None = None,
    ) -> Iterator[Any]:
        """Submit all inputs, JSON or bytes, and yield their results in order, each as soon as it is there. Submits
        more while the queue of the endpoint has room, so `inputs` may have any length. Survives server restarts.

        Raises TaskFailed for the first input without a result, and Timeout after `timeout` seconds; other tasks
        continue."""
        for result in tasks.results(self, endpoint, inputs, tenant, units, timeout):
            yield result
