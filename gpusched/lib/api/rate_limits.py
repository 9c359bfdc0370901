"""Limit requests per caller and minute, and report in each answer how many are left (`RateLimit-…`).

A token bucket per caller in the memory of this web process: it stops runaway loops and is not an exact count. It fills
evenly, so that a caller who waited can send a minute's worth at once."""

import ipaddress
import math
import time
from collections.abc import Callable
from typing import NamedTuple

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_only_middleware

from gpusched.lib.api.problems import Problem
from gpusched.lib.cache import Cache
from gpusched.lib.limits import BAD_TOKENS_PER_MINUTE, PASSWORDS_PER_MINUTE

_ATTRIBUTE = "gpusched_rate"


class Bucket(NamedTuple):
    """A bucket with `remaining` of `limit` requests at the time `at` (seconds of the monotonic clock)."""

    remaining: float
    at: float
    limit: int

    def after_request(self, now: float) -> "Bucket":
        """Return the bucket after another request: with less than 0 remaining if there was none for it."""
        # A refused request takes nothing.
        before = self.remaining if self.remaining >= 0 else self.remaining + 1.0
        filled = min(float(self.limit), before + max(0.0, now - self.at) * self.limit / 60.0)
        return Bucket(filled - 1.0, now, self.limit)

    def seconds_until(self, remaining: float) -> int:
        return max(0, math.ceil((remaining - self.remaining) * 60.0 / self.limit))


# After a minute without requests a bucket is full, and equal to a new one.
_buckets: Cache[str, Bucket] = Cache(seconds=60.0, max_entries=10_000)


def count(request: HttpRequest, caller: str) -> None:
    """Count a request of an authenticated caller. Raise a 429 beyond the limit."""
    limit = settings.ENV.rate_limit_per_minute
    if limit:
        bucket = _count(caller, limit)
        setattr(request, _ATTRIBUTE, bucket)
        _require(bucket)


def count_on_pages(request: HttpRequest, user_id: int | None) -> None:
    """Count a page, a poll or a call of a page by its user. Raise a 429 beyond the limit."""
    count(request, f"person {user_id}")


def count_bad_token(request: HttpRequest) -> None:
    """Count an invalid token by address: guessing is hopeless, but must not cost much either."""
    _require(_count(f"bad:{subscriber(request.META.get('REMOTE_ADDR', ''))}", BAD_TOKENS_PER_MINUTE))


def count_password(caller: str) -> None:
    """Count a request that hashes another user's password. Raise a 429 beyond the limit."""
    _require(_count(f"password:{caller}", PASSWORDS_PER_MINUTE))


def subscriber(address: str) -> str:
    """Return what limits per address count: of IPv6 the network of 64 bits, because each client has a whole one."""
    try:
        return str(ipaddress.IPv6Network((address, 64), strict=False).network_address)
    except ValueError:
        return address


def _require(bucket: Bucket) -> None:
    if bucket.remaining < 0:
        raise Problem(
            429,
            "rate_limited",
            f"more than {bucket.limit} requests in a minute",
            next_step="send fewer requests, or many jobs in one",
            retry_after=max(1, bucket.seconds_until(0.0)),
        )


def _count(caller: str, limit: int) -> Bucket:
    """Return the bucket after this request. `remaining` is negative if none was left."""
    now = time.monotonic()

    def use(bucket: Bucket | None) -> Bucket:
        if bucket is None or bucket.limit != limit:
            bucket = Bucket(float(limit), now, limit)
        return bucket.after_request(now)

    return _buckets.update(caller, use)


@sync_only_middleware
def rate_headers(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        bucket: Bucket | None = getattr(request, _ATTRIBUTE, None)
        if bucket is not None and "RateLimit-Limit" not in response:  # unless a view reports another limit
            response["RateLimit-Limit"] = str(bucket.limit)
            response["RateLimit-Remaining"] = str(max(0, math.floor(bucket.remaining)))
            response["RateLimit-Reset"] = str(bucket.seconds_until(bucket.limit))
        return response

    return middleware
