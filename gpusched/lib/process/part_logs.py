"""Bound the logs that the parts of one machine write to: each keeps its file open, for as long as it runs."""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 64 << 20


def bound(logs: Iterable[Path]) -> None:
    """Move what a longer log contains into `LOG.1`, which replaces the previous one. Lines that are written meanwhile
    may be lost. Without space on the disk, the log stays as it is."""
    for log in logs:
        with suppress(OSError):
            if log.stat().st_size > MAX_BYTES:
                _move_content(log)


def _move_content(log: Path) -> None:
    """Follow no link: PostgreSQL's user owns the directory of its log, and this process may be root."""
    new = log.with_name(f"{log.name}.new")
    new.unlink(missing_ok=True)
    try:
        with open(os.open(log, os.O_RDWR | os.O_NOFOLLOW), "rb+") as source:
            target = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, os.fstat(source.fileno()).st_mode & 0o666)
            with open(target, "wb") as copy:
                shutil.copyfileobj(source, copy)
            new.rename(log.with_name(f"{log.name}.1"))
            source.truncate(0)  # its writers append: the next line is the first one
    finally:
        new.unlink(missing_ok=True)
