"""Take tokens from the buckets of a tenant and a user, exactly, from any number of processes.

One statement refills the buckets by the clock of the database and takes from all of them or from none. So no polling
interval admits more than `burst` tokens at once, or more than `rate_per_second` over time, and none admits less."""

import math
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import prepared
from gpusched.lib.histograms import pending
from gpusched.protocol import amounts
from tenants.models import BucketScope, BucketUse

REFUSALS = "gpu_scheduler_bucket_refusals_total"
# The buckets that apply to a user. A named user's bucket replaces the one for each user. `now` precedes the wait for
# locked rows, so it may be before `level_at`: tokens until then are in the level already.
_APPLICABLE = f"""
    SELECT b.id, b.scope, b.rate_per_second, b.burst, b.daily_budget, b.created_at, c.now, z.today,
           date_part('epoch', ((z.today + 1)::timestamp AT TIME ZONE t.time_zone) - c.now) AS day_ends_in, t.time_zone,
           CASE b.scope WHEN '{BucketScope.USER}' THEN %(user)s::bigint ELSE 0 END AS level_of
      FROM (SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now) c
      JOIN tenants_tenant t ON t.id = %(tenant)s
      JOIN tenants_tokenbucket b ON b.tenant_id = t.id AND b.limits = %(limits)s
      CROSS JOIN LATERAL (SELECT (c.now AT TIME ZONE t.time_zone)::date AS today) z
     WHERE b.user_id = %(user)s OR b.user_id IS NULL AND NOT (b.scope = '{BucketScope.USER}' AND EXISTS (
               SELECT 1 FROM tenants_tokenbucket o
                WHERE o.tenant_id = b.tenant_id AND o.limits = b.limits AND o.user_id = %(user)s))
"""
# A level of a later time than this is from a clock that was wrong, maybe by years: then the bucket is full.
_IS_WRONG = "l.level_at > {now} + interval '10 min'"
_NOW = f"""CASE WHEN {_IS_WRONG.format(now="a.now")} THEN a.burst ELSE
           least(a.burst, l.level + a.rate_per_second * greatest(0, date_part('epoch', a.now - l.level_at))) END"""
_LEVEL_AT = f"CASE WHEN {_IS_WRONG.format(now='k.now')} THEN k.now ELSE greatest(l.level_at, k.now) END"
_SPENT = "CASE WHEN l.spent_on = a.today THEN l.spent ELSE 0 END"
# The locks are taken in one order, so that no two takes deadlock.
_TAKE = f"""
    WITH a AS MATERIALIZED ({_APPLICABLE}), locked AS MATERIALIZED (
        SELECT a.id, l.id AS level_id, a.now, a.today, a.daily_budget, {_NOW} AS level, {_SPENT} AS spent
          FROM a JOIN tenants_bucketlevel l ON l.bucket_id = a.id AND l.user_id = a.level_of
         ORDER BY a.id FOR UPDATE OF l),
    taken AS (
        UPDATE tenants_bucketlevel l
           SET level = k.level - %(cost)s, level_at = {_LEVEL_AT}, spent = k.spent + %(cost)s,
               spent_on = k.today
          FROM locked k
         WHERE l.id = k.level_id AND (SELECT count(*) FROM locked) = (SELECT count(*) FROM a)
           AND NOT EXISTS (SELECT 1 FROM locked WHERE level < %(cost)s OR spent + %(cost)s > daily_budget)
        RETURNING l.bucket_id)
    SELECT a.*, k.level, k.spent, t.bucket_id IS NOT NULL AS is_taken
      FROM a LEFT JOIN locked k USING (id) LEFT JOIN taken t ON t.bucket_id = a.id ORDER BY a.id
"""
# A bucket that is being deleted gets no level: its foreign key would fail at the commit. Only buckets without one are
# locked, as a delete waits for the levels that this transaction has.
_CREATE_LEVELS = f"""
    WITH a AS MATERIALIZED ({_APPLICABLE}), kept AS MATERIALIZED (
        SELECT b.id FROM tenants_tokenbucket b JOIN a USING (id)
         WHERE NOT EXISTS (SELECT FROM tenants_bucketlevel l WHERE l.bucket_id = a.id AND l.user_id = a.level_of)
         ORDER BY b.id FOR KEY SHARE OF b)
    INSERT INTO tenants_bucketlevel (bucket_id, user_id, level, level_at, spent, spent_on)
    SELECT a.id, a.level_of, a.burst, a.now, 0, a.today FROM a JOIN kept USING (id) ON CONFLICT DO NOTHING
"""
# A bucket that was created since has lost no tokens.
_REFUND = f"""
    WITH a AS MATERIALIZED ({_APPLICABLE}), locked AS MATERIALIZED (
        SELECT l.id, a.now, a.today, a.burst, {_NOW} AS level, {_SPENT} AS spent,
               (%(taken_at)s::timestamptz AT TIME ZONE a.time_zone)::date = a.today AS is_of_today
          FROM a JOIN tenants_bucketlevel l ON l.bucket_id = a.id AND l.user_id = a.level_of
         WHERE a.created_at <= %(taken_at)s
         ORDER BY a.id FOR UPDATE OF l)
    UPDATE tenants_bucketlevel l
       SET level = least(k.burst, k.level + %(cost)s), level_at = {_LEVEL_AT}, spent_on = k.today,
           spent = greatest(0, k.spent - CASE WHEN k.is_of_today THEN %(cost)s ELSE 0 END)
      FROM locked k WHERE l.id = k.id
"""
# In the order in which `_TAKE` locks.
_LOCK = """
    SELECT FROM tenants_bucketlevel l JOIN tenants_tokenbucket b ON b.id = l.bucket_id
     WHERE b.limits = %(limits)s AND b.tenant_id = ANY(%(tenants)s::bigint[])
       AND (l.user_id = 0 OR l.user_id = ANY(%(users)s::bigint[]))
     ORDER BY l.bucket_id, l.user_id FOR UPDATE OF l
"""
_CREATIONS = """
    SELECT tenant_id, created_at FROM tenants_tokenbucket
     WHERE limits = %(limits)s AND tenant_id = ANY(%(tenants)s::bigint[]) ORDER BY created_at
"""
_STANDING = f"""
    SELECT a.scope, a.rate_per_second, a.burst, a.daily_budget, a.time_zone,
           coalesce({_NOW}, a.burst) AS level, coalesce({_SPENT}, 0) AS spent
      FROM ({_APPLICABLE}) a LEFT JOIN tenants_bucketlevel l ON l.bucket_id = a.id AND l.user_id = a.level_of
     ORDER BY a.scope, a.id
"""
_UNITS = {BucketUse.TASKS: "cost of tasks", BucketUse.JOBS: "jobs"}


class Room(NamedTuple):
    """The rest in the bucket with the fewest tokens after a take, for the headers RateLimit-*. `reset_seconds`: until
    it is full again."""

    limit: int
    remaining: int
    reset_seconds: int


def take(tenant_id: int, user_id: int, limits: BucketUse, cost: float, *, now: datetime | None = None) -> Room | None:
    """Take `cost` tokens from each bucket that applies; None if there is none. Call it last in the transaction of what
    it admits: other takes wait until that ends.

    400 if the cost exceeds a burst or a daily budget, so that waiting would not help; 429 with the seconds to wait if
    tokens are missing. `now`: a time instead of the clock of the database."""
    values = {"tenant": tenant_id, "user": user_id, "limits": limits.value, "cost": cost, "now": now}
    buckets = prepared(_TAKE, values)
    if any(bucket["level"] is None for bucket in buckets):
        prepared(_CREATE_LEVELS, values)
        buckets = prepared(_TAKE, values)
    for bucket in buckets:
        if not bucket["is_taken"] and (refusal := _refusal(bucket, limits, cost)):
            # Not in the transaction, which is rolled back.
            pending.add(REFUSALS, f"{tenant_id}:{limits}", 1)
            raise refusal
    return min((_room(bucket, cost) for bucket in buckets), key=lambda room: room.remaining, default=None)


def refund(
    tenant_id: int, user_id: int, limits: BucketUse, cost: float, *, taken_at: datetime, now: datetime | None = None
) -> None:
    """Put tokens back that were taken at `taken_at` for something that was never started, into the buckets that existed
    then. A daily budget gets them back on the same day only."""
    values = {
        "tenant": tenant_id,
        "user": user_id,
        "limits": limits.value,
        "cost": cost,
        "taken_at": taken_at,
        "now": now,
    }
    prepared(_REFUND, values)


def lock(tenants: Collection[int], users: Collection[int], limits: BucketUse) -> None:
    """Lock the buckets of these users and tenants in this transaction, before more than one refund: each refund locks
    its own in order, but several of them would deadlock with takes."""
    values = {"limits": limits.value, "tenants": sorted(tenants), "users": sorted(users)}
    prepared(_LOCK, values)


def creations(tenants: Collection[int], limits: BucketUse) -> dict[int, list[datetime]]:
    """Return when the present buckets of these tenants were created, ascending, by tenant."""
    times: dict[int, list[datetime]] = {}
    for row in prepared(_CREATIONS, {"tenants": sorted(tenants), "limits": limits.value}):
        times.setdefault(row["tenant_id"], []).append(row["created_at"])
    return times


def standing(tenant_id: int, user_id: int, limits: BucketUse) -> list[dict[str, Any]]:
    """Return the buckets that apply to a user, with the tokens that they hold now (`level`) and what was taken today
    (`spent`)."""
    return prepared(_STANDING, {"tenant": tenant_id, "user": user_id, "limits": limits.value, "now": None})


def headers(room: Room | None) -> dict[str, str]:
    """Return the headers of the answer to a take; none if no bucket applies."""
    if room is None:
        return {}
    return {
        "RateLimit-Limit": str(room.limit),
        "RateLimit-Remaining": str(room.remaining),
        "RateLimit-Reset": str(room.reset_seconds),
    }


def _room(bucket: Mapping[str, Any], cost: float) -> Room:
    level = bucket["level"] - cost
    left = level if bucket["daily_budget"] is None else min(level, bucket["daily_budget"] - bucket["spent"] - cost)
    rate, missing = bucket["rate_per_second"], bucket["burst"] - level
    seconds = missing / rate if rate > 0 else bucket["day_ends_in"]
    return Room(int(bucket["burst"]), max(0, int(left)), math.ceil(seconds))


def _refusal(bucket: Mapping[str, Any], limits: BucketUse, cost: float) -> Problem | None:
    """Return the refusal by this bucket, or None if it has the tokens."""
    whose = "you" if bucket["scope"] == BucketScope.USER else "your tenant"
    need, unit = amounts.exact(cost), _UNITS[limits]
    budget, burst = bucket["daily_budget"], bucket["burst"]
    if cost > burst or (budget is not None and cost > budget):
        bound = burst if budget is None else min(burst, budget)
        detail = f"this needs {need} {unit} at once, and {whose} may use at most {amounts.exact(bound)} at once"
        return Problem(400, "exceeds_burst", detail, next_step="submit less at once")
    if budget is not None and bucket["spent"] + cost > budget:
        detail = f"{whose} used {amounts.exact(bucket['spent'])} of {amounts.exact(budget)} {unit} today"
        seconds = bucket["day_ends_in"]
    elif bucket["level"] < cost:
        rate = bucket["rate_per_second"]
        detail = f"{whose} may use {amounts.exact(rate)} {unit} per second, and at most {amounts.exact(burst)} at once"
        seconds = (cost - bucket["level"]) / rate if rate > 0 else bucket["day_ends_in"]
    else:
        return None
    step = "wait for the seconds in Retry-After, or ask an admin for a higher limit"
    retry_after, levels = max(1, math.ceil(seconds)), headers(_room(bucket, 0.0))
    return Problem(429, "out_of_tokens", detail, next_step=step, retry_after=retry_after, headers=levels)
