"""The agent's view of its ranks: a copy of their files, and the server's acknowledgements."""

import threading
import time
from dataclasses import dataclass, field

from msgspec.structs import replace

from gpusched.protocol.agent_messages import Ended, Report, Started


@dataclass
class RankState:
    """The agent's copy of a rank's files, and the server's acknowledgements."""

    key: str
    started: Started | None = None
    ended: Ended | None = None
    is_alive: bool = False
    limit_version: int = 0  # version of its time limit
    signalled: int = 0  # sequence number of the latest signal sent to it
    start_acknowledged: bool = False
    end_acknowledged: bool = False
    launched_at: float | None = None
    ordered_at: float | None = None  # when its order arrived, by the monotonic clock, until its launch is traced
    traceparent: str = ""
    refused_at: float | None = None  # since when its preparation fails
    read_at: float = 0.0  # by the monotonic clock
    log_sent: int | None = None  # None: ask the server for its size
    log_sent_size: int = 0  # everything up to this size of the file has been sent
    log_freed: int = 0  # the file's disk is freed up to this byte
    log_limit: int | None = None  # bytes; None: not set yet
    log_dropped: bool = False
    log_paused_until: float = 0.0  # by the event loop's clock, after a failure
    log_pause: float = 0.0
    scope: str = ""  # of its processes; empty until it is read
    devices: frozenset[str] = frozenset()
    stop_reason: str = ""  # of the latest order to stop
    stop_due: float | None = None  # when it must have stopped, by the monotonic clock
    failures: dict[str, str] = field(default_factory=dict)  # what could not be done to it, and the error

    @property
    def is_log_complete(self) -> bool:
        return self.ended is not None and (self.log_dropped or (self.log_sent or 0) >= self.ended.log_bytes)


def with_current_age(report: Report, read_at: float) -> Report:
    """Return the report with its age as of now; its files were read a while ago."""
    if report.seconds_ago is None:
        return report
    return replace(report, seconds_ago=report.seconds_ago + time.monotonic() - read_at)


class RankTable:
    """The ranks of one node, by key. Threads add and drop ranks while the event loop reads, so only this class accesses
    the dictionary: a reader gets a copy of the list. The lock is held no longer than that takes."""

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
