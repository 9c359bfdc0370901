"""Moments as text."""

from datetime import datetime


def rfc3339(moment: datetime | None) -> str | None:
    """RFC 3339 in UTC, like 2030-01-31T08:00:00.123456Z."""
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
