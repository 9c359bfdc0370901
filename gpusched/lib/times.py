"""Moments as text, and texts as moments."""

from datetime import UTC, datetime


def rfc3339(moment: datetime | None) -> str | None:
    """RFC 3339 in UTC, like 2030-01-31T08:00:00.123456Z."""
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def readable(moment: datetime) -> str:
    """A moment as sentences write it: 2030-01-31 08:00:00 UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def parsed(text: str) -> datetime:
    """A moment or a day, in UTC unless it says otherwise. Raises ValueError, and OverflowError at the ends of time.

    In an address a + that was not encoded arrives as a space."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.fromisoformat(text.replace(" ", "+"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
