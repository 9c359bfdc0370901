"""Keeps a log that only grows on a storage whose objects never change: as chunks, named by the bytes that they hold.

The name of a chunk is `<first byte>-<byte after the last>`. Chunks may overlap, where a piece was sent twice; what they
hold of one byte is the same. Small ones are put together when there are many."""

from collections.abc import Sequence
from typing import NamedTuple

from django.core.files.base import ContentFile
from django.core.files.storage import Storage

MAX_SMALL = 64
SMALL_BYTES, LARGE_BYTES = 1 << 20, 8 << 20


class Chunk(NamedTuple):
    start: int
    end: int


def append(storage: Storage, log: str, offset: int, data: bytes) -> int:
    """Adds bytes at an offset of a log and gives its size. What is there is kept; nothing is written beyond the end."""
    chain = _chain(_chunks(storage, log))
    size = chain[-1].end if chain else 0
    if offset > size or offset + len(data) <= size:
        return size
    chain.append(_write(storage, log, size, data[size - offset :]))
    if sum(chunk.end - chunk.start < SMALL_BYTES for chunk in chain) > MAX_SMALL:
        _merge(storage, log, chain)
    return chain[-1].end


def read(storage: Storage, log: str, offset: int, limit: int) -> tuple[bytes, int]:
    """(up to `limit` bytes from an offset, size of the log). Reads again what was put together meanwhile."""
    for attempt in (1, 2, 3):
        chain = _chain(_chunks(storage, log))
        size = chain[-1].end if chain else 0
        try:
            return _read(storage, log, chain, offset, limit), size
        except FileNotFoundError:
            if attempt == 3:
                raise
    raise AssertionError("unreachable")


def size_of(storage: Storage, log: str) -> int:
    chain = _chain(_chunks(storage, log))
    return chain[-1].end if chain else 0


def delete(storage: Storage, log: str) -> None:
    for chunk in _chunks(storage, log):
        storage.delete(_name(log, chunk))


def _chunks(storage: Storage, log: str) -> list[Chunk]:
    try:
        _, names = storage.listdir(log)
    except FileNotFoundError:
        return []
    parsed = [name.partition("-")[::2] for name in names]
    return sorted(Chunk(int(start), int(end)) for start, end in parsed if start.isdigit() and end.isdigit())


def _chain(chunks: Sequence[Chunk]) -> list[Chunk]:
    """The fewest chunks that cover the log from its first byte on without a gap."""
    chain: list[Chunk] = []
    end, best = 0, Chunk(0, 0)
    for chunk in chunks:
        if chunk.start > end:
            if best.end <= end:
                break
            chain.append(best)
            end = best.end
            if chunk.start > end:
                break
        best = max(best, chunk, key=lambda one: one.end)
    if best.end > end:
        chain.append(best)
    return chain


def _read(storage: Storage, log: str, chain: Sequence[Chunk], offset: int, limit: int) -> bytes:
    found = b""
    for chunk in chain:
        at = offset + len(found)
        if chunk.start <= at < chunk.end and len(found) < limit:
            with storage.open(_name(log, chunk)) as file:
                file.seek(at - chunk.start)
                found += file.read(min(limit - len(found), chunk.end - at))
    return found


def _merge(storage: Storage, log: str, chain: Sequence[Chunk]) -> None:
    """Puts runs of small chunks together: first the new one is there, then the old ones go."""
    run: list[Chunk] = []
    for chunk in [*chain, Chunk(0, LARGE_BYTES)]:
        is_large = chunk.end - chunk.start >= SMALL_BYTES
        if run and (is_large or chunk.end - run[0].start > LARGE_BYTES):
            if len(run) > 1:
                start, end = run[0].start, run[-1].end
                _write(storage, log, start, _read(storage, log, run, start, end - start))
                for old in run:
                    storage.delete(_name(log, old))
            run = []
        if not is_large:
            run.append(chunk)


def _write(storage: Storage, log: str, start: int, data: bytes) -> Chunk:
    chunk = Chunk(start, start + len(data))
    name = _name(log, chunk)
    if not storage.exists(name):
        storage.save(name, ContentFile(data))
    return chunk


def _name(log: str, chunk: Chunk) -> str:
    return f"{log}/{chunk.start:015d}-{chunk.end:015d}"
