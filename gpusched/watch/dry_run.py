"""Report what the rules would have done: over the lines of a whole log, or over what the other sources show now. Books
nothing."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpusched.client.errors import Invalid
from gpusched.watch import judge
from gpusched.watch.rules import Rule

# The time at the beginning of a line, as most loggers write it; without an offset, the local time.
_TIME = re.compile(r"\D{0,3}(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)")

_FARTHEST = timedelta(days=1000)


def report(rule: Rule, log: Path | None, ask: judge.Ask | None) -> Iterator[str]:
    """Yield a line per booking that would have been made. `log`: read this file, such as the rotated one of yesterday,
    in place of the rule's."""
    path = log or (Path(rule.log).expanduser() if rule.log else None)
    if path is None:
        yield f"{rule.name}: has no log; start it without --dry-run to watch its {rule.source}"
        return
    booked, cooled_at = 0, None
    for number, (at, text) in enumerate(_lines(path), 1):
        if cooled_at is not None and at < cooled_at:
            continue
        try:
            confidence = judge.confidence(rule, text, ask)
        except judge.EndpointFailed as error:
            yield f"{rule.name}: line {number}: {error}"
            continue
        if confidence is not None:
            booked += 1
            cooled_at = at + timedelta(minutes=rule.cool_down_minutes)
            start = at + timedelta(minutes=rule.reserve.in_minutes)
            yield (
                f"{rule.name}: line {number} at {at:%Y-%m-%d %H:%M:%S} would reserve {rule.reserve.gpus} GPU(s) from"
                f" {start:%H:%M:%S} for {rule.reserve.for_minutes:g} min (confidence {confidence:.2f})"
            )
    yield f"{rule.name}: {booked} reservation(s) in {path}"


def _lines(path: Path) -> Iterator[tuple[datetime, str]]:
    """Yield the lines with their times. A line without one has that of the line before; if none has, the file's."""
    try:
        at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                at = _time(line, at)
                yield at, line.rstrip("\r\n")
    except OSError as error:
        raise Invalid(f"cannot read {path}: {error.strerror}", next_step="name the log with --log") from error


def _time(line: str, previous: datetime) -> datetime:
    match = _TIME.match(line)
    if match is None:
        return previous
    try:
        at = datetime.fromisoformat(match[1].replace(",", ".")).astimezone(UTC)
        _ = at + _FARTHEST  # what is booked then has a time, too
    except (ValueError, OverflowError):
        return previous
    return at
