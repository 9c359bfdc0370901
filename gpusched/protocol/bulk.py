"""Many job requests in one: how many at most, and what is wrong with which of them, by `jobs[3].gpu_count`."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import msgspec

from gpusched.protocol.dependencies import cycle_in
from gpusched.protocol.job_request import RESERVED, VARIABLE, FieldError, JobRequest, validate, validate_text

MAX_JOBS = 10_000
# Of all jobs together. Each is a row to write and to take away again; so many take three seconds.
MAX_EDGES = 50_000
# Of a wrong generator of jobs all jobs are wrong: the first so many say enough.
MAX_ERRORS = 100
# What the jobs of a sweep differ in. Whatever else is wrong with one of them is wrong with those that are like it.
VARYING_FIELDS = ("name", "args", "environment")
_PLACES = sorted(JobRequest.__struct_fields__.index(field) for field in VARYING_FIELDS)
_PARTS = [slice(a + 1, b) for a, b in pairwise([-1, *_PLACES, len(JobRequest.__struct_fields__)])]
# Far below all limits of text, so that what is shorter need not be measured by its parts.
_SHORT = 10_000
# A request is compared with so many of those before it that are like no other.
_MAX_COMPARED = 4


class BulkRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """All of them or none; their ids are answered in this order."""

    jobs: list[JobRequest]


def field_path(number: int, field: str = "") -> str:
    """The name of a field of the job at `number`, from 0; of the job as a whole without `field`."""
    return f"jobs[{number}].{field}" if field else f"jobs[{number}]"


def first_identical(requests: Sequence[JobRequest]) -> list[int]:
    """For each the number of one before it that differs from it in FREE at most; its own number if none is found."""
    known: deque[tuple[int, list[tuple[Any, ...]]]] = deque(maxlen=_MAX_COMPARED)
    found = []
    for number, request in enumerate(requests):
        values = msgspec.structs.astuple(request)
        rest = [values[part] for part in _PARTS]
        like = next((other for other, theirs in known if theirs == rest), number)
        if like == number:
            known.appendleft((number, rest))
        found.append(like)
    return found


def bulk_problems(requests: Sequence[JobRequest], likes: Sequence[int] = ()) -> list[FieldError]:
    """Everything wrong that needs no database, MAX_ERRORS at most; empty when they may be submitted. `likes`: as
    `alike` finds them."""
    if not 1 <= len(requests) <= MAX_JOBS:
        return [FieldError("jobs", "out_of_range", f"1 to {MAX_JOBS} jobs in one request, not {len(requests)}")]
    if (edges := sum(len(request.depends_on) for request in requests)) > MAX_EDGES:
        message = (
            f"their `depends_on` name {edges} jobs, at most {MAX_EDGES} in one request: let a job in between wait for"
            " many, and others for that one"
        )
        return [FieldError("jobs", "out_of_range", message)]
    found = chain(_each(requests, likes or first_identical(requests)), _names(requests))
    return [error for error, _ in zip(found, range(MAX_ERRORS), strict=False)]


def _each(requests: Sequence[JobRequest], likes: Sequence[int]) -> Iterator[FieldError]:
    well: set[int] = set()
    for number, (request, like) in enumerate(zip(requests, likes, strict=True)):
        wrong = _problems_of_free(request) if like in well else validate(request)
        if not wrong:
            well.add(like if like in well else number)
        for error in wrong:
            yield FieldError(field_path(number, error.field), error.code, error.message)


def _problems_of_free(request: JobRequest) -> list[FieldError]:
    """What is wrong with a request of which all but FREE is known to be well."""
    environment = request.environment
    text = "".join((request.name, *request.command, *request.args, *environment, *environment.values()))
    is_short = len(text) <= _SHORT and len(request.name) <= 200 and len(request.args) <= 1000
    if is_short and len(request.command) <= 1000 and "\x00" not in text and all(map(_is_variable, environment)):
        return []
    return validate_text(request)


def _is_variable(name: str) -> bool:
    return VARIABLE.match(name) is not None and not name.startswith(RESERVED)


def _names(requests: Sequence[JobRequest]) -> Iterator[FieldError]:
    """Names that two jobs have, that none has, and cycles of jobs that wait for each other."""
    refs: set[str] = set()
    for number, request in enumerate(requests):
        if request.ref in refs:
            yield FieldError(field_path(number, "ref"), "duplicate", f"another job has the ref '{request.ref}'")
        elif request.ref:
            refs.add(request.ref)
    waits_for: dict[str, list[str]] = {}
    for number, request in enumerate(requests):
        if not request.depends_on:
            continue
        names = [one.job for one in request.dependencies if isinstance(one.job, str)]
        for name in sorted(set(names) - refs):
            message = f"no job of this request has the ref '{name[:64]}'"
            yield FieldError(field_path(number, "depends_on"), "unknown_ref", message)
        waits_for[request.ref or field_path(number)] = names
    if names := cycle_in(waits_for):
        number = next(n for n, request in enumerate(requests) if request.ref == names[0])
        message = f"these wait for each other: {' -> '.join(_shortened(names))}"
        yield FieldError(field_path(number, "depends_on"), "cycle", message)


def _shortened(names: Sequence[str]) -> list[str]:
    return [*names[:10], "…", *names[-2:]] if len(names) > 20 else list(names)
