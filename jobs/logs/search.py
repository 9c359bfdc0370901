"""Finds text in one rank's log, however long: from a byte on, so much at a time, to be gone on with where it ended."""

import time
from dataclasses import dataclass
from typing import NamedTuple

from jobs.logs import store

# Of one answer: what it may take, and how much it holds.
SECONDS = 0.5
MAX_HITS = 200
MAX_NEEDLE_BYTES = 800
# Around a find, in bytes: lines can be very long.
_BYTES_BEFORE, _BYTES_AFTER = 80, 160


class Hit(NamedTuple):
    """The first find in a line. `line` counts from 1; `offset` is the byte where the find begins."""

    line: int
    offset: int
    text: str


@dataclass(frozen=True)
class SearchResult:
    """What was found up to byte `next_offset`, which is in line `next_line` + 1; a search goes on with both. `is_all`:
    there is no more of the log so far. Lines that are not ended yet are looked at, and again by the next search."""

    hits: list[Hit]
    next_offset: int
    next_line: int
    size: int
    is_all: bool


def search(job_id: int, attempt: int, rank: int, text: str, offset: int = 0, lines_before: int = 0) -> SearchResult:
    """The first 200 lines with the text from byte `offset` on, before which there are so many lines; fewer where half a
    second has gone by. Small and capital letters of ASCII are the same. The text has no newline, and is not empty."""
    needle = text.encode().lower()
    until = time.monotonic() + SECONDS
    hits: list[Hit] = []
    while True:
        piece = store.read(job_id, attempt, rank, offset, store.MAX_READ)
        is_end = piece.next_offset >= piece.size
        whole = _searchable_bytes(piece.data, is_end)
        found, at = _in_block(piece.data[:whole], needle, MAX_HITS - len(hits))
        hits += [Hit(lines_before + hit.line, offset + hit.offset, hit.text) for hit in found]
        is_full = len(hits) == MAX_HITS
        resumed = at if is_full else _resume_at(piece.data[:whole], len(needle), is_end)
        lines_before += piece.data.count(b"\n", 0, resumed)
        offset = piece.offset + resumed
        # A piece of which nothing was taken would be read for ever.
        if is_end or is_full or resumed == 0 or time.monotonic() >= until:
            return SearchResult(hits, offset, lines_before, piece.size, is_end and not is_full)


def _searchable_bytes(block: bytes, is_end: bool) -> int:
    """How much of a block is looked at: whole lines; of a line that is longer than the block what no find can cross."""
    return len(block) if is_end else block.rfind(b"\n") + 1 or len(block)


def _resume_at(block: bytes, length: int, is_end: bool) -> int:
    """Where the next search begins: after the last whole line, or where a find across the border would begin."""
    ended = block.rfind(b"\n") + 1
    return ended if ended or (is_end and len(block) < store.MAX_READ) else max(0, len(block) - length + 1)


def _in_block(block: bytes, needle: bytes, most: int) -> tuple[list[Hit], int]:
    """(finds, the end of the line of the last one); lines and offsets as from the block's beginning."""
    lower = block.lower()
    hits: list[Hit] = []
    line, counted, end = 1, 0, 0
    while len(hits) < most and (at := lower.find(needle, end)) >= 0:
        line += lower.count(b"\n", counted, at)
        counted = at
        begin = lower.rfind(b"\n", 0, at) + 1
        newline = lower.find(b"\n", at)
        end = newline + 1 or len(lower)
        shown = block[max(begin, at - _BYTES_BEFORE) : min(end, at + len(needle) + _BYTES_AFTER)]
        hits.append(Hit(line, at, shown.decode("utf-8", "ignore").rstrip("\r\n")))
    return hits, end
