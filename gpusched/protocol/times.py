"""Moments and lengths of time as they stand in sentences."""

from collections.abc import Callable
from math import floor

# A moment within a sentence, which pages say by the clock of who looks.
MOMENT = r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z| UTC))"
_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def format_duration(seconds: float, rounded: Callable[[float], int] = floor) -> str:
    """In its two largest units, which no one takes for a time of day: 7 s, 4 min 7 s, 1 h 4 min, 3 d 1 h."""
    for size, unit, part, smaller in _UNITS:
        if seconds >= size:
            whole, rest = divmod(rounded(seconds / part), size // part)
            return f"{whole} {unit} {rest} {smaller}" if rest else f"{whole} {unit}"
    return f"{rounded(seconds)} s"
