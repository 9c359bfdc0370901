"""What the agent knows of its ranks: its copy of what the files say, and what the server has acknowledged."""

import threading
import time
from dataclasses import dataclass

from msgspec.structs import replace

from gpusched.protocol.agent_messages import Ended, Report, Started


@dataclass
class RankState:
    """The agent's copy of what the files say, and what the server has acknowledged."""

    key: str
    started: Started | None = None
    ended: Ended | None = None
    is_alive: bool = False
    limit_version: int = 0  # of its time limit
    signalled: int = 0  # the latest signal that it was sent
    start_known: bool = False
    end_known: bool = False
    launched_at: float | None = None
    ordered_at: float | None = None  # when its order came, by the monotonic clock, until its launch is traced
    traceparent: str = ""
    refused_at: float | None = None  # since when it cannot be prepared
    looked_at: float = 0.0  # by the monotonic clock
    log_sent: int | None = None  # None: the server's size is to be asked
    log_seen: int = 0  # all that there was to send when the file had this size has been sent
    log_given: int = 0  # up to here the file's room has been given back to the disk
    log_limit: int | None = None  # bytes; None: not asked yet
    log_dropped: bool = False
    log_waits_until: float = 0.0  # by the event loop's clock: it could not be sent
    log_pause: float = 0.0
    scope: str = ""  # of its processes; empty until it is asked for
    devices: frozenset[str] = frozenset()

    @property
    def is_log_complete(self) -> bool:
        return self.ended is not None and (self.log_dropped or (self.log_sent or 0) >= self.ended.log_bytes)


def with_current_age(report: Report, looked_at: float) -> Report:
    """The report as it is said now; its files were read a while ago."""
    if report.seconds_ago is None:
        return report
    return replace(report, seconds_ago=report.seconds_ago + time.monotonic() - looked_at)


class Known:
    """The ranks of one node, by key. Threads add and drop ranks while the event loop reads, so only this class touches
    the table: a reader gets a copy of the list. The lock is held for no longer than that takes."""

    def __init__(self) -> None:
        self._ranks: dict[str, RankState] = {}
        self._lock = threading.Lock()

    def all(self) -> list[RankState]:
        with self._lock:
            return list(self._ranks.values())

    def get(self, key: str) -> RankState | None:
        with self._lock:
            return self._ranks.get(key)

    def add(self, key: str) -> RankState:
        """Return the rank of this key, a new one if there is none."""
        with self._lock:
            return self._ranks.setdefault(key, RankState(key))

    def drop(self, key: str) -> None:
        with self._lock:
            self._ranks.pop(key, None)

    def __bool__(self) -> bool:
        return bool(self._ranks)
