"""Groups waiting jobs that are alike: of one tenant, request and priority. Remembers the last queue that it grouped."""

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from scheduling.engine.model import Job, Request

# (tenant, request's number, priority).
Likeness = tuple[int, int, int]


class IdenticalJobs(NamedTuple):
    """In the order of their age, then of their ids; never empty."""

    jobs: list[Job]
    job_ids: tuple[int, ...]


class Grouped(NamedTuple):
    """`numbers`: each distinct request and its number. `later`: jobs that are not eligible yet. Shared between plans,
    so never to be changed."""

    jobs: tuple[Job, ...]
    now: float
    numbers: dict[Request, int]
    alike: dict[Likeness, IdenticalJobs]
    later: list[Job]


_age = attrgetter("queued_at")
_last = Grouped((), 0.0, {}, {}, [])


def group_jobs(jobs: Iterable[Job], now: float) -> Grouped:
    """Jobs in any order.

    In a worker most cycles find the queue of the cycle before, and its very objects: then comparing the two costs a
    hundredth of grouping anew. This holds no truth: it is the same function with and without the memory.
    """
    global _last
    jobs = tuple(jobs)
    last = _last
    if last.now <= now and last.jobs == jobs and all(job.eligible_at > now for job in last.later):
        _last = last._replace(jobs=jobs)  # equal ones may be others: these are found by their identity next time
        return _last
    _last = _grouped(jobs, now)
    return _last


def _grouped(jobs: tuple[Job, ...], now: float) -> Grouped:
    found = Grouped(jobs, now, {}, {}, [])
    # Hashing a request costs more than all else here, so requests are looked up by their identity first.
    known: dict[int, int] = {}
    by_identity: dict[Likeness, list[Job]] = {}
    by_likeness: dict[Likeness, list[Job]] = {}
    for job in sorted(jobs, key=attrgetter("id")):
        if job.eligible_at > now:
            found.later.append(job)
            continue
        key = (job.tenant_id, id(job.request), job.priority)
        alike = by_identity.get(key)
        if alike is None:
            number = known.get(key[1])
            if number is None:
                number = known[key[1]] = found.numbers.setdefault(job.request, len(found.numbers))
            alike = by_identity[key] = by_likeness.setdefault((key[0], number, key[2]), [])
        alike.append(job)
    for likeness, alike in by_likeness.items():
        alike.sort(key=_age)
        found.alike[likeness] = IdenticalJobs(alike, tuple([job.id for job in alike]))
    return found
