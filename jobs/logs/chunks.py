"""Store a growing log on a storage of immutable objects, as chunks that are named by their range of bytes.

The name of a chunk is `<first byte>-<byte after the last>`. Chunks may overlap when an agent sent data twice; they then
agree on every byte. Many small ones are merged."""

from collections.abc import Sequence
from typing import NamedTuple

from django.core.files.base import ContentFile
from django.core.files.storage import Storage

MAX_SMALL = 64
MAX_TRIES = 5
SMALL_BYTES, LARGE_BYTES = 1 << 20, 8 << 20


class Chunk(NamedTuple):
    start: int
    end: int


def append(storage: Storage, log: str, offset: int, data: bytes) -> int:
    """Write bytes at an offset of a log and return its size. Stored bytes stay; a gap is never written."""
    chain = _chain(_chunks(storage, log))
    size = chain[-1].end if chain else 0
    if offset > size or offset + len(data) <= size:
        return size
    chain.append(_write(storage, log, size, data[size - offset :]))
    if sum(chunk.end - chunk.start < SMALL_BYTES for chunk in chain) > MAX_SMALL:
        _merge(storage, log, chain)
    return chain[-1].end


def read(storage: Storage, log: str, offset: int, limit: int) -> tuple[bytes, int]:
    """Return (up to `limit` bytes from an offset, size of the log). Retry when a concurrent merge removed a chunk."""
    for attempt in range(1, MAX_TRIES + 1):
        chain = _chain(_chunks(storage, log))
        size = chain[-1].end if chain else 0
        try:
            return _read(storage, log, chain, offset, limit), size
        except Exception:
            # A chunk that goes between its opening and its reading: each storage raises something of its own.
            if attempt == MAX_TRIES or set(chain) <= set(_chunks(storage, log)):
                raise
    raise AssertionError("unreachable")


def size_of(storage: Storage, log: str) -> int:
    chain = _chain(_chunks(storage, log))
    return chain[-1].end if chain else 0


def last_object(storage: Storage, log: str) -> str | None:
    """Return the name of the object at the end of a log; None if there is none."""
    chunks = _chunks(storage, log)
    return _name(log, chunks[-1]) if chunks else None


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
    """Return the fewest chunks that cover the log from its first byte on without a gap."""
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
        best = max(best, chunk, key=lambda candidate: candidate.end)
    if best.end > end:
        chain.append(best)
    return chain


def _read(storage: Storage, log: str, chain: Sequence[Chunk], offset: int, limit: int) -> bytes:
    data = b""
    for chunk in chain:
        at = offset + len(data)
        if chunk.start <= at < chunk.end and len(data) < limit:
            with storage.open(_name(log, chunk)) as file:
                file.seek(at - chunk.start)
                data += file.read(min(limit - len(data), chunk.end - at))
    return data


def _merge(storage: Storage, log: str, chain: Sequence[Chunk]) -> None:
    """Merge runs of small chunks: write the new one first, then delete the old ones."""
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
