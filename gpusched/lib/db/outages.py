"""Distinguish outages of the database from defects, and describe the outcome of a failed request."""

import logging
from collections.abc import Iterator
from typing import Any

import psycopg
from django.db import Error
from django.http import HttpRequest

# PostgreSQL shuts down, has crashed, starts or recovers; https://www.postgresql.org/docs/current/errcodes-appendix.html
# 25006: the server accepts only reads: it is a standby, or it is no longer the primary.
_STATES = ("57P01", "57P02", "57P03", "25006")
# 08: the connection failed. 53: no connection, memory or disk space is left.
_CLASSES = ("08", "53")
# A timeout of the role ended the statement, or an administrator did: the connection is sound.
_TIMEOUTS = {
    "57014": "the database ended a statement that took too long (statement_timeout)",
    "55P03": "the database ended a wait for a lock (lock_timeout)",
}
_SYMPTOMS = {
    "53100": "the database has no disk space left",
    "53200": "the database has no memory left",
    **_TIMEOUTS,
}
_NO_CONNECTION = "gpusched_no_connection"


def is_outage(error: BaseException | None) -> bool:
    """Return whether this error, of Django or of psycopg, is an outage of the database."""
    return any(_is_outage_error(cause) for cause in _psycopg_errors(error))


def is_temporary(error: BaseException | None) -> bool:
    """Return whether the same request may succeed later: an outage, or a timeout of the database."""
    return is_outage(error) or any(cause.sqlstate in _TIMEOUTS for cause in _psycopg_errors(error))


def symptom(error: BaseException | None) -> str:
    """Return what callers observe of this temporary error, as a sentence."""
    symptoms = (_SYMPTOMS.get(cause.sqlstate or "") for cause in _psycopg_errors(error))
    return next(filter(None, symptoms), "the database does not answer")


def summary(error: BaseException) -> str:
    """Return the symptom and the first line of the error, for a line in a log."""
    return f"{symptom(error)}: {next(iter(str(error).splitlines()), '')}"


def _psycopg_errors(error: BaseException | None) -> Iterator[psycopg.Error]:
    """Yield the errors of psycopg behind this one: its cause, or the error that it followed, as in a rollback."""
    while error is not None:
        if isinstance(error, psycopg.Error):
            yield error
        elif not isinstance(error, Error):
            return
        error = error.__cause__ or error.__context__


def _is_outage_error(error: psycopg.Error) -> bool:
    if error.sqlstate:
        return error.sqlstate in _STATES or error.sqlstate.startswith(_CLASSES)
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    # Without a code the server sent nothing: either the connection is gone, or psycopg was used wrongly.
    return isinstance(error, psycopg.errors.ConnectionTimeout) or bool(getattr(error, _NO_CONNECTION, False))


def note_connection(error: object, connection: Any) -> None:
    """Note on an error of psycopg whether the connection survived (None: there was none). Call it at once: Django
    reconnects before it raises the error."""
    if isinstance(error, psycopg.Error):
        setattr(error, _NO_CONNECTION, connection is None or bool(connection.closed))


def outcome(request: HttpRequest) -> tuple[str, str]:
    """Return the outcome of a failed request, as the end of a sentence and a next step. If the connection breaks at
    COMMIT, the transaction may or may not be committed."""
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return "", "try again in a moment"
    unknown, check = "; the request may or may not have been executed", "check whether it was before you repeat it"
    if not _takes_key(request):
        return unknown, check
    if request.headers.get("Idempotency-Key"):
        return unknown, "repeat it with the same Idempotency-Key: it is executed once in any case"
    return unknown, f"{check}; with an Idempotency-Key, repeating is safe"


def _takes_key(request: HttpRequest) -> bool:
    """Return whether the request may have a key: POSTs except the login, which has no caller yet
    (jobs/submit/idempotency.py)."""
    return request.method == "POST" and request.path.startswith("/api/") and request.path != "/api/v1/login"


def is_no_probe(record: logging.LogRecord) -> bool:
    """Filter Django's log of failed requests: drop /ready. "Not ready" is an answer to a probe, not an error, and a
    server that starts is probed many times a second."""
    request = getattr(record, "request", None)
    return not (isinstance(request, HttpRequest) and request.path.endswith("/ready"))


def without_traceback(record: logging.LogRecord) -> bool:
    """Filter the logs of Django's requests and of django-q2: log a temporary error as a line, not as a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and is_temporary(error):
        record.msg, record.args = f"{record.getMessage()}: {summary(error)}", ()
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True
