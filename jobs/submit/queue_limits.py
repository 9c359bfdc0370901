"""Limit how many jobs a user, a tenant and all tenants have queued, and how many jobs that cannot start yet.

A deferred job is held, is before its `not_before`, or depends on jobs that have not ended. Deferred jobs have limits of
their own, so that they never take the place of jobs that could start. An array counts as one job while any of its
elements waits."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from django.conf import settings
from django.db import connection
from django.utils import timezone

from gpusched.lib.api.problems import Problem
from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import prepared, query, retry_atomic
from gpusched.protocol.reasons import fix_plurals
from jobs.listing.counts import WAITS
from jobs.submit import queue_locks

T = TypeVar("T")
# For waiting rows of jobs_job as j. A job in a retry's pause is queued: the pause is short and not chosen.
DEFERRED = "(j.state = 'held' OR j.open_dependencies > 0 OR coalesce(j.not_before > statement_timestamp(), false))"
_BY_USER = f"""
    SELECT j.user_id, count(*) FILTER (WHERE NOT {DEFERRED}) AS queued, count(*) FILTER (WHERE {DEFERRED}) AS deferred
      FROM jobs_job j WHERE j.tenant_id = %s AND {WAITS} GROUP BY j.user_id
"""
_OF_ALL = f"""
    SELECT count(*) FILTER (WHERE NOT {DEFERRED}) AS queued, count(*) FILTER (WHERE {DEFERRED}) AS deferred,
           (SELECT count(*) FROM tenants_all WHERE archived_at IS NULL) AS tenants
      FROM jobs_job j WHERE {WAITS}
"""
_NAMES = """
    SELECT t.name AS tenant, u.username AS "user" FROM tenants_all t, tenants_people u WHERE t.id = %s AND u.id = %s
"""
_LIMITS = """
    SELECT {generation} AS generation, q.max_queued_jobs, q.max_deferred_jobs
      FROM (VALUES (%s::bigint)) AS t (id) LEFT JOIN tenants_quotas q ON q.tenant_id = t.id
"""
_GENERATION_AND_LIMITS = _LIMITS.format(generation=queue_locks.generation_of("t.id"))
_ONLY_LIMITS = _LIMITS.format(generation="NULL::bigint")
# Single jobs need no lock while the distance to the limit exceeds the jobs that the count may miss: those in flight
# when it began, at most one for each connection, and those that all web processes have accepted since.
_IN_FLIGHT, _PER_SECOND = 100, 5_000
# A bulk this far below its limits is not counted exactly, so a count of the last second cannot miss one that matters.
# The distance grows with the age of an older count.
_MARGIN_OF_BULK = 50_000
_CACHE_SECONDS = 1.0
# Counting the jobs of a tenant, or of all, takes at most 1/20 of the time. Counting all takes 1/6 while the queue is
# full, so that started and cancelled jobs soon admit others.
_PAUSE_PER_SECOND, _PAUSE_PER_SECOND_WHEN_FULL = 20.0, 5.0
_RETRY_SECONDS = 30
_MEANING = {
    "queued": "queued jobs",
    "deferred": "deferred jobs (held, before their not_before, or waiting for other jobs)",
}
_NEXT_STEP = {
    "queued": "wait until some have started, cancel some, or ask an admin for a higher limit",
    "deferred": "release or cancel some, or submit them nearer to their time",
}


class Load(NamedTuple):
    """Waiting jobs: those that could start, and those that cannot start yet."""

    queued: int = 0
    deferred: int = 0

    def __add__(self, other: object) -> "Load":
        assert isinstance(other, Load)
        return Load(self.queued + other.queued, self.deferred + other.deferred)


@dataclass(frozen=True)
class Incoming:
    """Jobs of one user that join a tenant's queue."""

    tenant_id: int
    user_id: int
    load: Load


@dataclass(frozen=True)
class _TenantCount:
    """The waiting jobs of a tenant by user, counted at `counted_at`, plus those that this process accepted since."""

    counted_at: float
    taken_seconds: float
    limits: Load
    # The generation of bulks that the count includes; None: unknown.
    generation: int | None
    by_user: Mapping[int, Load]

    def total(self) -> Load:
        return sum(self.by_user.values(), Load())

    def age(self) -> float:
        return time.monotonic() - self.counted_at

    def is_old(self) -> bool:
        return self.age() > _CACHE_SECONDS * max(1.0, _PAUSE_PER_SECOND * self.taken_seconds)


@dataclass(frozen=True)
class _TotalCount:
    """The waiting jobs of all tenants, and how many tenants accept jobs."""

    load: Load = Load()  # noqa: RUF009 - a tuple
    tenants: int = 1
    counted_at: float = float("-inf")
    taken_seconds: float = 0.0


class _Bound(NamedTuple):
    """A limit, and the jobs that count against it, including the incoming ones."""

    kind: str
    scope: str
    used: int
    limit: int
    setting: str


_NO_COUNT = _TenantCount(float("-inf"), 0.0, Load(), None, {})
_counts: Cache[int, _TenantCount] = Cache(max_entries=10_000)
_all: Cache[None, _TotalCount] = Cache()


def load_of(row: Mapping[str, Any]) -> Load:
    """Return what a job counts as once it is pending, by the columns of its row."""
    is_early = row["not_before"] is not None and row["not_before"] > timezone.now()
    return Load(0, 1) if is_early or row["open_dependencies"] else Load(1, 0)


def insert_within(incoming: Incoming, insert: Callable[[int | None], T]) -> T:
    """Insert one job if the limits allow it; 429 otherwise.

    `insert` gets the generation of the count, and raises CountIsStale unless it is current. It gets None within the
    lock, under which no other submit of the tenant is counted or written; that transaction is retried after a
    deadlock."""
    counted = _estimate(incoming.tenant_id)
    is_tight = _is_tight(incoming, counted)
    if is_tight:
        counted = _recount(incoming, counted)
    if not is_tight or (counted.generation is not None and not _is_near(incoming, counted)):
        _require_total(incoming, counted)
        try:
            result = insert(counted.generation if is_tight else None)
        except queue_locks.CountIsStale:
            pass
        else:
            add(incoming)
            return result

    def count_and_insert() -> T:
        queue_locks.lock([incoming.tenant_id])
        require(incoming)
        return insert(None)

    result = retry_atomic(count_and_insert)
    add(incoming)
    return result


def is_bulk_near(incoming: Incoming) -> bool:
    """Return whether a bulk is so close to a limit that it must be counted within `queue_locks.lock_for_bulk`."""
    return _is_tight(incoming, _estimate(incoming.tenant_id))


def lock_of_job(job_id: int) -> None:
    """Lock the queue of a tenant that a job is about to join; share the lock while the limits are far."""
    for row in query("SELECT tenant_id, user_id FROM jobs_job WHERE id = %s", [job_id]):
        incoming, counted = Incoming(**row, load=Load(1, 1)), _estimate(row["tenant_id"])
        is_far = counted.generation is not None and not _is_near(incoming, counted)
        if not is_far or queue_locks.share(row["tenant_id"]) != counted.generation:
            queue_locks.lock([row["tenant_id"]])


def require(incoming: Incoming, *, is_exact: bool = True) -> None:
    """Raise 429 if the jobs exceed a limit. `is_exact` False: by a count of the last second."""
    counted = _count(incoming.tenant_id) if is_exact else _estimate(incoming.tenant_id)
    _require_own_limits(incoming, counted)
    _require_total(incoming, counted)


def warning(tenant_id: int, user_id: int) -> str:
    """Return the limits of which the tenant or the user has used GPUSCHED_QUEUE_WARNING_PERCENT, as the value of the
    header Queue-Warning; empty if none."""
    counted = _estimate(tenant_id)
    part = settings.ENV.queue_warning_percent / 100
    bounds = _bounds(Incoming(tenant_id, user_id, Load()), counted)
    return ", ".join(
        f"{bound.kind}-per-{bound.scope};used={bound.used};limit={bound.limit}"
        for bound in bounds
        if bound.used >= part * bound.limit
    )


def sentence(warning: str) -> str:
    """Return a value of the header Queue-Warning as a sentence."""
    parts = []
    for limit_text in warning.split(", "):
        name, used, limit = (part.rpartition("=")[2] for part in limit_text.split(";"))
        kind, _, scope = name.partition("-per-")
        whose = "you have" if scope == "user" else "your tenant has"
        parts.append(f"{whose} {used} of at most {limit} {kind} jobs")
    return f"{'; '.join(parts)}: beyond that, submits are refused"


def _recount(incoming: Incoming, counted: _TenantCount) -> _TenantCount:
    """Recount without a lock if that may show that none is needed. Raise 429, which needs none either."""
    is_known_near = _is_within(_IN_FLIGHT, incoming, counted) and not _is_within(0, incoming, counted)
    if is_known_near or (counted.generation is not None and not _is_near(incoming, counted)):
        return counted
    counted = _count(incoming.tenant_id)
    _require_own_limits(incoming, counted)
    return counted


def _is_near(incoming: Incoming, counted: _TenantCount) -> bool:
    """Return whether jobs that the count misses may have reached a limit."""
    return _is_within(_IN_FLIGHT + _PER_SECOND * counted.age(), incoming, counted)


def _is_tight(incoming: Incoming, counted: _TenantCount) -> bool:
    """Return whether bulks that the count misses may have reached a limit."""
    return _is_within(_MARGIN_OF_BULK * max(1.0, counted.age()), incoming, counted)


def _is_within(margin: float, incoming: Incoming, counted: _TenantCount) -> bool:
    return any(bound.used > bound.limit - margin for bound in _bounds(incoming, counted))


def _require_own_limits(incoming: Incoming, counted: _TenantCount) -> None:
    """Raise 429 if the limits of the user or the tenant do not allow the jobs."""
    for bound in _bounds(incoming, counted):
        if bound.used > bound.limit:
            raise _refusal(bound, incoming)


def _bounds(incoming: Incoming, counted: _TenantCount) -> list[_Bound]:
    """Return the limits that the incoming jobs count against."""
    env = settings.ENV
    of_user, of_tenant = counted.by_user.get(incoming.user_id, Load()), counted.total()
    each = Load(env.max_queued_jobs_per_user, env.max_deferred_jobs_per_user)
    is_silent = incoming.load == Load()
    return [
        _Bound(kind, scope, used + more, limit, f"GPUSCHED_MAX_{kind.upper()}_JOBS_PER_{scope.upper()}")
        for scope, load, limits in (("user", of_user, each), ("tenant", of_tenant, counted.limits))
        for kind, used, more, limit in zip(Load._fields, load, incoming.load, limits, strict=True)
        if more or is_silent
    ]


def _require_total(incoming: Incoming, counted: _TenantCount) -> None:
    """Raise 429 if the queue of all tenants is full, unless the tenant has less than an equal share of it.

    So no tenant, and no number of tenants together, can close the queue to another one (A61)."""
    tenant_load = counted.total()
    if _is_full(incoming, tenant_load, _total_count()):
        refusal = _is_full(incoming, tenant_load, _total_count(is_full=True))
        if refusal is not None:
            raise refusal


def _is_full(incoming: Incoming, tenant_load: Load, everything: _TotalCount) -> Problem | None:
    limits = Load(settings.ENV.max_queue_size, settings.ENV.max_deferred_jobs)
    loads = zip(Load._fields, everything.load, tenant_load, incoming.load, limits, strict=True)
    for kind, total, used, more, limit in loads:
        even = limit // max(everything.tenants, 1)
        if more and total + more > limit and used + more > even:
            detail = (
                f"all tenants together have {total} {_MEANING[kind]}, and at most {limit} are allowed; "
                f"beyond that each tenant may have {even}"
            )
            return Problem(429, "queue_full", detail, next_step=_NEXT_STEP[kind], retry_after=_RETRY_SECONDS)
    return None


def _refusal(bound: _Bound, incoming: Incoming) -> Problem:
    [names] = query(_NAMES, [incoming.tenant_id, incoming.user_id])
    more = sum(incoming.load)
    owner = f"tenant {names['tenant']}" if bound.scope == "tenant" else f"{names['user']} in tenant {names['tenant']}"
    more_text = "" if more == 1 else f", and {more} more are requested"
    has = bound.used - (incoming.load.queued if bound.kind == "queued" else incoming.load.deferred)
    detail = fix_plurals(
        f"{owner} has {has} {_MEANING[bound.kind]}{more_text}; at most {bound.limit} are allowed ({bound.setting})"
    )
    is_queued = bound.kind == "queued"
    return Problem(
        429,
        "too_many_queued_jobs" if is_queued else "too_many_deferred_jobs",
        detail,
        next_step=_NEXT_STEP[bound.kind],
        retry_after=_RETRY_SECONDS,
    )


def _estimate(tenant_id: int) -> _TenantCount:
    # Not by `get`: a caller may hold the lock of the queue, for which the thread that counts would wait.
    counted = _counts.last(tenant_id, _NO_COUNT)
    return _count(tenant_id) if counted.is_old() else counted


def _count(tenant_id: int) -> _TenantCount:
    """Count a tenant's jobs. The generation is read first, so that it is never newer than the count.

    A count in a transaction has no generation: reading it would share the lock until the end of the transaction, and
    two transactions that both need the exclusive lock later would deadlock."""
    counted_at = time.monotonic()
    [row] = prepared(_ONLY_LIMITS if connection.in_atomic_block else _GENERATION_AND_LIMITS, [tenant_id])
    by_user = {row["user_id"]: Load(row["queued"], row["deferred"]) for row in prepared(_BY_USER, [tenant_id])}
    taken = time.monotonic() - counted_at
    return _counts.put(tenant_id, _TenantCount(counted_at, taken, _limits(row), row["generation"], by_user))


def _limits(quota: Mapping[str, Any]) -> Load:
    """Return the limits of a tenant: those of its quota, else the server's."""
    env = settings.ENV
    queued, deferred = quota["max_queued_jobs"], quota["max_deferred_jobs"]
    return Load(
        env.max_queued_jobs_per_tenant if queued is None else queued,
        env.max_deferred_jobs_per_tenant if deferred is None else deferred,
    )


def _total_count(*, is_full: bool = False) -> _TotalCount:
    """Return the count of all tenants, recounted now and then, more often while the queue is full."""

    def is_recent(total: _TotalCount) -> bool:
        pause = (
            _PAUSE_PER_SECOND_WHEN_FULL * total.taken_seconds
            if is_full
            else max(_CACHE_SECONDS, _PAUSE_PER_SECOND * total.taken_seconds)
        )
        return time.monotonic() - total.counted_at <= pause

    return _all.get(None, _count_all, is_recent)


def _count_all() -> _TotalCount:
    counted_at = time.monotonic()
    [row] = prepared(_OF_ALL)
    load = Load(row["queued"], row["deferred"])
    return _TotalCount(load, row["tenants"], counted_at, time.monotonic() - counted_at)


def add(incoming: Incoming) -> None:
    """Count jobs that were accepted, until the next count."""

    def with_incoming(counted: _TenantCount | None) -> _TenantCount:
        counted = counted or _NO_COUNT
        of_user = counted.by_user.get(incoming.user_id, Load()) + incoming.load
        return replace(counted, by_user={**counted.by_user, incoming.user_id: of_user})

    def with_incoming_total(total: _TotalCount | None) -> _TotalCount:
        total = total or _TotalCount()
        return replace(total, load=total.load + incoming.load)

    _counts.update(incoming.tenant_id, with_incoming)
    _all.update(None, with_incoming_total)
