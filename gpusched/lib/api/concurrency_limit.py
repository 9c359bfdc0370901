"""Limit concurrency of slow operations: at most N in flight, at most M per caller."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

from django.http import StreamingHttpResponse

from gpusched.lib.api.problems import Problem


class ConcurrencyLimiter:
    """A limit of one web process. When it is reached, a problem has `code`, a detail about `subject` (“logs are being
    downloaded”) and `next_step`."""

    def __init__(self, maximum: int, max_each: int, *, code: str, subject: str, next_step: str) -> None:
        self.maximum, self.max_each = maximum, max_each
        self.now: Counter[str] = Counter()
        self._code, self._subject, self._next_step = code, subject, next_step
        self._lock = RLock()  # reentrant: the garbage collector may drop an answer while this thread holds it

    def streamed(self, caller: str, content: AsyncIterator[bytes], **options: Any) -> StreamingHttpResponse:
        """Return a streamed answer that occupies a slot until it is closed, or dropped unsent. 429 if there is none."""
        self._enter(caller)
        return StreamingHttpResponse(_LimitedStream(self, caller, content), **options)

    @contextmanager
    def slot(self, caller: str) -> Iterator[None]:
        """Occupy a slot within this context. 429 if there is none."""
        self._enter(caller)
        try:
            yield
        finally:
            self.leave(caller)

    def leave(self, caller: str) -> None:
        with self._lock:
            self.now[caller] -= 1
            if self.now[caller] <= 0:
                del self.now[caller]

    def _enter(self, caller: str) -> None:
        with self._lock:
            self._require(caller)
            self.now[caller] += 1

    def _require(self, caller: str) -> None:
        if self.now[caller] >= self.max_each:
            detail = f"{self.now[caller]} {self._subject} by you already"
        elif self.now.total() >= self.maximum:
            detail = f"{self.maximum} {self._subject} from this web process already"
        else:
            return
        raise Problem(429, self._code, detail, next_step=self._next_step, retry_after=5)


class _LimitedStream:
    """The content for one caller. Django closes it with the answer, or it is garbage-collected unsent."""

    def __init__(self, limiter: ConcurrencyLimiter, caller: str, content: AsyncIterator[bytes]) -> None:
        self._limiter, self._caller, self._content = limiter, caller, content
        self._has_left = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._content

    def close(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._limiter.leave(self._caller)

    __del__ = close
