"""Times and durations in sentences."""

from collections.abc import Callable
from math import floor

# A time within a sentence; pages show it in the reader's time zone.
MOMENT = r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z| UTC))"
_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def format_duration(seconds: float, rounded: Callable[[float], int] = floor) -> str:
    """Format a duration in its two largest units, which cannot be mistaken for a time of day: 7 s, 4 min 7 s, 1 h 4
    min, 3 d 1 h."""
    for size, unit, part, smaller in _UNITS:
        if seconds >= size:
            count, remainder = divmod(rounded(seconds / part), size // part)
            return f"{count} {unit} {remainder} {smaller}" if remainder else f"{count} {unit}"
    return f"{rounded(seconds)} s"
