"""Format and parse times."""

from datetime import UTC, datetime


def rfc3339(moment: datetime | None) -> str | None:
    """Format a time as RFC 3339 in UTC, like 2030-01-31T08:00:00.123456Z."""
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def readable(moment: datetime) -> str:
    """Format a time for sentences: 2030-01-31 08:00:00 UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def parsed(text: str) -> datetime:
    """Parse a time or a day, in UTC unless it names an offset. Raise ValueError, or OverflowError if it is out of
    range.

    A + that is not encoded in a URL arrives as a space."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.fromisoformat(text.replace(" ", "+"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
