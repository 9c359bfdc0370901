"""The calls for jobs: submit, read, act on, explain, logs, and the queue."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec

from gpusched.client.errors import Invalid, NotFound
from gpusched.client.transport.call import API, Call, get, json_as, without_none, write
from gpusched.protocol import choices
from gpusched.protocol.affinity import NodeAffinity, Toleration
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.dependencies import Dependency
from gpusched.protocol.job_request import JobRequest
from gpusched.protocol.rest.arrays import Element
from gpusched.protocol.rest.events import Event, EventPage
from gpusched.protocol.rest.explain import Explanation, Simulation
from gpusched.protocol.rest.jobs import Acted, Attempt, BulkActed, JobData, Log, Page
from gpusched.protocol.rest.scheduling import QueueItem
from gpusched.protocol.rest.time_limits import Extended
from gpusched.protocol.signals import SignalName

if TYPE_CHECKING:
    import httpx


class JobOptions(TypedDict, total=False):
    """The options of `submit` besides the command and `gpus`; JobRequest defines their meanings and defaults."""

    tenant: str | None
    name: str
    priority: int
    gpu_memory_mb: int | Literal["auto"] | None
    gpu_model: str | None
    gpu_sharing: str
    cpu_cores: float
    memory_mb: int
    args: list[str]
    script: str | None
    workdir: str | None
    environment: dict[str, str]
    secrets: list[str]
    image: str | None
    runtime: str
    mounts: list[str]
    gang_scheduling: bool
    ranks: int | None
    workload_class: str
    max_runtime_minutes: float | None
    predicted_runtime_minutes: float | None
    preemptible: bool
    requeue: bool
    max_retries: int
    retry_on: list[str]
    grace_seconds: int
    not_before: str | None
    depends_on: list[int | str | Dependency]
    ref: str
    array: ArrayRequest | None
    labels: dict[str, str]
    node_selector: dict[str, str]
    node_affinity: NodeAffinity | None
    tolerations: list[Toleration]
    anti_affinity: str | None
    topology: str
    reservation: int | None


class JobFilters(TypedDict, total=False):
    """The filters of `list`: jobs that match all of them."""

    tenant: str | None
    state: str | Iterable[str] | None
    user: str | None
    name: str | None
    array: int | None
    submitted_after: str | None
    submitted_before: str | None
    ended_after: str | None
    ended_before: str | None


def request(command: Sequence[str], gpus: int, default_tenant: str | None, options: JobOptions) -> JobRequest:
    """Return the job request of these arguments. Raises Invalid for wrong names and types."""
    if isinstance(command, str):
        raise Invalid('command must be a list like ["python", "train.py"], not a string')
    fields: dict[str, Any] = {"tenant": default_tenant, **options, "command": list(command), "gpu_count": gpus}
    return as_request(fields)


def as_request(fields: dict[str, Any]) -> JobRequest:
    """Return a job request from plain fields, as in a file. Raises Invalid for unknown names and wrong types."""
    try:
        return msgspec.convert(fields, JobRequest)
    except msgspec.ValidationError as error:
        message = choices.named(JobRequest, str(error))
        raise Invalid(
            message[0].lower() + message[1:], next_step="see the fields of a job in docs/rest.md#job-request"
        ) from error


def submit(job: JobRequest, key: str | None = None) -> Call[Acted]:
    """Submit a job. Only values that differ from the defaults are sent, so that an older server gets no unknown
    fields."""
    return write("POST", "/jobs", Acted, _without_defaults(job), key=key)


def submit_many(jobs: Sequence[JobRequest], key: str | None = None, *, dry_run: bool = False) -> Call[BulkActed]:
    """Submit 1 to 10,000 jobs, all or none; the answer has their ids in this order. They can depend on each other by
    `ref`. Two submits with the same `key` are one. `dry_run`: check everything, and submit nothing."""
    body = {"jobs": [_without_defaults(job) for job in jobs]}
    return write("POST", "/jobs/bulk", BulkActed, body, key=key, is_dry_run=dry_run)


def _without_defaults(job: JobRequest) -> dict[str, object]:
    plain = msgspec.to_builtins(job)
    blank = msgspec.to_builtins(JobRequest())
    return {name: value for name, value in plain.items() if value != blank[name]}


def simulate(job: JobRequest) -> Call[Simulation]:
    """Return what would happen to the job if it were submitted now: where it would start, or why not, and when. Submits
    nothing, and fails as the submit would."""
    return Call("POST", f"{API}/jobs/simulate", json_as(Simulation), body=_without_defaults(job))


def job(job_id: int) -> Call[JobData]:
    """Return the current state of a job."""
    return get(f"/jobs/{job_id}", JobData)


def jobs(*, state: str | Iterable[str] | None = None, **filters: str | int | None) -> Call[Page[JobData]]:
    """Return the jobs that match JobFilters; another filter is a TypeError."""
    if unknown := set(filters) - JobFilters.__optional_keys__:
        raise TypeError(f"jobs have no filter {', '.join(sorted(unknown))}")
    return get("/jobs", Page[JobData], state=_states(state), **filters)


def _states(state: str | Iterable[str] | None) -> str | None:
    return state if isinstance(state, str) or state is None else ",".join(state)


def cancel(job_id: int, elements: str | None = None) -> Call[Acted]:
    """Cancel a job, waiting or running; of an array only these `elements`, like 3-7,9. Safe to repeat."""
    return write("POST", f"/jobs/{job_id}/cancel", Acted, without_none(elements=elements) or None)


def retry(job_id: int, elements: str = "failed") -> Call[Acted]:
    """Run a failed, cancelled or preempted job again; of an array the elements that failed, or ended ones by numbers
    like 3-7,9."""
    return write("POST", f"/jobs/{job_id}/retry", Acted, {"elements": elements})


def elements(
    job_id: int, *, state: str | Iterable[str] | None = None, index: int | str | None = None
) -> Call[Page[Element]]:
    return get(f"/jobs/{job_id}/elements", Page[Element], state=_states(state), index=index)


def hold(job_id: int) -> Call[Acted]:
    """Hold a waiting job: it does not start until it is released."""
    return write("POST", f"/jobs/{job_id}/hold", Acted)


def release(job_id: int) -> Call[Acted]:
    """Release a held job: it starts when it is its turn."""
    return write("POST", f"/jobs/{job_id}/release", Acted)


def requeue(job_id: int) -> Call[Acted]:
    """Stop a live job and put it back into the queue."""
    return write("POST", f"/jobs/{job_id}/requeue", Acted)


def send_signal(job_id: int, signal: SignalName) -> Call[Acted]:
    """Send HUP, INT, QUIT, USR1 or USR2 to the first process of each rank of a running job."""
    return write("POST", f"/jobs/{job_id}/signal", Acted, {"signal": signal})


def extend(
    job_id: int,
    *,
    add_minutes: float | None = None,
    max_runtime_minutes: float | None = None,
    force: bool = False,
    dry_run: bool = False,
    key: str | None = None,
) -> Call[Extended]:
    """Change the time limit of a waiting or running job, by `add_minutes` or to `max_runtime_minutes`. `dry_run`:
    describe the effect, and change nothing. Two calls with the same `key` are one."""
    body = without_none(add_minutes=add_minutes, max_runtime_minutes=max_runtime_minutes, force=force or None)
    return write("POST", f"/jobs/{job_id}/extend", Extended, body, key=key, is_dry_run=dry_run)


def why(job_id: int) -> Call[Explanation]:
    """Explain a job's state: the reason, the next step, and the jobs ahead of it."""
    return get(f"/jobs/{job_id}/explain", Explanation)


def history(job_id: int) -> Call[Page[Event]]:
    """Return all events of a job, oldest first."""
    return get(f"/jobs/{job_id}/events", Page[Event])


def events(
    since: int | None = None, *, wait_seconds: int = 0, tenant: str | None = None, kind: str | None = None
) -> Call[EventPage]:
    """Return events of all jobs that you can see, after the id `since` (None: from now on; 0: from the beginning)."""
    return get("/events", EventPage, since=since, wait=wait_seconds or None, tenant=tenant, kind=kind, limit=1000)


def attempts(job_id: int) -> Call[Page[Attempt]]:
    """Return the attempts of a job, with the end of each rank."""
    return get(f"/jobs/{job_id}/attempts", Page[Attempt])


def logs(
    job_id: int, *, attempt: int | None = None, rank: int = 0, offset: int = 0, limit: int | None = None
) -> Call[Log]:
    """Return a piece of the output, from `offset` bytes (negative: from the end). Without `attempt`, of the latest
    one."""
    query = without_none(attempt=attempt, rank=rank, offset=offset, limit=limit)
    return Call("GET", f"{API}/jobs/{job_id}/logs", _log, query=query)


def _log(response: "httpx.Response") -> Log:
    if "x-log-size" not in response.headers:
        raise ValueError("it has no X-Log-Size header")

    def number(name: str, default: int) -> int:
        return int(response.headers.get(f"x-log-{name}", default))

    offset = number("offset", 0)
    # By the bytes: an answer without a length, as old proxies send it, can be cut without notice.
    next_offset = offset + len(response.content)
    is_whole = number("next-offset", next_offset) == next_offset
    return Log(
        data=response.content,
        offset=offset,
        next_offset=next_offset,
        size=number("size", next_offset),
        is_complete=is_whole and response.headers.get("x-log-complete") == "true",
        attempt=number("attempt", 0),
    )


def queue() -> Call[Page[QueueItem]]:
    return get("/queue", Page[QueueItem])


def job_of(element: Element, array_id: int) -> int:
    """Return the id of the element's job. Raises NotFound before it is one."""
    if element.job_id is None:
        raise NotFound(f"element {element.index} of array {array_id} is {element.state} and no job yet")
    return element.job_id
