"""Tells an outage of the database from a defect, and what is known of a request that met either."""

import logging
from collections.abc import Iterator
from typing import Any

import psycopg
from django.db import Error
from django.http import HttpRequest

# PostgreSQL ends, has crashed, starts or recovers; https://www.postgresql.org/docs/current/errcodes-appendix.html
_STATES = ("57P01", "57P02", "57P03")
# 08: the connection failed. 53: no connection, memory or disk space is left.
_CLASSES = ("08", "53")
_NO_CONNECTION = "gpusched_no_connection"


def is_outage(error: BaseException | None) -> bool:
    """Whether this error, of Django or of psycopg, says that the database is away."""
    return any(_says_away(cause) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[psycopg.Error]:
    """Yield the errors of psycopg that this one stands for, or that it followed, as that of a rollback."""
    while error is not None:
        if isinstance(error, psycopg.Error):
            yield error
        elif not isinstance(error, Error):
            return
        error = error.__cause__ or error.__context__


def _says_away(error: psycopg.Error) -> bool:
    if error.sqlstate:
        return error.sqlstate in _STATES or error.sqlstate.startswith(_CLASSES)
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    # Without a code the server said nothing: either there is no connection any more, or psycopg was used wrongly.
    return isinstance(error, psycopg.errors.ConnectionTimeout) or bool(getattr(error, _NO_CONNECTION, False))


def note_connection(error: object, connection: Any) -> None:
    """Keep with an error of psycopg whether a sound connection was left (None: none was made). To be called at once:
    Django connects anew before it hands the error on."""
    if isinstance(error, psycopg.Error):
        setattr(error, _NO_CONNECTION, connection is None or bool(connection.closed))


def outcome(request: HttpRequest) -> tuple[str, str]:
    """What is known of a request that failed, as the end of a sentence and a next step. A connection that breaks at
    COMMIT does not say whether the transaction was committed."""
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return "", "try again in a moment"
    unknown, look = "; it is not known whether the request was carried out", "look whether it was before you repeat it"
    if not _takes_key(request):
        return unknown, look
    if request.headers.get("Idempotency-Key"):
        return unknown, "repeat it with the same Idempotency-Key: it is carried out once, whatever became of this one"
    return unknown, f"{look}; with an Idempotency-Key a repeat is safe"


def _takes_key(request: HttpRequest) -> bool:
    """Every POST of the API but the login, which has no caller yet (jobs/submit/idempotency.py)."""
    return request.method == "POST" and request.path.startswith("/api/") and request.path != "/api/v1/login"


def without_traceback(record: logging.LogRecord) -> bool:
    """A filter for Django's log of failed requests: an outage is a line of each request, not a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if is_outage(error):
        first_line = next(iter(str(error).splitlines()), "")
        record.msg, record.args = f"{record.getMessage()}: the database does not answer: {first_line}", ()
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True
