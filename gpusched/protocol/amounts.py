"""Format amounts for people: small ones keep their digits, large ones never get an exponent."""

from decimal import Decimal
from math import floor, log10


def measured(hours: float) -> str:
    """Format an amount used, with three significant digits and at least one decimal: 0.0137 is not 0.0."""
    if hours <= 0:
        return "0.0"
    decimals = min(max(2 - floor(log10(hours)), 1), 9)
    integer, _, fraction = f"{hours:.{decimals}f}".partition(".")
    return f"{integer}.{fraction.rstrip('0') or '0'}"


def exact(amount: float) -> str:
    """Format an amount with all its digits, at most nine decimals: a limit as it was set, or a cost."""
    text = f"{Decimal(repr(round(float(amount), 9) + 0.0)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
