"""Convert times by an agent's clock to this server's time (A53).

The wall clock of a node may be wrong and may be set at any moment. An agent sends how long ago an event was, measured
by a clock that only a boot resets. If it does not (an older agent, or after a boot), the offset between the two clocks
at the time of the message corrects its times. Small differences are accepted, because messages take time."""

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from gpusched.protocol.agent_messages import Ended, Report
from gpusched.protocol.reasons import EndReason

# Accepted differences: for the way of a message alone, and for the clock of a node as well.
LATENCY_SECONDS, TOLERATED_SECONDS = 1.0, 5.0
_MAX_SECONDS = 10 * 365 * 86400.0


def parse_time(text: str) -> datetime:
    """Parse an agent's time. Return now if it is unreadable, in the future or many years ago."""
    now = datetime.now(UTC)
    at = _parse(text)
    return now if at is None or (now - at).total_seconds() > _MAX_SECONDS else min(at, now)


def to_server_time(report: Report, agent_time: str) -> Report:
    """Convert the times of a report, sent when the agent's clock showed `agent_time`, to this server's clock."""
    at, sent_at, now = _parse(report.at), _parse(agent_time), datetime.now(UTC)
    if at is None:
        return report
    tolerated = TOLERATED_SECONDS if report.seconds_ago is None else LATENCY_SECONDS
    if report.seconds_ago is not None:
        offset = (now - timedelta(seconds=min(max(report.seconds_ago, 0.0), _MAX_SECONDS)) - at).total_seconds()
    else:
        offset = (now - sent_at).total_seconds() if sent_at is not None else 0.0
    if abs(offset) <= tolerated:
        return report
    shifted = replace(report, at=shifted_by(report.at, offset))
    if isinstance(shifted, Ended) and shifted.started_at:
        return replace(shifted, started_at=shifted_by(shifted.started_at, offset))
    return shifted


def text_to_server_time(text: str, agent_time: str) -> str:
    """Convert a single time, sent when the agent's clock showed `agent_time`, to this server's clock."""
    sent_at = _parse(agent_time)
    offset = (datetime.now(UTC) - sent_at).total_seconds() if sent_at is not None else 0.0
    return text if abs(offset) <= TOLERATED_SECONDS else shifted_by(text, offset)


def clock_offset(agent_time: str) -> float | None:
    """Return how many seconds an agent's clock is ahead of this server's, less the latency of its message. None if its
    time is unreadable."""
    sent_at = _parse(agent_time)
    offset = None if sent_at is None else (sent_at - datetime.now(UTC)).total_seconds()
    return None if offset is None or abs(offset) > _MAX_SECONDS else round(offset, 3)


def run_seconds(report: Ended) -> float | None:
    """Return how many seconds a rank ran by its supervisor's clock, or None if its supervisor did not measure it."""
    began = _parse(report.started_at or "")
    ended = _parse(report.at)
    if began is None or ended is None or report.reason == EndReason.NODE_REBOOTED:
        return None
    return max(0.0, (ended - began).total_seconds())


def shifted_by(text: str, seconds: float) -> str:
    """Return a time that many seconds later, unchanged if it is unreadable."""
    at = _parse(text)
    try:
        return text if at is None else (at + timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        return text


def _parse(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
