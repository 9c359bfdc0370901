"""Short functions for set-based SQL: rows as dictionaries, and transactions that retry after a deadlock."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from datetime import datetime
from types import NoneType
from typing import Any, TypeVar

import msgspec
import psycopg
from django.db import (
    DEFAULT_DB_ALIAS,
    IntegrityError,
    NotSupportedError,
    OperationalError,
    connection,
    connections,
    transaction,
)
from psycopg import errors

from gpusched.lib.db.fence import needs_transaction

T = TypeVar("T")
Params = Sequence[Any] | Mapping[str, Any]
Row = dict[str, Any]  # by column name


_JSONB = 3802  # PostgreSQL's type number; Django's connections return jsonb as text
# Whether a transaction that fails with an invalid cached plan is retried.
_is_repeatable = ContextVar("_is_repeatable", default=False)


def query(sql: str, params: Params = ()) -> list[Row]:
    """Run a statement. Return its rows by column name, [] for a statement without rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return _by_name(cursor)


def database_now() -> datetime:
    """Return the time by the clock of the database, the one clock that all hosts share."""
    now: datetime = rows("SELECT clock_timestamp()")[0][0]
    return now


def prepared(sql: str, params: Params = ()) -> list[Row]:
    """Run a frequent statement as a prepared one: PostgreSQL plans it once per connection, which is half of its work.

    Django's own cursors put the parameters into the text, so that no two statements are equal. A plan that a migration
    has invalidated is replaced: on a new connection, or by the next try of `retry_atomic`, because psycopg drops all
    plans with a rollback. Any other transaction would fail, so there PostgreSQL plans the statement each time."""
    return _run_prepared(sql, params, _by_name)


def prepared_rows(sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
    """Run a frequent statement as `prepared` does, and return its rows as `rows` does."""
    return _run_prepared(sql, params, _as_tuples)


def _run_prepared(sql: str, params: Params, read: Callable[[Any], list[T]]) -> list[T]:
    if connection.in_atomic_block:
        return _prepared(sql, params, read, is_kept=_is_repeatable.get())
    try:
        return _prepared(sql, params, read)
    except NotSupportedError as error:
        if not _is_void_plan(error):
            raise
        connection.close()
        return _prepared(sql, params, read)


def _is_void_plan(error: Exception) -> bool:
    return isinstance(error.__cause__, errors.FeatureNotSupported) and "cached plan" in str(error)


def _prepared(sql: str, params: Params, read: Callable[[Any], list[T]], *, is_kept: bool = True) -> list[T]:
    own = connections[DEFAULT_DB_ALIAS]  # `connection` looks this up for each of its attributes
    own.close_if_health_check_failed()
    own.ensure_connection()
    with own.wrap_database_errors, psycopg.Cursor(own.connection) as cursor:
        cursor.execute(sql, params, prepare=is_kept)
        return read(cursor)


def _as_tuples(cursor: Any) -> list[tuple[Any, ...]]:
    records: list[tuple[Any, ...]] = cursor.fetchall()
    return records


def _by_name(cursor: Any) -> list[Row]:
    result = cursor.pgresult  # cheaper than `description`, which describes each column in full
    if result is None or not result.nfields:
        return []
    names = [result.fname(number).decode() for number in range(result.nfields)]
    records = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    for number, name in enumerate(names):
        if result.ftype(number) == _JSONB:
            for row in records:
                text = row[name]
                row[name] = None if text is None else msgspec.json.decode(text)
    return records


def rows(sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
    """Run a statement. Return its rows as tuples, for thousands of rows; jsonb is text."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return _as_tuples(cursor)


def execute(sql: str, params: Params = ()) -> int:
    """Run a statement. Return the number of rows that it affected. On a fenced connection it is a transaction."""
    with transaction.atomic() if needs_transaction() else nullcontext(), connection.cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)


def columns(rows: Sequence[Sequence[Any]], width: int) -> list[Any]:
    """Transpose rows into `width` columns for `unnest`. Each parameter must be cast to its array type."""
    return [_array(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


def _array(values: Sequence[Any]) -> Any:
    """Return a column of numbers, booleans or texts as an array's text. psycopg adapts such arrays element by element,
    which takes longer than PostgreSQL's work for thousands of rows."""
    kinds = set(map(type, values))
    has_nulls = NoneType in kinds
    kinds.discard(NoneType)
    if kinds <= {int, float, bool}:
        text: Callable[[Any], str] = str  # PostgreSQL reads Python's notation, including inf, nan and True
    elif all(issubclass(kind, str) for kind in kinds):
        text = _quoted
    else:
        return list(values)
    texts = ("NULL" if value is None else text(value) for value in values) if has_nulls else map(text, values)
    return f"{{{','.join(texts)}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def retry_atomic(work: Callable[[], T]) -> T:
    """Run `work` in a transaction. Retry it after a deadlock or an invalidated plan, at most 5 times in all."""
    for attempt in range(5):
        try:
            with _repeatable(), transaction.atomic():
                return work()
        except (OperationalError, NotSupportedError) as error:
            is_passing = isinstance(error.__cause__, (errors.DeadlockDetected, errors.SerializationFailure))
            if attempt == 4 or not (is_passing or _is_void_plan(error)):
                raise
            time.sleep(0.01 * 2**attempt)
    raise AssertionError("unreachable")


@contextmanager
def _repeatable() -> Iterator[None]:
    """Allow retries, but not inside another transaction, which would be lost."""
    token = _is_repeatable.set(_is_repeatable.get() or not connection.in_atomic_block)
    try:
        yield
    finally:
        _is_repeatable.reset(token)


def violates(error: IntegrityError, constraint: str) -> bool:
    """Return whether the error is a violation of this constraint, by its name in PostgreSQL."""
    cause = error.__cause__
    return isinstance(cause, psycopg.Error) and cause.diag.constraint_name == constraint


def as_json(value: Any) -> str:
    """Return JSON text for a jsonb parameter."""
    return msgspec.json.encode(value).decode()
