"""Set-based SQL in few words: rows as dictionaries, and a transaction that is tried again after a deadlock."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import NoneType
from typing import Any, TypeVar

import msgspec
import psycopg
from django.db import IntegrityError, NotSupportedError, OperationalError, connection, transaction
from psycopg import errors

T = TypeVar("T")
Params = Sequence[Any] | Mapping[str, Any]


_JSONB = 3802  # PostgreSQL's type number; Django's connections hand jsonb over as text
# Whether a transaction that fails with a void plan is run again.
_is_repeatable = ContextVar("_is_repeatable", default=False)


def query(sql: str, params: Params = ()) -> list[dict[str, Any]]:
    """Runs one statement and gives its rows by column name; [] for a statement without rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return _by_name(cursor)


def prepared(sql: str, params: Params = ()) -> list[dict[str, Any]]:
    """The same for a statement of each request: PostgreSQL plans it once per connection, which is half of its work.

    Django's own cursors write the parameters into the text, so that no two statements are alike. A plan that a
    migration has made void is made anew: on another connection, or in `atomically` by its next try, because psycopg
    drops all plans with a rollback. Any other transaction would fail, so there PostgreSQL plans the statement anew
    each time."""
    if connection.in_atomic_block:
        return _prepared(sql, params, is_kept=_is_repeatable.get())
    try:
        return _prepared(sql, params)
    except NotSupportedError as error:
        if not _is_void_plan(error):
            raise
        connection.close()
        return _prepared(sql, params)


def _is_void_plan(error: Exception) -> bool:
    return isinstance(error.__cause__, errors.FeatureNotSupported) and "cached plan" in str(error)


def _prepared(sql: str, params: Params, *, is_kept: bool = True) -> list[dict[str, Any]]:
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    with connection.wrap_database_errors, psycopg.Cursor(connection.connection) as cursor:
        cursor.execute(sql, params, prepare=is_kept)
        return _by_name(cursor)


def _by_name(cursor: Any) -> list[dict[str, Any]]:
    result = cursor.pgresult  # `description` would describe each column anew, and more than is wanted
    if result is None or not result.nfields:
        return []
    names = [result.fname(number).decode() for number in range(result.nfields)]
    found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    for number, name in enumerate(names):
        if result.ftype(number) == _JSONB:
            for row in found:
                text = row[name]
                row[name] = None if text is None else msgspec.json.decode(text)
    return found


def rows(sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
    """The same as plain tuples, for thousands of rows; jsonb comes as text."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


def execute(sql: str, params: Params = ()) -> int:
    """Runs one statement and gives the number of rows that it touched."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)


def columns(rows: Sequence[Sequence[Any]], width: int) -> list[Any]:
    """Rows turned into `width` columns, as `unnest` takes them; each parameter must be cast to its array type."""
    return [_array(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


def _array(values: Sequence[Any]) -> Any:
    """A column of numbers, of truths or of texts as an array's text: psycopg writes such arrays element by element,
    which takes longer than PostgreSQL takes for thousands of rows."""
    kinds = set(map(type, values))
    has_nulls = NoneType in kinds
    kinds.discard(NoneType)
    if kinds <= {int, float, bool}:
        text: Callable[[Any], str] = str  # as Python writes them, PostgreSQL reads them: also inf, nan and True
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
    """Runs `work` in a transaction; PostgreSQL picked as a deadlock's victim, or with a plan that a migration has made
    void, it is run again (at most 5 times)."""
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
    """Not within another transaction: that one would be lost, too."""
    token = _is_repeatable.set(_is_repeatable.get() or not connection.in_atomic_block)
    try:
        yield
    finally:
        _is_repeatable.reset(token)


def violates(error: IntegrityError, constraint: str) -> bool:
    """Return whether the error is that of this constraint, by its name in PostgreSQL."""
    cause = error.__cause__
    return isinstance(cause, psycopg.Error) and cause.diag.constraint_name == constraint


def as_json(value: Any) -> str:
    """JSON text for a jsonb parameter."""
    return msgspec.json.encode(value).decode()
