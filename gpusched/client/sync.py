"""The blocking client: it drives calls and flows with httpx.Client, and returns jobs that know their client."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast

import httpx

from gpusched.client import config
from gpusched.client.calls import access, flows, jobs
from gpusched.client.handles import ArrayElement, Job
from gpusched.client.sync_cluster import ClusterMethods
from gpusched.client.transport import wire
from gpusched.client.transport.call import Call, Reply
from gpusched.client.transport.exchange import RETRY_TIMEOUT_SECONDS, Emit, Flow, NoResponse, Pause
from gpusched.protocol.rest.access import Secret
from gpusched.protocol.rest.arrays import Element
from gpusched.protocol.rest.events import JobEvent
from gpusched.protocol.rest.explain import Simulation
from gpusched.protocol.rest.jobs import Acted, JobData, Log, Page
from gpusched.protocol.rest.scheduling import QueueItem

P = ParamSpec("P")
T = TypeVar("T")


# The class below has a method named `list`, which hides the type of that name in its annotations.
_Jobs = list[Job]
_Queue = list[QueueItem]
_Secrets = list[Secret]
_Elements = list[ArrayElement]


def _call(build: Callable[P, Call[T]]) -> "Callable[Concatenate[Client, P], T]":
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(build(*args, **kwargs))

    wire.describe(method, build)
    return method


def _job_call(build: Callable[P, Call[Acted]]) -> "Callable[Concatenate[Client, P], Job]":
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Job:
        acted = self.send(build(*args, **kwargs))
        return self._handle(acted.job, acted.message)

    wire.describe(method, build)
    return method


def _list_call(build: Callable[P, Call[Page[T]]]) -> "Callable[Concatenate[Client, P], list[T]]":
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        return self._run(flows.all_items(build(*args, **kwargs), self.patience_seconds))

    wire.describe(method, build)
    return method


class Client(ClusterMethods):
    """A client of one server. URL, token and tenant come from the arguments, the environment, or the config file.

    `patience_seconds`: how long to retry a repeatable call while the server cannot be reached or is too busy.
    `on_retry`: called with the reason before each retry."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        tenant: str | None = None,
        patience_seconds: float = RETRY_TIMEOUT_SECONDS,
        on_retry: Callable[[str], None] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.config = config.resolve(url, token, tenant)
        self.patience_seconds, self.on_retry = patience_seconds, on_retry
        self._http = httpx.Client(**wire.options(self.config), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; `with` does this automatically."""
        self._http.close()

    def submit(
        self,
        command: Sequence[str] = (),
        *,
        gpus: int = 0,
        idempotency_key: str | None = None,
        **options: Unpack[jobs.JobOptions],
    ) -> Job:
        """Submit a job and return it as accepted. Raises NeverFits if it can never run, Invalid if it is invalid.

        Two submits with the same `idempotency_key` create one job."""
        return self.submit_request(jobs.request(command, gpus, self.config.tenant, options), idempotency_key)

    def simulate(self, command: Sequence[str] = (), *, gpus: int = 0, **options: Unpack[jobs.JobOptions]) -> Simulation:
        """Return what would happen to a job that is submitted now; nothing is submitted. Fails as the submit would."""
        return self.simulate_request(jobs.request(command, gpus, self.config.tenant, options))

    def get(self, job_id: int) -> Job:
        """Return the current state of a job."""
        return self._handle(self.send(jobs.job(job_id)))

    def list(self, *, limit: int | None = 100, **filters: Unpack[jobs.JobFilters]) -> _Jobs:
        """Return the jobs that you can see, newest first; `limit` None returns all. `state`: one or several; `array`:
        the elements of this array that are jobs; times as 2030-01-31 or RFC 3339."""
        call = jobs.jobs(**filters)
        return [
            self._handle(job) for job in self._run(flows.all_items(call, self.patience_seconds, limit, is_sized=True))
        ]

    def elements(
        self,
        job_id: int,
        *,
        state: str | Iterable[str] | None = None,
        index: int | str | None = None,
        limit: int | None = None,
    ) -> _Elements:
        """Return the elements of an array by number, including those that are not jobs yet; `index` like 3-7,9."""
        call = jobs.elements(job_id, state=state, index=index)
        rows = self._run(flows.all_items(call, self.patience_seconds, limit, is_sized=True))
        return [self._element(job_id, row) for row in rows]

    def element(self, job_id: int, index: int) -> ArrayElement:
        """Return the current state of an array's element. Raises NotFound if there is none."""
        return self._element(job_id, self._run(flows.element(job_id, index, self.patience_seconds)))

    def wait_element(self, job_id: int, index: int, timeout: float | None = None) -> ArrayElement:
        """Return the element once it has ended; raises Timeout after `timeout` seconds (the element continues)."""
        return self._element(job_id, self._run(flows.wait_element(job_id, index, timeout)))

    def queue(self, *, limit: int | None = 100) -> _Queue:
        """Return the pending jobs in scheduling order; `limit` None returns all."""
        return self._run(flows.all_items(jobs.queue(), self.patience_seconds, limit, is_sized=True))

    def wait(self, job_id: int, timeout: float | None = None) -> Job:
        """Return the job once it has ended; raises Timeout after `timeout` seconds (the job continues)."""
        return self._handle(self._run(flows.wait(job_id, timeout)))

    def follow(self, job_id: int, *, attempt: int | None = None, rank: int = 0, offset: int = 0) -> Iterator[Log | Job]:
        """Yield the job at each change of its state, and its output as it grows, until it ends. Survives server
        restarts."""
        for item in self._items(flows.follow(job_id, attempt, rank, offset)):
            yield self._handle(item) if isinstance(item, JobData) else item

    def secrets(self, *, tenant: str | None = None) -> _Secrets:
        """Return the secrets of a tenant by name, never their values. Without `tenant`: of the configured one, or your
        only one."""
        return self._run(access.secrets(tenant or self.config.tenant, self.patience_seconds))

    def set_secret(self, name: str, value: str, *, tenant: str | None = None) -> Secret:
        """Store a value under a name, replacing the previous one; jobs name it in `secrets`."""
        whose = tenant or self.config.tenant
        return self._run(access.set_secret(name, value, whose, self.patience_seconds))

    def delete_secret(self, name: str, *, tenant: str | None = None) -> None:
        """Delete a secret. Attempts that name it and start later fail."""
        self._run(access.delete_secret(name, tenant or self.config.tenant, self.patience_seconds))

    def events(
        self, since: int | None = None, *, tenant: str | None = None, kind: str | None = None, follow: bool = True
    ) -> Iterator[JobEvent]:
        """Yield the events of jobs that you can see, in order, after the event `since` (None: from now on; 0: from the
        beginning); for ever, or with `follow=False` up to now. Resumes after a lost connection; to continue in another
        process, keep the `id` of the last event. `kind`: one or several, separated by commas."""
        yield from self._items(flows.events(since, tenant, kind, is_following=follow))

    submit_request = _job_call(jobs.submit)
    submit_many = _call(jobs.submit_many)
    simulate_request = _call(jobs.simulate)
    cancel = _job_call(jobs.cancel)
    retry = _job_call(jobs.retry)
    hold = _job_call(jobs.hold)
    release = _job_call(jobs.release)
    requeue = _job_call(jobs.requeue)
    send_signal = _job_call(jobs.send_signal)
    extend = _call(jobs.extend)
    why = _call(jobs.why)
    history = _list_call(jobs.history)
    attempts = _list_call(jobs.attempts)
    logs = _call(jobs.logs)

    def _handle(self, data: JobData, message: str = "") -> Job:
        job = Job(**{name: getattr(data, name) for name in data.__struct_fields__})
        job.__dict__.update(_client=self, _message=message)
        return job

    def _element(self, array_id: int, data: Element) -> ArrayElement:
        element = ArrayElement(**{name: getattr(data, name) for name in data.__struct_fields__})
        element.__dict__.update(_client=self, _array_id=array_id)
        return element

    def _run(self, flow: Flow[T]) -> T:
        answer: object = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            answer = self._perform(step)

    def _items(self, flow: Flow[None]) -> Iterator[Any]:
        answer: object = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration:
                return
            if isinstance(step, Emit):
                yield step.item
            answer = self._perform(step)

    def _perform(self, step: Call[Any] | Pause | Emit) -> Reply | NoResponse | None:
        if isinstance(step, Call):
            try:
                return wire.reply(self._http.request(**wire.request(step)))
            except httpx.RequestError as error:
                return wire.lost(error, self.config.url)
        if isinstance(step, Pause):
            if step.because and self.on_retry:
                self.on_retry(step.because)
            time.sleep(step.seconds)
        return None
