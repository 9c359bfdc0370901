"""Groups the identical waiting jobs of each tenant."""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from scheduling.engine.model import Job, Request

# (tenant, request's number, priority, the booking that it insists on).
Likeness = tuple[int, int, int, int | None]


# What may let one of several identical jobs pass another: its time limit, grace period and user, and whether it is
# online.
Variant = tuple[int | None, float, int, bool]


@dataclass(frozen=True)
class IdenticalJobs:
    """Jobs in the order of their age, then of their ids; never empty."""

    jobs: list[Job]

    @cached_property
    def job_ids(self) -> tuple[int, ...]:
        return tuple([job.id for job in self.jobs])

    @cached_property
    def first_id(self) -> int:
        return min(self.job_ids)

    @cached_property
    def variants(self) -> dict[Variant, Job]:
        """Return each variant and a job of it."""
        return {variant_of(job): job for job in self.jobs}


class Grouped(NamedTuple):
    """The groups of a queue. `numbers`: each distinct request and its number. `later`: jobs that are not eligible yet.
    Shared between plans, so never changed."""

    jobs: tuple[Job, ...]
    now: float
    numbers: dict[Request, int]
    identical: dict[Likeness, IdenticalJobs]
    later: list[Job]


def variant_of(job: Job) -> Variant:
    return job.max_runtime_seconds, job.grace_seconds, job.user_id, job.is_online


_by_age = attrgetter("queued_at", "id")


_last = Grouped((), 0.0, {}, {}, [])


def group_jobs(jobs: Iterable[Job], now: float) -> Grouped:
    """Group the jobs, which may come in any order.

    In a worker most cycles see the queue of the cycle before, or a few other jobs at its end: then a comparison costs a
    hundredth of grouping again. The cache changes no result.
    """
    global _last
    jobs, last = tuple(jobs), _last
    grouped = None
    if last.now <= now and all(job.eligible_at > now for job in last.later):
        # Equal objects may be new; keep them for the next comparison, by identity.
        grouped = last._replace(jobs=jobs) if last.jobs == jobs else _changed(last, jobs, now)
    _last = grouped or _grouped(jobs, now)
    return _last


def _grouped(jobs: tuple[Job, ...], now: float) -> Grouped:
    groups = Grouped(jobs, now, {}, {}, [])
    # Hashing a request costs more than the rest of this function, so requests are looked up by identity first.
    number_by_id: dict[int, int] = {}
    by_identity: dict[Likeness, list[Job]] = {}
    by_likeness: dict[Likeness, list[Job]] = {}
    for job in sorted(jobs, key=attrgetter("id")):
        if job.eligible_at > now:
            groups.later.append(job)
            continue
        key = (job.tenant_id, id(job.request), job.priority, job.booking_id)
        identical = by_identity.get(key)
        if identical is None:
            number = number_by_id.get(key[1])
            if number is None:
                number = number_by_id[key[1]] = groups.numbers.setdefault(job.request, len(groups.numbers))
            identical = by_identity[key] = by_likeness.setdefault((key[0], number, key[2], key[3]), [])
        identical.append(job)
    for likeness, identical in by_likeness.items():
        identical.sort(key=attrgetter("queued_at"))
        groups.identical[likeness] = IdenticalJobs(identical)
    return groups


def _changed(last: Grouped, jobs: tuple[Job, ...], now: float) -> Grouped | None:
    """Return the same as `_grouped` from the groups of most of these jobs; None: too much has changed."""
    gone, new = _difference(last.jobs, jobs)
    if len(gone) + len(new) > len(jobs) // 8 or any(job.eligible_at > now for job in (*gone, *new)):
        return None
    numbers, identical = last.numbers.copy(), last.identical.copy()
    additions: dict[Likeness, list[Job]] = {_likeness(job, numbers): [] for job in gone}
    gone_ids = {job.id for job in gone}  # the groups may have equal objects in place of these
    for job in new:
        additions.setdefault(_likeness(job, numbers), []).append(job)
    for likeness, added in additions.items():
        members = [job for job in identical[likeness].jobs if job.id not in gone_ids] if likeness in identical else []
        for job in added:
            insort(members, job, key=_by_age)
        if members:
            identical[likeness] = IdenticalJobs(members)
        else:
            del identical[likeness]
    return _in_order(Grouped(jobs, now, numbers, identical, last.later))


def _difference(before: tuple[Job, ...], after: tuple[Job, ...]) -> tuple[list[Job], list[Job]]:
    """Return the jobs that are gone, and the new ones. One that has changed is both."""
    start, end = 0, min(len(before), len(after))
    while start < end:  # all before `start` are equal
        middle = (start + end + 1) // 2
        if before[start:middle] == after[start:middle]:
            start = middle
        else:
            end = middle - 1
    gone = {id(job): job for job in before[start:]}
    new = [job for job in after[start:] if gone.pop(id(job), None) is None]
    return list(gone.values()), new


def _likeness(job: Job, numbers: dict[Request, int]) -> Likeness:
    return job.tenant_id, numbers.setdefault(job.request, len(numbers)), job.priority, job.booking_id


def _in_order(groups: Grouped) -> Grouped:
    """Order the groups by their lowest ids, and number the requests in this order."""
    order = sorted(groups.identical, key=lambda likeness: groups.identical[likeness].first_id)
    number_of = {old: new for new, old in enumerate(dict.fromkeys([number for _, number, _, _ in order]))}
    requests = list(groups.numbers)
    return groups._replace(
        numbers={requests[old]: new for old, new in number_of.items()},
        identical={
            (tenant, number_of[old], priority, booking): groups.identical[tenant, old, priority, booking]
            for tenant, old, priority, booking in order
        },
    )
