"""Limits how many requests a caller may send in a minute, and says in each answer how many are left (`RateLimit-…`).

A bucket per caller in the memory of this web process: a limit against loops that run away, not an account. It is filled
evenly, so that a caller who waited may send a minute's worth at once."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_only_middleware

from gpusched.lib.api.problems import Problem
from gpusched.lib.limits import BAD_TOKENS_PER_MINUTE, PASSWORDS_PER_MINUTE

MAX_CALLERS = 10_000
_ATTRIBUTE = "gpusched_rate"


@dataclass
class Bucket:
    """`left` requests at the moment `at` (seconds of the monotonic clock), of `most`."""

    left: float
    at: float
    most: int

    def take(self, now: float) -> bool:
        """One request, if there is one left."""
        self.left = min(float(self.most), self.left + max(0.0, now - self.at) * self.most / 60.0)
        self.at = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True

    def seconds_until(self, left: float) -> int:
        return max(0, math.ceil((left - self.left) * 60.0 / self.most))


_buckets: dict[str, Bucket] = {}
_lock = threading.Lock()


def count(request: HttpRequest, caller: str) -> None:
    """Counts a request of a caller who has been recognised. Raises the 429."""
    most = settings.ENV.rate_limit_per_minute
    if most:
        bucket = _take(caller, most)
        setattr(request, _ATTRIBUTE, bucket)
        _require(bucket)


def count_bad_token(request: HttpRequest) -> None:
    """Counts a token that proves nothing, by address: guessing is hopeless, but it must not cost much either."""
    _require(_take(f"bad:{request.META.get('REMOTE_ADDR', '')}", BAD_TOKENS_PER_MINUTE))


def count_password(caller: str) -> None:
    """Counts a request that hashes a password for somebody else. Raises the 429."""
    _require(_take(f"password:{caller}", PASSWORDS_PER_MINUTE))


def _require(bucket: Bucket) -> None:
    if bucket.left < 0:
        raise Problem(
            429,
            "rate_limited",
            f"more than {bucket.most} requests in a minute",
            next_step="send fewer requests, or many jobs in one",
            retry_after=max(1, bucket.seconds_until(0.0)),
        )


def _take(caller: str, most: int) -> Bucket:
    """The bucket after this request, as a copy; `left` is negative when there was none."""
    now = time.monotonic()
    with _lock:
        bucket = _buckets.get(caller)
        if bucket is None or bucket.most != most:
            if len(_buckets) >= MAX_CALLERS:
                _forget(now)
            bucket = _buckets[caller] = Bucket(float(most), now, most)
        had = bucket.take(now)
        return Bucket(bucket.left if had else bucket.left - 1.0, now, most)


def _forget(now: float) -> None:
    """Buckets that nobody has touched for a minute are full again, and so the same as new ones."""
    for caller in [caller for caller, bucket in _buckets.items() if now - bucket.at > 60.0] or list(_buckets):
        del _buckets[caller]


@sync_only_middleware
def rate_headers(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        bucket: Bucket | None = getattr(request, _ATTRIBUTE, None)
        if bucket is not None:
            response["RateLimit-Limit"] = str(bucket.most)
            response["RateLimit-Remaining"] = str(max(0, math.floor(bucket.left)))
            response["RateLimit-Reset"] = str(bucket.seconds_until(bucket.most))
        return response

    return middleware
