"""Room for so many at once of what takes long, and for fewer of each caller: nobody takes it all from the others."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

from django.http import StreamingHttpResponse

from gpusched.lib.api.problems import Problem


class ConcurrencyLimiter:
    """Of one web process. `code` and `what` (“logs are being downloaded”) tell of its being full, and `instead` what
    to do then."""

    def __init__(self, most: int, most_each: int, *, code: str, what: str, instead: str) -> None:
        self.most, self.most_each = most, most_each
        self.now: Counter[str] = Counter()
        self._code, self._what, self._instead = code, what, instead
        self._lock = RLock()  # each request has a thread; the collector may forget an answer in the midst of one

    def streamed(self, caller: str, content: AsyncIterator[bytes], **how: Any) -> StreamingHttpResponse:
        """An answer that has its place from now on until it is closed, or dropped unsent. 429 where there is none."""
        self._enter(caller)
        return StreamingHttpResponse(_Placed(self, caller, content), **how)

    @contextmanager
    def place(self, caller: str) -> Iterator[None]:
        """A place for as long as this lasts. 429 where there is none."""
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
        if self.now[caller] >= self.most_each:
            said = f"{self.now[caller]} {self._what} by you already"
        elif self.now.total() >= self.most:
            said = f"{self.most} {self._what} from this web process already"
        else:
            return
        raise Problem(429, self._code, said, next_step=self._instead, retry_after=5)


class _Placed:
    """What is sent to one caller. Django closes it with the answer; one that never got so far is forgotten."""

    def __init__(self, room: ConcurrencyLimiter, caller: str, content: AsyncIterator[bytes]) -> None:
        self._room, self._caller, self._content = room, caller, content
        self._is_left = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._content

    def close(self) -> None:
        if not self._is_left:
            self._is_left = True
            self._room.leave(self._caller)

    __del__ = close
