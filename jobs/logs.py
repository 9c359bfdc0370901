"""The output of jobs on the server's disk: one file per attempt and rank, appended by offset, so that a repeated or
late piece never doubles a byte and a missing one never leaves a hole."""

import os
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

MOST_READ = 1 << 20


@dataclass(frozen=True)
class Piece:
    """Bytes [offset, next_offset) of a log that is `size` bytes long so far."""

    data: bytes
    offset: int
    next_offset: int
    size: int


def append(job_id: int, attempt: int, rank: int, offset: int, data: bytes) -> int:
    """Writes bytes at an offset and gives the size now stored. Beyond the end nothing is written: the sender goes on
    from the size that it is told. What is stored already is kept, since logs only grow."""
    path = _path(job_id, attempt, rank)
    if not data and not path.exists():
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o640)
    try:
        size = os.fstat(handle).st_size
        if offset > size or offset + len(data) <= size:
            return size
        fresh = data[size - offset :]
        while fresh:
            written = os.pwrite(handle, fresh, size)
            fresh, size = fresh[written:], size + written
        return size
    finally:
        os.close(handle)


def read(job_id: int, attempt: int, rank: int, offset: int, limit: int) -> Piece:
    """Up to `limit` bytes from an offset; a negative offset counts from the end."""
    try:
        with _path(job_id, attempt, rank).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            file.seek(start)
            data = file.read(min(limit, MOST_READ))
    except FileNotFoundError:
        return Piece(b"", 0, 0, 0)
    return Piece(data, start, start + len(data), size)


def _path(job_id: int, attempt: int, rank: int) -> Path:
    # Directories of a thousand jobs each: a flat one slows down with hundreds of thousands of entries.
    return Path(settings.DATA_DIR) / "logs" / str(job_id // 1000) / str(job_id) / f"{attempt}.{rank}.log"
