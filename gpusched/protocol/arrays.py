"""Job arrays: their part of a request, and sets of element numbers as text and as PostgreSQL multiranges."""

import re
from collections.abc import Iterator, Sequence

import msgspec

MAX_ELEMENTS = 100_000
# A longer list is not typed by a person.
_MAX_PIECES = 10_000
_PIECE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_RANGE = re.compile(r"\[(\d+),(\d+)\)")

# Half-open, ascending, not adjacent: ((0, 3), (7, 8)) are 0, 1, 2 and 7.
Ranges = tuple[tuple[int, int], ...]


class ArrayRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`count` elements, numbered from 0, of which at most `max_parallel` are placed or run at once (None: any)."""

    count: int
    max_parallel: int | None = None


def array_of(text: str) -> ArrayRequest:
    """Parse `100` or `100%10`: the count, and the maximum at once. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,9})(?:%(\d{1,9}))?", text)
    # With 0 at once the array would never start.
    if not match or int(match[2] or 1) < 1:
        raise ValueError("must be a count like 100, or a count and a maximum at once like 100%10")
    return ArrayRequest(count=int(match[1]), max_parallel=int(match[2]) if match[2] else None)


def parse_ranges(text: str, count: int = MAX_ELEMENTS) -> Ranges:
    """Parse `3-7,9` into ranges of an array of `count` elements. Raises ValueError with a sentence."""
    pieces = text.split(",", _MAX_PIECES)
    ranges = []
    for piece in pieces:
        match = _PIECE.fullmatch(piece.strip())
        if not match or len(pieces) > _MAX_PIECES:
            raise ValueError("must be element numbers like 3-7,9")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ValueError(f"{first}-{last} must go from the lower number to the higher")
        if last >= count:
            raise ValueError(f"elements are numbered from 0 to {count - 1}; {last} does not exist")
        ranges.append((first, last + 1))
    return _joined(ranges)


def format_ranges(ranges: Ranges) -> str:
    """Return the shortest text that `parse_ranges` parses into these ranges."""
    return ",".join(f"{first}" if end == first + 1 else f"{first}-{end - 1}" for first, end in ranges)


def multirange(ranges: Ranges) -> str:
    """Format ranges as a PostgreSQL int4multirange."""
    return "{" + ",".join(f"[{first},{end})" for first, end in ranges) + "}"


def from_multirange(text: str) -> Ranges:
    return tuple((int(first), int(end)) for first, end in _RANGE.findall(text))


def to_ranges(numbers: Sequence[int]) -> Ranges:
    """Return the ranges of numbers in any order."""
    return _joined([(number, number + 1) for number in numbers])


def numbers(ranges: Ranges) -> Iterator[int]:
    """Yield the numbers in ascending order."""
    for first, end in ranges:
        yield from range(first, end)


def size(ranges: Ranges) -> int:
    return sum(end - first for first, end in ranges)


def _joined(ranges: list[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((first, end))
    return tuple(joined)
