# Written from gpusched/client/aio/handles.py by `make client`: edit that file, not this one.
"""The handles of a client: a job, and an element of an array."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from gpusched.client.calls import jobs
from gpusched.client.errors import Invalid
from gpusched.protocol.rest.arrays import Element
from gpusched.protocol.rest.explain import Explanation
from gpusched.protocol.rest.jobs import JobData, Log
from gpusched.protocol.signals import SignalName

if TYPE_CHECKING:
    from gpusched.client.sync.client import Client


class Job(JobData, kw_only=True, dict=True):
    """A job as of its last read, with its actions."""

    @property
    def client(self) -> "Client":
        return _client_of(self)

    @property
    def message(self) -> str:
        """The server's message about the submit or action; else empty."""
        return cast(str, self.__dict__.get("_message", ""))

    def refresh(self) -> "Job":
        """Read the job again."""
        return self.client.get(self.id)

    def why(self) -> Explanation:
        """Explain the job's state in a sentence, with the next step."""
        return self.client.why(self.id)

    def wait(self, timeout: float | None = None) -> "Job":
        """Return the job once it has ended; raises Timeout after `timeout` seconds."""
        return self.client.wait(self.id, timeout)

    def logs(self, *, attempt: int | None = None, rank: int = 0, offset: int = 0, limit: int | None = None) -> Log:
        """Return a piece of its output; `follow` reads it as it grows."""
        return self.client.logs(self.id, attempt=attempt, rank=rank, offset=offset, limit=limit)

    def follow(self, *, attempt: int | None = None, rank: int = 0, offset: int = 0) -> "Iterator[Log | Job]":
        """Yield its output as it grows, and the job at each change of state."""
        return self.client.follow(self.id, attempt=attempt, rank=rank, offset=offset)

    def cancel(self, elements: str | None = None) -> "Job":
        """Cancel it; of an array only these `elements`, like 3-7,9."""
        return self.client.cancel(self.id, elements)

    def retry(self, elements: str = "failed") -> "Job":
        """Run elements of the array again: those that failed, or by numbers like 3-7,9."""
        return self.client.retry(self.id, elements)

    def elements(self, *, state: str | None = None, index: int | str | None = None) -> "list[ArrayElement]":
        """Return the elements of the array by number; `index` like 3-7,9. Raises NotFound if the job is no array."""
        return self.client.elements(self.id, state=state, index=index)

    def send_signal(self, signal: SignalName) -> "Job":
        """Send HUP, INT, QUIT, USR1 or USR2 to its program (`signal` is the one that ended it)."""
        return self.client.send_signal(self.id, signal)

    def hold(self) -> "Job":
        """Hold the job: it does not start until it is released."""
        return self.client.hold(self.id)

    def release(self) -> "Job":
        """Release the held job: it starts when it is its turn."""
        return self.client.release(self.id)

    def queue_again(self) -> "Job":
        """Requeue it (the field `requeue` says whether that may happen automatically)."""
        return self.client.requeue(self.id)


class ArrayElement(Element, kw_only=True, dict=True):
    """An element of an array as of its last read, with its actions."""

    @property
    def client(self) -> "Client":
        return _client_of(self)

    @property
    def array_id(self) -> int:
        """The id of the array's job."""
        return cast(int, self.__dict__["_array_id"])

    def refresh(self) -> "ArrayElement":
        """Read the element again."""
        return self.client.element(self.array_id, self.index)

    def job(self) -> Job:
        """Return the element's job. Raises NotFound before it is one."""
        return self.client.get(jobs.job_of(self.refresh(), self.array_id))

    def wait(self, timeout: float | None = None) -> "ArrayElement":
        """Return the element once it has ended; raises Timeout after `timeout` seconds."""
        return self.client.wait_element(self.array_id, self.index, timeout)

    def logs(self, *, attempt: int | None = None, rank: int = 0, offset: int = 0, limit: int | None = None) -> Log:
        """Return a piece of its output. Raises NotFound before it is a job."""
        return (self.job()).logs(attempt=attempt, rank=rank, offset=offset, limit=limit)

    def follow(self, *, attempt: int | None = None, rank: int = 0, offset: int = 0) -> "Iterator[Log | Job]":
        """Yield its output as it grows, and its job at each change of state. Raises NotFound before it is a job."""
        for item in (self.job()).follow(attempt=attempt, rank=rank, offset=offset):
            yield item

    def cancel(self) -> "ArrayElement":
        """Cancel this element alone; safe to repeat."""
        self.client.cancel(self.array_id, str(self.index))
        return self.refresh()

    def retry(self) -> "ArrayElement":
        """Run it again, however it ended."""
        self.client.retry(self.array_id, str(self.index))
        return self.refresh()


def _client_of(handle: Job | ArrayElement) -> "Client":
    """Raise Invalid for a copy: it has the data alone, since a client belongs to its process and has a token."""
    try:
        return cast("Client", handle.__dict__["_client"])
    except KeyError as error:
        raise Invalid(
            "a copy of a job or an element, such as one from another process, has no client",
            next_step="read it again with a client there, such as client.get(job.id)",
        ) from error
