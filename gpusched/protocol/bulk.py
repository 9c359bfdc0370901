"""Many job requests in one: how many at most, and what is wrong with which of them, by `jobs[3].gpu_count`."""

from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec

from gpusched.protocol.dependencies import cycle_in
from gpusched.protocol.jobs import FieldError, JobRequest, problems

MOST_JOBS = 10_000
# Of a wrong generator of jobs all jobs are wrong: the first so many say enough.
MOST_ERRORS = 100


class BulkRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """All of them or none; their ids are answered in this order."""

    jobs: list[JobRequest]


def field_of(number: int, field: str = "") -> str:
    """The name of a field of the job at `number`, from 0; of the job as a whole without `field`."""
    return f"jobs[{number}].{field}" if field else f"jobs[{number}]"


def bulk_problems(requests: Sequence[JobRequest]) -> list[FieldError]:
    """Everything wrong that needs no database, MOST_ERRORS at most; empty when they may be submitted."""
    if not 1 <= len(requests) <= MOST_JOBS:
        return [FieldError("jobs", "out_of_range", f"1 to {MOST_JOBS} jobs in one request, not {len(requests)}")]
    found = chain(_each(requests), _names(requests))
    return [error for error, _ in zip(found, range(MOST_ERRORS), strict=False)]


def _each(requests: Sequence[JobRequest]) -> Iterator[FieldError]:
    for number, request in enumerate(requests):
        for error in problems(request):
            yield FieldError(field_of(number, error.field), error.code, error.message)


def _names(requests: Sequence[JobRequest]) -> Iterator[FieldError]:
    """Names that two jobs have, that none has, and cycles of jobs that wait for each other."""
    refs: set[str] = set()
    for number, request in enumerate(requests):
        if request.ref in refs:
            yield FieldError(field_of(number, "ref"), "duplicate", f"another job has the ref '{request.ref}'")
        elif request.ref:
            refs.add(request.ref)
    waits_for: dict[str, list[str]] = {}
    for number, request in enumerate(requests):
        if not request.depends_on:
            continue
        names = [one.job for one in request.dependencies if isinstance(one.job, str)]
        for name in sorted(set(names) - refs):
            message = f"no job of this request has the ref '{name[:64]}'"
            yield FieldError(field_of(number, "depends_on"), "unknown_ref", message)
        waits_for[request.ref or field_of(number)] = names
    if names := cycle_in(waits_for):
        number = next(n for n, request in enumerate(requests) if request.ref == names[0])
        message = f"these wait for each other: {' -> '.join(_shortened(names))}"
        yield FieldError(field_of(number, "depends_on"), "cycle", message)


def _shortened(names: Sequence[str]) -> list[str]:
    return [*names[:10], "…", *names[-2:]] if len(names) > 20 else list(names)
