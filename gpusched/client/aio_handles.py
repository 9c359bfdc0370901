"""What the async client gives to be worked with: a job, and an element of an array."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

from gpusched.client.calls import flows
from gpusched.protocol.rest.arrays import Element
from gpusched.protocol.rest.explain import Explanation
from gpusched.protocol.rest.jobs import JobData, Log
from gpusched.protocol.signals import SignalName

if TYPE_CHECKING:
    from gpusched.client.aio import AsyncClient


class AsyncJob(JobData, kw_only=True, dict=True):
    """A job as it was when it was read, with what can be done to it."""

    @property
    def client(self) -> "AsyncClient":
        return cast("AsyncClient", self.__dict__["_client"])

    @property
    def message(self) -> str:
        """What the server said when the job was submitted or acted on; else empty."""
        return cast(str, self.__dict__["_message"])

    async def refresh(self) -> "AsyncJob":
        """The job as it is now."""
        return await self.client.get(self.id)

    async def why(self) -> Explanation:
        """Why it is where it is, in a sentence, and what can be done."""
        return await self.client.why(self.id)

    async def wait(self, timeout: float | None = None) -> "AsyncJob":  # noqa: ASYNC109 as in Job
        """The job once it has ended; raises Timeout after `timeout` seconds."""
        return await self.client.wait(self.id, timeout)

    async def logs(
        self, *, attempt: int | None = None, rank: int = 0, offset: int = 0, limit: int | None = None
    ) -> Log:
        """A piece of its output; `follow` reads it as it grows."""
        return await self.client.logs(self.id, attempt=attempt, rank=rank, offset=offset, limit=limit)

    def follow(self, *, attempt: int | None = None, rank: int = 0, offset: int = 0) -> "AsyncIterator[Log | AsyncJob]":
        """Its output as it grows, and itself at each change of state."""
        return self.client.follow(self.id, attempt=attempt, rank=rank, offset=offset)

    async def cancel(self, elements: str | None = None) -> "AsyncJob":
        """Ends it; of an array only these `elements`, like 3-7,9."""
        return await self.client.cancel(self.id, elements)

    async def retry(self, elements: str = "failed") -> "AsyncJob":
        """Has elements of the array run again: those that failed, or by numbers like 3-7,9."""
        return await self.client.retry(self.id, elements)

    async def elements(self, *, state: str | None = None, index: int | str | None = None) -> "list[AsyncArrayElement]":
        """The elements of the array by their numbers; `index` like 3-7,9. A job that is no array has none."""
        return await self.client.elements(self.id, state=state, index=index)

    async def send_signal(self, signal: SignalName) -> "AsyncJob":
        """Sends HUP, INT, QUIT, USR1 or USR2 to its program (`signal` is the one that ended it)."""
        return await self.client.send_signal(self.id, signal)

    async def hold(self) -> "AsyncJob":
        return await self.client.hold(self.id)

    async def release(self) -> "AsyncJob":
        return await self.client.release(self.id)

    async def queue_again(self) -> "AsyncJob":
        """Requeues it (`requeue` is the field that says whether that may happen by itself)."""
        return await self.client.requeue(self.id)


class AsyncArrayElement(Element, kw_only=True, dict=True):
    """An element of an array as it was when it was read, with what can be done to it."""

    @property
    def client(self) -> "AsyncClient":
        return cast("AsyncClient", self.__dict__["_client"])

    @property
    def array_id(self) -> int:
        """The job that is the array."""
        return cast(int, self.__dict__["_array_id"])

    async def refresh(self) -> "AsyncArrayElement":
        """The element as it is now."""
        return await self.client.element(self.array_id, self.index)

    async def job(self) -> AsyncJob:
        """The job that it is by now. Raises NotFound before it is one."""
        return await self.client.get(flows.job_of(await self.refresh(), self.array_id))

    async def wait(self, timeout: float | None = None) -> "AsyncArrayElement":  # noqa: ASYNC109 as in Job
        """The element once it has ended; raises Timeout after `timeout` seconds."""
        return await self.client.wait_element(self.array_id, self.index, timeout)

    async def logs(
        self, *, attempt: int | None = None, rank: int = 0, offset: int = 0, limit: int | None = None
    ) -> Log:
        """A piece of its output. Raises NotFound before it is a job."""
        return await (await self.job()).logs(attempt=attempt, rank=rank, offset=offset, limit=limit)

    async def follow(
        self, *, attempt: int | None = None, rank: int = 0, offset: int = 0
    ) -> "AsyncIterator[Log | AsyncJob]":
        """Its output as it grows, and its job at each change of state. Raises NotFound before it is a job."""
        async for item in (await self.job()).follow(attempt=attempt, rank=rank, offset=offset):
            yield item

    async def cancel(self) -> "AsyncArrayElement":
        """Ends it alone; harmless when repeated."""
        await self.client.cancel(self.array_id, str(self.index))
        return await self.refresh()

    async def retry(self) -> "AsyncArrayElement":
        """Has it run again, however it ended."""
        await self.client.retry(self.array_id, str(self.index))
        return await self.refresh()
