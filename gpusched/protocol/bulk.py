"""Many job requests in one: their maximum number, and the problems of each by its field, like `jobs[3].gpu_count`."""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import msgspec

from gpusched.protocol.dependencies import cycle_in
from gpusched.protocol.job_request import AUTO, RESERVED, VARIABLE, FieldError, JobRequest, validate, validate_text

MAX_JOBS = 10_000
# Total of all jobs. Each edge is a row to write and to delete; this many take three seconds.
MAX_EDGES = 50_000
# A faulty generator produces only faulty jobs: the first errors suffice.
MAX_ERRORS = 100
# The fields in which the jobs of a sweep differ. Any other problem of one job is also a problem of the jobs like it.
VARYING_FIELDS = ("name", "args", "environment")
_PLACES = sorted(JobRequest.__struct_fields__.index(field) for field in VARYING_FIELDS)
_PARTS = [slice(a + 1, b) for a, b in pairwise([-1, *_PLACES, len(JobRequest.__struct_fields__)])]
# Far below all limits of text: shorter requests need no check of their parts.
_SHORT = 10_000
# A request is compared with this many different earlier ones.
_MAX_COMPARED = 4


class BulkRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Jobs to submit, all or none; the answer has their ids in this order."""

    jobs: list[JobRequest]


def field_path(number: int, field: str = "") -> str:
    """Return the name of a field of the job at `number`, from 0; without `field`, of the job as a whole."""
    return f"jobs[{number}].{field}" if field else f"jobs[{number}]"


def first_identical(requests: Sequence[JobRequest]) -> list[int]:
    """Return for each request the number of an earlier one that differs at most in VARYING_FIELDS; its own number if
    there is none."""
    compared: deque[tuple[int, list[tuple[Any, ...]]]] = deque(maxlen=_MAX_COMPARED)
    numbers = []
    for number, request in enumerate(requests):
        values = msgspec.structs.astuple(request)
        fixed = [values[part] for part in _PARTS]
        is_auto = request.gpu_memory_mb == AUTO  # it depends on the arguments
        like = number if is_auto else next((other for other, theirs in compared if theirs == fixed), number)
        if like == number:
            compared.appendleft((number, fixed))
        numbers.append(like)
    return numbers


def bulk_problems(requests: Sequence[JobRequest], likes: Sequence[int] = ()) -> list[FieldError]:
    """Return the problems that need no database, at most MAX_ERRORS; empty for a valid request. `likes`: the result of
    `first_identical`."""
    if not 1 <= len(requests) <= MAX_JOBS:
        return [FieldError("jobs", "out_of_range", f"1 to {MAX_JOBS} jobs in one request, not {len(requests)}")]
    if (edges := sum(len(request.depends_on) for request in requests)) > MAX_EDGES:
        message = (
            f"their `depends_on` name {edges} jobs, at most {MAX_EDGES} in one request: let an intermediate job wait"
            " for many, and others for that one"
        )
        return [FieldError("jobs", "out_of_range", message)]
    problems = chain(_each(requests, likes or first_identical(requests)), _names(requests))
    return [error for error, _ in zip(problems, range(MAX_ERRORS), strict=False)]


def _each(requests: Sequence[JobRequest], likes: Sequence[int]) -> Iterator[FieldError]:
    valid: set[int] = set()
    for number, (request, like) in enumerate(zip(requests, likes, strict=True)):
        problems = _varying_problems(request) if like in valid else validate(request)
        if not problems:
            valid.add(like if like in valid else number)
        for error in problems:
            yield FieldError(field_path(number, error.field), error.code, error.message)


def _varying_problems(request: JobRequest) -> list[FieldError]:
    """Return the problems of a request that is known to be valid except for VARYING_FIELDS."""
    environment = request.environment
    text = "".join((request.name, *request.command, *request.args, *environment, *environment.values()))
    is_short = len(text) <= _SHORT and len(request.name) <= 200 and len(request.args) <= 1000
    if is_short and len(request.command) <= 1000 and "\x00" not in text and all(map(_is_variable, environment)):
        return []
    return validate_text(request)


def _is_variable(name: str) -> bool:
    return VARIABLE.match(name) is not None and not name.startswith(RESERVED)


def _names(requests: Sequence[JobRequest]) -> Iterator[FieldError]:
    """Yield duplicate refs, unknown refs, and cycles of jobs that wait for each other."""
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
        names = [dependency.job for dependency in request.dependencies if isinstance(dependency.job, str)]
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
