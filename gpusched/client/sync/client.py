# Written from gpusched/client/aio/client.py by `make client`: edit that file, not this one.
"""The client: submit, watch and steer jobs. It returns jobs that know their client."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Concatenate, ParamSpec, Unpack

from gpusched.client.calls import jobs
from gpusched.client.errors import NotFound
from gpusched.client.sync import following
from gpusched.client.sync.cluster import ClusterMethods
from gpusched.client.sync.connection import items, single
from gpusched.client.sync.handles import ArrayElement, Job
from gpusched.client.sync.notifications import NotificationMethods
from gpusched.client.sync.reservations import ReservationMethods
from gpusched.client.sync.serving import ServingMethods
from gpusched.client.transport import wire
from gpusched.client.transport.call import Call
from gpusched.protocol.rest.arrays import Element
from gpusched.protocol.rest.events import JobEvent
from gpusched.protocol.rest.explain import Simulation
from gpusched.protocol.rest.jobs import Acted, JobData, Log
from gpusched.protocol.rest.scheduling import QueueItem

P = ParamSpec("P")

# The class below has a method named `list`, which hides the type of that name in its annotations.
_Jobs = list[Job]
_Queue = list[QueueItem]
_Elements = list[ArrayElement]


def _job_call(
    build: Callable[P, Call[Acted]],
) -> "Callable[Concatenate[Client, P], Job]":
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Job:
        acted = self.send(build(*args, **kwargs))
        return self._handle(acted.job, acted.message)

    wire.describe(method, build)
    return method


class Client(ClusterMethods, ServingMethods, NotificationMethods, ReservationMethods):
    """A client of one server. URL, token and tenant come from the arguments, the environment, or the config file.

    `patience_seconds`: how long to retry a repeatable call while the server cannot be reached or is too busy.
    `on_retry`: called with the reason before each retry."""

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
        return [self._handle(job) for job in self._items(call, limit, is_sized=True)]

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
        return [self._element(job_id, row) for row in self._items(call, limit, is_sized=True)]

    def element(self, job_id: int, index: int) -> ArrayElement:
        """Return the current state of an array's element. Raises NotFound if there is none."""
        return self._element(job_id, self._read_element(job_id, index))

    def wait_element(self, job_id: int, index: int, timeout: float | None = None) -> ArrayElement:
        """Return the element once it has ended; raises Timeout after `timeout` seconds (the element continues)."""

        def read(seconds: float) -> Element:
            return self._read_element(job_id, index, seconds)

        subject = f"element {index} of array {job_id}"
        return self._element(job_id, following.until_final(read, timeout, subject))

    def queue(self, *, limit: int | None = 100) -> _Queue:
        """Return the pending jobs in scheduling order; `limit` None returns all."""
        return self._items(jobs.queue(), limit, is_sized=True)

    def wait(self, job_id: int, timeout: float | None = None) -> Job:
        """Return the job once it has ended; raises Timeout after `timeout` seconds (the job continues)."""

        def read(seconds: float) -> JobData:
            return following.send_within(self, jobs.job(job_id), seconds)

        return self._handle(following.until_final(read, timeout, f"job {job_id}"))

    def follow(self, job_id: int, *, attempt: int | None = None, rank: int = 0, offset: int = 0) -> Iterator[Log | Job]:
        """Yield the job at each change of its state, and its output as it grows, until it ends. Survives server
        restarts."""
        for item in following.follow(self, job_id, attempt, rank, offset):
            yield self._handle(item) if isinstance(item, JobData) else item

    def events(
        self, since: int | None = None, *, tenant: str | None = None, kind: str | None = None, follow: bool = True
    ) -> Iterator[JobEvent]:
        """Yield the events of jobs that you can see, in order, after the event `since` (None: from now on; 0: from the
        beginning); for ever, or with `follow=False` up to now. Resumes after a lost connection; to continue in another
        process, keep the `id` of the last event. `kind`: one or several, separated by commas."""
        for event in following.events(self, since, tenant, kind, is_following=follow):
            yield event

    submit_request = _job_call(jobs.submit)
    submit_many = single(jobs.submit_many)
    simulate_request = single(jobs.simulate)
    cancel = _job_call(jobs.cancel)
    retry = _job_call(jobs.retry)
    hold = _job_call(jobs.hold)
    release = _job_call(jobs.release)
    requeue = _job_call(jobs.requeue)
    send_signal = _job_call(jobs.send_signal)
    extend = single(jobs.extend)
    why = single(jobs.why)
    history = items(jobs.history)
    attempts = items(jobs.attempts)
    logs = single(jobs.logs)

    def _handle(self, data: JobData, message: str = "") -> Job:
        job = Job(**{name: getattr(data, name) for name in data.__struct_fields__})
        job.__dict__.update(_client=self, _message=message)
        return job

    def _element(self, array_id: int, data: Element) -> ArrayElement:
        element = ArrayElement(**{name: getattr(data, name) for name in data.__struct_fields__})
        element.__dict__.update(_client=self, _array_id=array_id)
        return element

    def _read_element(self, array_id: int, index: int, seconds: float | None = None) -> Element:
        call = jobs.elements(array_id, index=index)
        page = self.send(call) if seconds is None else following.send_within(self, call, seconds)
        for item in page.items:
            return item
        raise NotFound(f"job {array_id} is no array", next_step="read the job itself")
