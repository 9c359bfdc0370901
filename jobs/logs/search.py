"""Search one rank's log, of any length, in steps: each continues where the previous one stopped."""

import time
from dataclasses import dataclass
from typing import NamedTuple

from jobs.logs import store

# Limits of one answer.
SECONDS = 0.5
MAX_HITS = 200
MAX_NEEDLE_BYTES = 800
# The excerpt around a hit, in bytes: lines can be very long.
_BYTES_BEFORE, _BYTES_AFTER = 80, 160


class Hit(NamedTuple):
    """The first match in a line. `line` counts from 1; `offset` is the first byte of the match."""

    line: int
    offset: int
    text: str


@dataclass(frozen=True)
class SearchResult:
    """The hits up to byte `next_offset`, in line `next_line` + 1; the next search continues with both. `is_all`: the
    search reached the end of the log so far. The next search examines an unfinished line again."""

    hits: list[Hit]
    next_offset: int
    next_line: int
    size: int
    is_all: bool


def search(job_id: int, attempt: int, rank: int, text: str, offset: int = 0, lines_before: int = 0) -> SearchResult:
    """Return the first 200 lines with the text from byte `offset` on, which `lines_before` precede; fewer after half a
    second. ASCII letters match in either case. The text has no newline and is not empty."""
    needle = text.encode().lower()
    until = time.monotonic() + SECONDS
    hits: list[Hit] = []
    while True:
        chunk = store.read(job_id, attempt, rank, offset, store.MAX_READ)
        is_end = chunk.next_offset >= chunk.size
        searchable = _searchable_bytes(chunk.data, is_end)
        block_hits, at = _in_block(chunk.data[:searchable], needle, MAX_HITS - len(hits))
        hits += [Hit(lines_before + hit.line, offset + hit.offset, hit.text) for hit in block_hits]
        is_full = len(hits) == MAX_HITS
        resumed = at if is_full else _resume_at(chunk.data[:searchable], len(needle), is_end)
        lines_before += chunk.data.count(b"\n", 0, resumed)
        offset = chunk.offset + resumed
        # A chunk without progress would be read forever.
        if is_end or is_full or resumed == 0 or time.monotonic() >= until:
            return SearchResult(hits, offset, lines_before, chunk.size, is_end and not is_full)


def _searchable_bytes(block: bytes, is_end: bool) -> int:
    """Return how many bytes of a block to search: full lines, or all of it if it has no line end."""
    return len(block) if is_end else block.rfind(b"\n") + 1 or len(block)


def _resume_at(block: bytes, length: int, is_end: bool) -> int:
    """Return where the next search begins: after the last full line, or where a match across the border could begin."""
    ended = block.rfind(b"\n") + 1
    return ended if ended or (is_end and len(block) < store.MAX_READ) else max(0, len(block) - length + 1)


def _in_block(block: bytes, needle: bytes, maximum: int) -> tuple[list[Hit], int]:
    """Return (hits, the end of the last hit's line), with lines and offsets relative to the block."""
    lower = block.lower()
    hits: list[Hit] = []
    line, counted, end = 1, 0, 0
    while len(hits) < maximum and (at := lower.find(needle, end)) >= 0:
        line += lower.count(b"\n", counted, at)
        counted = at
        begin = lower.rfind(b"\n", 0, at) + 1
        newline = lower.find(b"\n", at)
        end = newline + 1 or len(lower)
        excerpt = block[max(begin, at - _BYTES_BEFORE) : min(end, at + len(needle) + _BYTES_AFTER)]
        hits.append(Hit(line, at, excerpt.decode("utf-8", "ignore").rstrip("\r\n")))
    return hits, end
