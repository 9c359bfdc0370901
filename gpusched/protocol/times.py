"""Times and durations in sentences."""

import re
from collections.abc import Callable
from math import floor

# A time within a sentence; pages show it in the reader's time zone.
MOMENT = r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z| UTC))"
# A time as REST and evidence have it.
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


_DASH = "\u2013"
_RANGE_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def format_range(low: float, high: float) -> str:
    """Format a range of durations in the unit of the longer one: 1.8 to 2.4 h, with a dash."""
    size, unit = next(((size, unit) for size, unit in _RANGE_UNITS if high >= 1.5 * size), _RANGE_UNITS[-1])
    texts = [f"{seconds / size:,.1f}".removesuffix(".0") for seconds in (low, high)]
    return f"{_DASH.join(dict.fromkeys(texts))} {unit}"


def format_duration(seconds: float, rounded: Callable[[float], int] = floor) -> str:
    """Format a duration in its two largest units, which cannot be mistaken for a time of day: 7 s, 4 min 7 s, 1 h 4
    min, 3 d 1 h."""
    for size, unit, part, smaller in _UNITS:
        if seconds >= size:
            count, remainder = divmod(rounded(seconds / part), size // part)
            return f"{count} {unit} {remainder} {smaller}" if remainder else f"{count} {unit}"
    return f"{rounded(seconds)} s"
