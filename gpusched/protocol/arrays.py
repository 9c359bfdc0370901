"""Job arrays: what a request says of one, and sets of numbers of elements as people and PostgreSQL write them."""

import re
from collections.abc import Iterator, Sequence

import msgspec

MAX_ELEMENTS = 100_000
# Of such a text: more pieces than that are a list that nobody typed.
_MAX_PIECES = 10_000
_PIECE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_RANGE = re.compile(r"\[(\d+),(\d+)\)")

# Half-open, ascending, apart from each other: ((0, 3), (7, 8)) are 0, 1, 2 and 7.
Ranges = tuple[tuple[int, int], ...]


class ArrayRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`count` elements, numbered from 0, of which at most `max_parallel` are placed or run at once (None: any)."""

    count: int
    max_parallel: int | None = None


def array_of(text: str) -> ArrayRequest:
    """`100` or `100%10`: the count, and how many at once. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,9})(?:%(\d{1,9}))?", text)
    # None at once would be an array that never starts.
    if not found or int(found[2] or 1) < 1:
        raise ValueError("must be a count like 100, or a count and how many at once like 100%10")
    return ArrayRequest(count=int(found[1]), max_parallel=int(found[2]) if found[2] else None)


def parse_ranges(text: str, count: int = MAX_ELEMENTS) -> Ranges:
    """`3-7,9` as ranges, of an array of `count` elements. Raises ValueError with a sentence."""
    pieces = text.split(",", _MAX_PIECES)
    found = []
    for piece in pieces:
        match = _PIECE.fullmatch(piece.strip())
        if not match or len(pieces) > _MAX_PIECES:
            raise ValueError("must be numbers of elements like 3-7,9")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ValueError(f"{first}-{last} must go from the lower number to the higher")
        if last >= count:
            raise ValueError(f"the elements are numbered from 0 to {count - 1}; there is no {last}")
        found.append((first, last + 1))
    return _joined(found)


def format_ranges(ranges: Ranges) -> str:
    """The shortest text that `parsed` reads as these."""
    return ",".join(f"{first}" if end == first + 1 else f"{first}-{end - 1}" for first, end in ranges)


def multirange(ranges: Ranges) -> str:
    """As PostgreSQL's int4multirange is written."""
    return "{" + ",".join(f"[{first},{end})" for first, end in ranges) + "}"


def from_multirange(text: str) -> Ranges:
    return tuple((int(first), int(end)) for first, end in _RANGE.findall(text))


def to_ranges(numbers: Sequence[int]) -> Ranges:
    """In any order."""
    return _joined([(number, number + 1) for number in numbers])


def numbers(ranges: Ranges) -> Iterator[int]:
    """Ascending."""
    for first, end in ranges:
        yield from range(first, end)


def size(ranges: Ranges) -> int:
    return sum(end - first for first, end in ranges)


def _joined(found: list[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for first, end in sorted(found):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((first, end))
    return tuple(joined)
