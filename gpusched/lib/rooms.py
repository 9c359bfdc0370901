"""Room for so many at once of what takes long, and for fewer of each caller: nobody takes it all from the others."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gpusched.lib.problems import Problem


class Room:
    """Of one web process. `code` and `what` (“logs are being downloaded”) tell of its being full, and `instead` what
    to do then."""

    def __init__(self, most: int, most_each: int, *, code: str, what: str, instead: str) -> None:
        self.most, self.most_each = most, most_each
        self.now: Counter[str] = Counter()
        self._code, self._what, self._instead = code, what, instead

    def require(self, caller: str) -> None:
        """429 where there is none."""
        if self.now[caller] >= self.most_each:
            said = f"{self.now[caller]} {self._what} by you already"
        elif self.now.total() >= self.most:
            said = f"{self.most} {self._what} from this web process already"
        else:
            return
        raise Problem(429, self._code, said, next_step=self._instead, retry_after=5)

    @contextmanager
    def taken(self, caller: str) -> Iterator[None]:
        self.now[caller] += 1
        try:
            yield
        finally:
            self.now[caller] -= 1
            self.now += Counter()  # forgets who has none
