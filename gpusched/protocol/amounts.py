"""Format GPU-hours for people: small amounts keep their digits, large ones never get an exponent."""

from math import floor, log10


def measured(hours: float) -> str:
    """Format an amount used, with three significant digits and at least one decimal: 0.0137 is not 0.0."""
    if hours <= 0:
        return "0.0"
    decimals = min(max(2 - floor(log10(hours)), 1), 9)
    integer, _, fraction = f"{hours:.{decimals}f}".partition(".")
    return f"{integer}.{fraction.rstrip('0') or '0'}"


def bound(hours: float) -> str:
    """Format a limit exactly as it was set."""
    return f"{hours:.9f}".rstrip("0").rstrip(".")
