"""Logs of jobs by attempt and rank, behind Django's storage API under the alias `logs`.

Writes go by offset, so that repeated or late data never doubles a byte and missing data never leaves a gap. Reads and
writes raise a 503 while the storage fails."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.core.files.storage import Storage, storages

from gpusched.lib.db.sql import Row, execute, query
from gpusched.lib.storage import storage_errors
from jobs.logs import chunks
from jobs.logs.files import LogFiles

MAX_READ = 1 << 20
# Beyond the limit of the agents: room for the note that replaces the output they cut.
_SPARE_BYTES = 1 << 20
# Of one run: housekeeping's other tasks wait for it, and a task of more than 300 s is killed. An object storage takes a
# request or two for each log.
DROP_SECONDS, DROP_BATCH = 120.0, 100
MAX_FAILURES = 10
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LogChunk:
    """Bytes [offset, next_offset) of a log that is `size` bytes long so far."""

    data: bytes
    offset: int
    next_offset: int
    size: int


@storage_errors()
def append(job_id: int, attempt: int, rank: int, offset: int, data: bytes) -> int:
    """Write bytes at an offset and return the stored size. Nothing is written beyond the end: the sender continues from
    the returned size. Stored bytes stay, since logs only grow.

    Agents cut logs that are too long. The answer to data beyond the limit is as if it had been stored."""
    maximum = max_bytes() + _SPARE_BYTES
    size = _append(_name(job_id, attempt, rank), offset, data[: max(0, maximum - offset)])
    if size < maximum or offset + len(data) <= maximum:
        return size
    note = f"\n[gpusched: no more than {settings.ENV.log_max_mb} MiB of a log are kept; the rest of it is not here]\n"
    _append(_name(job_id, attempt, rank), maximum, note.encode())
    return offset + len(data)


@storage_errors()
def read(job_id: int, attempt: int, rank: int, offset: int, limit: int) -> LogChunk:
    """Return up to `limit` bytes from an offset; a negative offset counts from the end."""
    storage, name = _storage(), _name(job_id, attempt, rank)
    if offset < 0:
        offset = max(0, size_of(job_id, attempt, rank) + offset)
    limit = min(limit, MAX_READ)
    if isinstance(storage, LogFiles):
        data, size = storage.read(name, offset, limit)
    else:
        data, size = chunks.read(storage, name, offset, limit)
    start = min(offset, size)
    return LogChunk(data, start, start + len(data), size)


@storage_errors()
def size_of(job_id: int, attempt: int, rank: int) -> int:
    """Return the number of stored bytes."""
    storage, name = _storage(), _name(job_id, attempt, rank)
    return storage.read(name, 0, 0)[1] if isinstance(storage, LogFiles) else chunks.size_of(storage, name)


def max_bytes() -> int:
    """Return the maximum bytes of one log that agents send."""
    return int(settings.ENV.log_max_mb) << 20


def min_complete_size(log_bytes: int) -> int:
    """Return the least stored size of a complete log whose agent reported `log_bytes`."""
    return min(log_bytes, max_bytes() + _SPARE_BYTES)


_EXPIRED = """
    SELECT id, job_id, number, ranks FROM jobs_attempt
     WHERE id > %s AND ended_at < now() - make_interval(secs => %s) AND log_dropped_at IS NULL ORDER BY id LIMIT %s
"""


def drop_old(days: float, seconds: float = DROP_SECONDS) -> int:
    """Delete logs of attempts that ended more than `days` ago (0: none), for at most `seconds`. Return the number of
    attempts. Each batch is recorded, so that a run that is killed loses little of its work. Raises the latest failure
    after all others are deleted."""
    until, after, count, deletion = time.monotonic() + seconds, 0, 0, Deletion()
    while days and time.monotonic() < until and (old := query(_EXPIRED, [after, days * 86400, DROP_BATCH])):
        count += len(old) - len(deletion.of_attempts(old))
        after = old[-1]["id"]
    deletion.raise_failure()
    return count


class Deletion:
    """Delete logs one after the other. One that a damaged disk keeps does not keep the others; a storage that deletes
    none of MAX_FAILURES in a row fails as a whole, as each try may take a minute."""

    def __init__(self) -> None:
        self._failure: Exception | None = None
        self._in_a_row = 0

    def of_attempts(self, attempts: Sequence[Row]) -> list[Row]:
        """Delete the logs of attempts and record it. Return those of which a log could not be deleted."""
        dropped: list[int] = []
        kept: list[Row] = []
        for row in attempts:
            if self._of_attempt(row["job_id"], row["number"], row["ranks"]):
                dropped.append(row["id"])
            else:
                kept.append(row)
        execute("UPDATE jobs_attempt SET log_dropped_at = now() WHERE id = ANY(%s::bigint[])", [dropped])
        return kept

    def _of_attempt(self, job_id: int, attempt: int, ranks: int) -> bool:
        try:
            for rank in range(ranks):
                drop(job_id, attempt, rank)
        except Exception as error:  # each storage raises its own
            self._failure, self._in_a_row = error, self._in_a_row + 1
            if self._in_a_row >= MAX_FAILURES:
                raise
            logger.warning("the log of job %d cannot be deleted: %r", job_id, error, extra={"job_id": job_id})
            return False
        self._in_a_row = 0
        return True

    def raise_failure(self) -> None:
        """Raise the latest failure, if there was one: its task then counts as failed."""
        if self._failure is not None:
            raise self._failure


def drop(job_id: int, attempt: int, rank: int) -> None:
    """Delete a log; harmless if there is none."""
    storage, name = _storage(), _name(job_id, attempt, rank)
    if isinstance(storage, LogFiles):
        storage.delete(name)
    else:
        chunks.delete(storage, name)


# Clocks of storages differ by less. A log that is deleted by mistake is sent again: its agent still has it.
_CLOCKS_DIFFER = timedelta(seconds=10)


@storage_errors()
def drop_undone(job_id: int, attempt: int, rank: int, placed_at: datetime) -> None:
    """Delete a log that was last written before its attempt was placed: a restore of the database has undone that
    attempt, and this one has its number."""
    storage, name = _storage(), _name(job_id, attempt, rank)
    if not isinstance(storage, LogFiles):
        last = chunks.last_object(storage, name)
    else:
        last = name if storage.exists(name) else None
    if last is not None and storage.get_modified_time(last) < placed_at - _CLOCKS_DIFFER:
        drop(job_id, attempt, rank)


def are_files() -> bool:
    """Return whether logs are local files, which are fast to delete."""
    return isinstance(_storage(), LogFiles)


def _append(name: str, offset: int, data: bytes) -> int:
    storage = _storage()
    if isinstance(storage, LogFiles):
        return storage.append(name, offset, data)
    return chunks.append(storage, name, offset, data)


def _storage() -> Storage:
    return storages["logs"]


def _name(job_id: int, attempt: int, rank: int) -> str:
    # Directories of 1,000 jobs each: a flat one slows down with hundreds of thousands of entries.
    return f"{job_id // 1000}/{job_id}/{attempt}.{rank}.log"
