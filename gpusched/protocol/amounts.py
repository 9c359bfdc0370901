"""Writes GPU-hours for people: small amounts keep their digits, large ones are never written with an exponent."""

from math import floor, log10


def measured(hours: float) -> str:
    """What was used: three digits that count, and one decimal at least. 0.0137 is not 0.0."""
    if hours <= 0:
        return "0.0"
    decimals = min(max(2 - floor(log10(hours)), 1), 9)
    whole, _, rest = f"{hours:.{decimals}f}".partition(".")
    return f"{whole}.{rest.rstrip('0') or '0'}"


def bound(hours: float) -> str:
    """A bound as it was set."""
    return f"{hours:.9f}".rstrip("0").rstrip(".")
