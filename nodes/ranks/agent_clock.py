"""Turns what an agent says of time by its own clock into the time of this server (A53).

The wall clock of a node may be wrong and may be set at any moment. Agents say how long ago something was, by a clock
that only a boot sets; of those that do not (older ones, and after a boot) the difference between the clocks at the time
of the message is reckoned with. What is nearly right is believed, because messages take time."""

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from gpusched.protocol.agent_messages import Ended, Report
from gpusched.protocol.reasons import EndReason

# How far off what is told may be and is still believed: of a message's way alone, and of a node's clock, too.
WAY_SECONDS, TOLERATED_SECONDS = 1.0, 5.0
_MAX_SECONDS = 10 * 365 * 86400.0


def parse_time(text: str) -> datetime:
    """An agent's time; one that cannot be read, lies in the future or many years ago, becomes now."""
    now = datetime.now(UTC)
    at = _read(text)
    return now if at is None or (now - at).total_seconds() > _MAX_SECONDS else min(at, now)


def to_server_time(report: Report, said_at: str) -> Report:
    """The report, said when the agent's clock showed `said_at`, with its times by the clock of this server."""
    at, said, now = _read(report.at), _read(said_at), datetime.now(UTC)
    if at is None:
        return report
    tolerated = TOLERATED_SECONDS if report.seconds_ago is None else WAY_SECONDS
    if report.seconds_ago is not None:
        off = (now - timedelta(seconds=min(max(report.seconds_ago, 0.0), _MAX_SECONDS)) - at).total_seconds()
    else:
        off = (now - said).total_seconds() if said is not None else 0.0
    if abs(off) <= tolerated:
        return report
    told = replace(report, at=moved(report.at, off))
    return (
        replace(told, started_at=moved(told.started_at, off)) if isinstance(told, Ended) and told.started_at else told
    )


def at_here(text: str, said_at: str) -> str:
    """The same for a time that is told alone."""
    said = _read(said_at)
    off = (datetime.now(UTC) - said).total_seconds() if said is not None else 0.0
    return text if abs(off) <= TOLERATED_SECONDS else moved(text, off)


def clock_offset(said_at: str) -> float | None:
    """By how many seconds an agent's clock was ahead of this server's when it said so, less its message's way; None if
    that cannot be read."""
    said = _read(said_at)
    off = None if said is None else (said - datetime.now(UTC)).total_seconds()
    return None if off is None or abs(off) > _MAX_SECONDS else round(off, 3)


def run_seconds(report: Ended) -> float | None:
    """How many seconds a rank ran, as its supervisor measured it; None if nobody did."""
    began = _read(report.started_at or "")
    ended = _read(report.at)
    if began is None or ended is None or report.reason == EndReason.NODE_REBOOTED:
        return None
    return max(0.0, (ended - began).total_seconds())


def moved(text: str, seconds: float) -> str:
    """A time, so many seconds later; as it is if it cannot be read."""
    at = _read(text)
    try:
        return text if at is None else (at + timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        return text


def _read(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
