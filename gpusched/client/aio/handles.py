"""The handles of a client: a job, and an element of an array."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

from gpusched.client.calls import jobs
from gpusched.client.errors import Invalid
from gpusched.protocol.rest.arrays import Element
from gpusched.protocol.rest.explain import Explanation
from gpusched.protocol.rest.jobs import JobData, Log
from gpusched.protocol.signals import SignalName

if TYPE_CHECKING:
    from gpusched.client.aio.client import AsyncClient


class AsyncJob(JobData, kw_only=True, dict=True):
    """A job as of its last read, with its actions."""

    @property
    def client(self) -> "AsyncClient":
        return _client_of(self)

    @property
    def message(self) -> str:
        """The server's message about the submit or action; else empty."""
        return cast(str, self.__dict__.get("_message", ""))

    async def refresh(self) -> "AsyncJob":
        """Read the job again."""
        return await self.client.get(self.id)

    async def why(self) -> Explanation:
        """Explain the job's state in a sentence, with the next step."""
        return await self.client.why(self.id)

    async def wait(self, timeout: float | None = None) -> "AsyncJob":
        """Return the job once it has ended; raises Timeout after `timeout` seconds."""
        return await self.client.wait(self.id, timeout)

    async def logs(
        self, *, attempt: int | None = None, rank: int = 0, offset: int = 0, limit: int | None = None
    ) -> Log:
        """Return a piece of its output; `follow` reads it as it grows."""
        return await self.client.logs(self.id, attempt=attempt, rank=rank, offset=offset, limit=limit)

    def follow(self, *, attempt: int | None = None, rank: int = 0, offset: int = 0) -> "AsyncIterator[Log | AsyncJob]":
        """Yield its output as it grows, and the job at each change of state."""
        return self.client.follow(self.id, attempt=attempt, rank=rank, offset=offset)

    async def cancel(self, elements: str | None = None) -> "AsyncJob":
        """Cancel it; of an array only these `elements`, like 3-7,9."""
        return await self.client.cancel(self.id, elements)

    async def retry(self, elements: str = "failed") -> "AsyncJob":
        """Run elements of the array again: those that failed, or by numbers like 3-7,9."""
        return await self.client.retry(self.id, elements)

    async def elements(self, *, state: str | None = None, index: int | str | None = None) -> "list[AsyncArrayElement]":
        """Return the elements of the array by number; `index` like 3-7,9. Raises NotFound if the job is no array."""
        return await self.client.elements(self.id, state=state, index=index)

    async def send_signal(self, signal: SignalName) -> "AsyncJob":
        """Send HUP, INT, QUIT, USR1 or USR2 to its program (`signal` is the one that ended it)."""
        return await self.client.send_signal(self.id, signal)

    async def hold(self) -> "AsyncJob":
        """Hold the job: it does not start until it is released."""
        return await self.client.hold(self.id)

    async def release(self) -> "AsyncJob":
        """Release the held job: it starts when it is its turn."""
        return await self.client.release(self.id)

    async def queue_again(self) -> "AsyncJob":
        """Requeue it (the field `requeue` says whether that may happen automatically)."""
        return await self.client.requeue(self.id)


class AsyncArrayElement(Element, kw_only=True, dict=True):
    """An element of an array as of its last read, with its actions."""

    @property
    def client(self) -> "AsyncClient":
        return _client_of(self)

    @property
    def array_id(self) -> int:
        """The id of the array's job."""
        return cast(int, self.__dict__["_array_id"])

    async def refresh(self) -> "AsyncArrayElement":
        """Read the element again."""
        return await self.client.element(self.array_id, self.index)

    async def job(self) -> AsyncJob:
        """Return the element's job. Raises NotFound before it is one."""
        return await self.client.get(jobs.job_of(await self.refresh(), self.array_id))

    async def wait(self, timeout: float | None = None) -> "AsyncArrayElement":
        """Return the element once it has ended; raises Timeout after `timeout` seconds."""
        return await self.client.wait_element(self.array_id, self.index, timeout)

    async def logs(
        self, *, attempt: int | None = None, rank: int = 0, offset: int = 0, limit: int | None = None
    ) -> Log:
        """Return a piece of its output. Raises NotFound before it is a job."""
        return await (await self.job()).logs(attempt=attempt, rank=rank, offset=offset, limit=limit)

    async def follow(
        self, *, attempt: int | None = None, rank: int = 0, offset: int = 0
    ) -> "AsyncIterator[Log | AsyncJob]":
        """Yield its output as it grows, and its job at each change of state. Raises NotFound before it is a job."""
        async for item in (await self.job()).follow(attempt=attempt, rank=rank, offset=offset):
            yield item

    async def cancel(self) -> "AsyncArrayElement":
        """Cancel this element alone; safe to repeat."""
        await self.client.cancel(self.array_id, str(self.index))
        return await self.refresh()

    async def retry(self) -> "AsyncArrayElement":
        """Run it again, however it ended."""
        await self.client.retry(self.array_id, str(self.index))
        return await self.refresh()


def _client_of(handle: AsyncJob | AsyncArrayElement) -> "AsyncClient":
    """Raise Invalid for a copy: it has the data alone, since a client belongs to its process and has a token."""
    try:
        return cast("AsyncClient", handle.__dict__["_client"])
    except KeyError as error:
        raise Invalid(
            "a copy of a job or an element, such as one from another process, has no client",
            next_step="read it again with a client there, such as client.get(job.id)",
        ) from error
