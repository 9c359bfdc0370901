"""Log lines as one JSON object each, the same for the server and the agents."""

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from gpusched.protocol.arrays import format_ranges, to_ranges

# Fields of a record beside its message: logger.warning("…", extra={"job_id": 5}).
EXTRAS = ("job_id", "job_ids", "attempt", "rank", "node", "tenant", "method", "path", "status", "ms")


class JsonLines(logging.Formatter):
    """Keys: at, level, logger, message, the fields of `context` and of EXTRAS, and exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self.context(),
        }
        line |= {name: getattr(record, name) for name in EXTRAS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()

    def context(self) -> dict[str, str]:
        """Return the fields of all lines at this moment."""
        return {}


def job_fields(job_ids: Iterable[int]) -> dict[str, Any]:
    """Return the `extra` of a line about these jobs: `job_id` of one, `job_ids` of several as text like 3-7,9."""
    ids = set(job_ids)
    if len(ids) == 1:
        return {"job_id": ids.pop()}
    return {"job_ids": format_ranges(to_ranges(list(ids)))} if ids else {}


def rank_fields(key: str, node: str = "") -> dict[str, Any]:
    """Return the `extra` of a line about a rank, by its key (agent_messages.rank_key); empty for any other name."""
    numbers = key.split(".")
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        return {}
    fields = dict(zip(("job_id", "attempt", "rank"), map(int, numbers), strict=True))
    return {**fields, "node": node} if node else dict(fields)
