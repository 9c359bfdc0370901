"""What the blocking client gives to be worked with: a job, and an element of an array."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from gpusched.client.calls import flows
from gpusched.protocol.rest.arrays import Element
from gpusched.protocol.rest.explain import Explanation
from gpusched.protocol.rest.jobs import JobData, Log
from gpusched.protocol.signals import SignalName

if TYPE_CHECKING:
    from gpusched.client.sync import Client


class Job(JobData, kw_only=True, dict=True):
    """A job as it was when it was read, with what can be done to it."""

    @property
    def client(self) -> "Client":
        return cast("Client", self.__dict__["_client"])

    @property
    def message(self) -> str:
        """What the server said when the job was submitted or acted on; else empty."""
        return cast(str, self.__dict__["_message"])

    def refresh(self) -> "Job":
        """The job as it is now."""
        return self.client.get(self.id)

    def why(self) -> Explanation:
        """Why it is where it is, in a sentence, and what can be done."""
        return self.client.why(self.id)

    def wait(self, timeout: float | None = None) -> "Job":
        """The job once it has ended; raises Timeout after `timeout` seconds."""
        return self.client.wait(self.id, timeout)

    def logs(self, *, attempt: int | None = None, rank: int = 0, offset: int = 0, limit: int | None = None) -> Log:
        """A piece of its output; `follow` reads it as it grows."""
        return self.client.logs(self.id, attempt=attempt, rank=rank, offset=offset, limit=limit)

    def follow(self, *, attempt: int | None = None, rank: int = 0, offset: int = 0) -> "Iterator[Log | Job]":
        """Its output as it grows, and itself at each change of state."""
        return self.client.follow(self.id, attempt=attempt, rank=rank, offset=offset)

    def cancel(self, elements: str | None = None) -> "Job":
        """Ends it; of an array only these `elements`, like 3-7,9."""
        return self.client.cancel(self.id, elements)

    def retry(self, elements: str = "failed") -> "Job":
        """Has elements of the array run again: those that failed, or by numbers like 3-7,9."""
        return self.client.retry(self.id, elements)

    def elements(self, *, state: str | None = None, index: int | str | None = None) -> "list[ArrayElement]":
        """The elements of the array by their numbers; `index` like 3-7,9. A job that is no array has none."""
        return self.client.elements(self.id, state=state, index=index)

    def send_signal(self, signal: SignalName) -> "Job":
        """Sends HUP, INT, QUIT, USR1 or USR2 to its program (`signal` is the one that ended it)."""
        return self.client.send_signal(self.id, signal)

    def hold(self) -> "Job":
        """Keeps it from starting until it is released."""
        return self.client.hold(self.id)

    def release(self) -> "Job":
        """Lets it start when it is its turn."""
        return self.client.release(self.id)

    def queue_again(self) -> "Job":
        """Requeues it (`requeue` is the field that says whether that may happen by itself)."""
        return self.client.requeue(self.id)


class ArrayElement(Element, kw_only=True, dict=True):
    """An element of an array as it was when it was read, with what can be done to it."""

    @property
    def client(self) -> "Client":
        return cast("Client", self.__dict__["_client"])

    @property
    def array_id(self) -> int:
        """The job that is the array."""
        return cast(int, self.__dict__["_array_id"])

    def refresh(self) -> "ArrayElement":
        """The element as it is now."""
        return self.client.element(self.array_id, self.index)

    def job(self) -> Job:
        """The job that it is by now. Raises NotFound before it is one."""
        return self.client.get(flows.job_of(self.refresh(), self.array_id))

    def wait(self, timeout: float | None = None) -> "ArrayElement":
        """The element once it has ended; raises Timeout after `timeout` seconds."""
        return self.client.wait_element(self.array_id, self.index, timeout)

    def logs(self, *, attempt: int | None = None, rank: int = 0, offset: int = 0, limit: int | None = None) -> Log:
        """A piece of its output. Raises NotFound before it is a job."""
        return self.job().logs(attempt=attempt, rank=rank, offset=offset, limit=limit)

    def follow(self, *, attempt: int | None = None, rank: int = 0, offset: int = 0) -> "Iterator[Log | Job]":
        """Its output as it grows, and its job at each change of state. Raises NotFound before it is a job."""
        return self.job().follow(attempt=attempt, rank=rank, offset=offset)

    def cancel(self) -> "ArrayElement":
        """Ends it alone; harmless when repeated."""
        self.client.cancel(self.array_id, str(self.index))
        return self.refresh()

    def retry(self) -> "ArrayElement":
        """Has it run again, however it ended."""
        self.client.retry(self.array_id, str(self.index))
        return self.refresh()
