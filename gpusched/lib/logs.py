"""The lines of the log: as text, or as one JSON object each with the ids of the request and the job."""

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

from gpusched.lib.requests import current_id

# What a record may say beside its message: logger.warning("…", extra={"job_id": 5}).
EXTRAS = ("job_id", "node", "tenant", "method", "path", "status", "ms")


class JsonLines(logging.Formatter):
    """Keys: at level logger message, request_id within a request, what EXTRAS the record has, exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := current_id():
            line["request_id"] = request_id
        line |= {name: getattr(record, name) for name in EXTRAS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()
