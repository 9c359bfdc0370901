"""The async client: drives the same calls and flows as the blocking one, with httpx.AsyncClient."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast

import httpx

from gpusched.client import config, flows, job_calls, secret_calls, wire
from gpusched.client.access import Secret
from gpusched.client.aio_cluster import ClusterMethods
from gpusched.client.arrays import Element
from gpusched.client.calls import Call, Reply
from gpusched.client.events import JobEvent
from gpusched.client.exchange import PATIENCE_SECONDS, Emit, Flow, Lost, Pause
from gpusched.client.foresight import Explanation, Simulation
from gpusched.client.models import Acted, JobData, Log, Page
from gpusched.client.scheduling import QueueItem

P = ParamSpec("P")
T = TypeVar("T")


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

    async def elements(self, *, state: str | None = None, index: int | str | None = None) -> list[Element]:
        """The elements of the array by their numbers; `index` like 3-7,9. A job that is no array has none."""
        return await self.client.elements(self.id, state=state, index=index)

    async def hold(self) -> "AsyncJob":
        return await self.client.hold(self.id)

    async def release(self) -> "AsyncJob":
        return await self.client.release(self.id)

    async def queue_again(self) -> "AsyncJob":
        """Requeues it (`requeue` is the field that says whether that may happen by itself)."""
        return await self.client.requeue(self.id)


# The class below has a method named `list`, which hides the type of that name in its annotations.
_Jobs = list[AsyncJob]
_Queue = list[QueueItem]
_Secrets = list[Secret]
_Elements = list[Element]


def _call(build: Callable[P, Call[T]]) -> "Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]":
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(build(*args, **kwargs))

    wire.describe(method, build)
    return method


def _job_call(
    build: Callable[P, Call[Acted]],
) -> "Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, AsyncJob]]":
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncJob:
        acted = await self.send(build(*args, **kwargs))
        return self._own(acted.job, acted.message)

    wire.describe(method, build)
    return method


def _list_call(
    build: Callable[P, Call[Page[T]]],
) -> "Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, list[T]]]":
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        return await self._run(flows.all_items(build(*args, **kwargs), self.patience_seconds))

    wire.describe(method, build)
    return method


class AsyncClient(ClusterMethods):
    """As Client, with every method awaited.

    `patience_seconds`: how long a call that may be repeated is, while the server cannot be reached or is too busy.
    `on_retry` is told why, before each repeat."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        tenant: str | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
        on_retry: Callable[[str], None] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.config = config.resolve(url, token, tenant)
        self.patience_seconds, self.on_retry = patience_seconds, on_retry
        self._http = httpx.AsyncClient(**wire.options(self.config), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def submit(
        self,
        command: Sequence[str] = (),
        *,
        gpus: int = 0,
        idempotency_key: str | None = None,
        **options: Unpack[job_calls.JobOptions],
    ) -> AsyncJob:
        """Submits a job and gives it as accepted. Raises NeverFits if it can never run, Invalid if it makes no sense.

        Two submits with the same `idempotency_key` make one job."""
        return await self.submit_request(job_calls.request(command, gpus, self.config.tenant, options), idempotency_key)

    async def simulate(
        self, command: Sequence[str] = (), *, gpus: int = 0, **options: Unpack[job_calls.JobOptions]
    ) -> Simulation:
        """What would become of a job if it were submitted now; nothing is submitted. Refused as the submit would be."""
        return await self.simulate_request(job_calls.request(command, gpus, self.config.tenant, options))

    async def get(self, job_id: int) -> AsyncJob:
        """One job as it is now."""
        return self._own(await self.send(job_calls.job(job_id)))

    async def list(
        self,
        *,
        tenant: str | None = None,
        state: str | Iterable[str] | None = None,
        user: str | None = None,
        name: str | None = None,
        ended_after: str | None = None,
        ended_before: str | None = None,
        limit: int | None = 100,
    ) -> _Jobs:
        """Jobs that you may see, newest first; `state` is one or several; times as 2030-01-31 or RFC 3339; `limit`
        None is all of them."""
        dates = {"ended_after": ended_after, "ended_before": ended_before}
        call = job_calls.jobs(tenant=tenant, state=state, user=user, name=name, **dates)
        return [
            self._own(job)
            for job in await self._run(flows.all_items(call, self.patience_seconds, limit, is_sized=True))
        ]

    async def elements(
        self,
        job_id: int,
        *,
        state: str | Iterable[str] | None = None,
        index: int | str | None = None,
        limit: int | None = None,
    ) -> _Elements:
        """The elements of an array by their numbers, those too that are no jobs yet; `index` like 3-7,9."""
        call = job_calls.elements(job_id, state=state, index=index)
        return await self._run(flows.all_items(call, self.patience_seconds, limit, is_sized=True))

    async def queue(self, *, limit: int | None = 100) -> _Queue:
        """Who waits, in the order in which they are looked at; `limit` None is all of them."""
        return await self._run(flows.all_items(job_calls.queue(), self.patience_seconds, limit, is_sized=True))

    async def wait(self, job_id: int, timeout: float | None = None) -> AsyncJob:  # noqa: ASYNC109 as in Client
        """The job once it has ended; raises Timeout after `timeout` seconds (the job goes on then)."""
        return self._own(await self._run(flows.wait(job_id, timeout)))

    async def follow(
        self, job_id: int, *, attempt: int | None = None, rank: int = 0, offset: int = 0
    ) -> AsyncIterator[Log | AsyncJob]:
        """The job at each change of its state, and its output as it grows, until it ends. Survives server restarts."""
        async for item in self._items(flows.follow(job_id, attempt, rank, offset)):
            yield self._own(item) if isinstance(item, JobData) else item

    async def secrets(self, *, tenant: str | None = None) -> _Secrets:
        """The secrets of a tenant by name, never their values. Without one named, of the configuration's, or your only
        one."""
        return await self._run(secret_calls.secrets(tenant or self.config.tenant, self.patience_seconds))

    async def set_secret(self, name: str, value: str, *, tenant: str | None = None) -> Secret:
        """Keeps a value under a name, in place of the one before; jobs name it in `secrets`."""
        whose = tenant or self.config.tenant
        return await self._run(secret_calls.set_secret(name, value, whose, self.patience_seconds))

    async def delete_secret(self, name: str, *, tenant: str | None = None) -> None:
        """Attempts that name it and start from now on fail."""
        await self._run(secret_calls.delete_secret(name, tenant or self.config.tenant, self.patience_seconds))

    async def events(
        self, since: int | None = None, *, tenant: str | None = None, kind: str | None = None, follow: bool = True
    ) -> AsyncIterator[JobEvent]:
        """As of Client, with `async for`."""
        async for event in self._items(flows.events(since, tenant, kind, is_following=follow)):
            yield event

    submit_request = _job_call(job_calls.submit)
    submit_many = _call(job_calls.submit_many)
    simulate_request = _call(job_calls.simulate)
    cancel = _job_call(job_calls.cancel)
    retry = _job_call(job_calls.retry)
    hold = _job_call(job_calls.hold)
    release = _job_call(job_calls.release)
    requeue = _job_call(job_calls.requeue)
    extend = _call(job_calls.extend)
    why = _call(job_calls.why)
    history = _list_call(job_calls.history)
    attempts = _list_call(job_calls.attempts)
    logs = _call(job_calls.logs)

    def _own(self, data: JobData, message: str = "") -> AsyncJob:
        job = AsyncJob(**{name: getattr(data, name) for name in data.__struct_fields__})
        job.__dict__.update(_client=self, _message=message)
        return job

    async def _run(self, flow: Flow[T]) -> T:
        answer: object = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            answer = await self._perform(step)

    async def _items(self, flow: Flow[None]) -> AsyncIterator[Any]:
        answer: object = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration:
                return
            if isinstance(step, Emit):
                yield step.item
            answer = await self._perform(step)

    async def _perform(self, step: Call[Any] | Pause | Emit) -> Reply | Lost | None:
        if isinstance(step, Call):
            try:
                return wire.reply(await self._http.request(**wire.request(step)))
            except httpx.RequestError as error:
                return wire.lost(error, self.config.url)
        if isinstance(step, Pause):
            if step.because and self.on_retry:
                self.on_retry(step.because)
            await asyncio.sleep(step.seconds)
        return None
