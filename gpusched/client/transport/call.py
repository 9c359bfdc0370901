"""Each call of the REST API as a value: the request to send, and the parser of its answer."""

import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from gpusched.client.errors import Invalid

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request and the parser of its answer.

    `is_repeatable`: sending it twice has the effect of sending it once, perhaps through its idempotency key, so it can
    be retried when it may have arrived. `repeats_refused`: retry a 429. `max_seconds`: a shorter timeout than usual,
    which also ends the retries.
    `content`: the body as it is sent, with its `Content-Type` in `headers`; `body` is sent as JSON."""

    method: str
    path: str
    parse: "Callable[[httpx.Response], T]"
    query: Mapping[str, str | int] = field(default_factory=dict)
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = True
    repeats_refused: bool = True
    max_seconds: float | None = None
    content: bytes | None = None

    @property
    def acts_again(self) -> bool:
        """Whether the same call, made anew with a new key, acts a second time: its user must know if it was sent."""
        return not self.is_repeatable or ("Idempotency-Key" in self.headers and "dry_run" not in self.query)


def get(path: str, kind: type[T], /, **query: str | int | None) -> Call[T]:
    """Return a GET of JSON; filters that are None are left out."""
    return Call("GET", API + path, json_as(kind), query={k: v for k, v in query.items() if v is not None})


def write(
    method: str,
    path: str,
    kind: type[T],
    body: object = None,
    *,
    key: str | None = None,
    version: int | None = None,
    is_dry_run: bool = False,
    is_repeatable: bool = True,
) -> Call[T]:
    """Return a POST, PUT, PATCH or DELETE with a JSON body (or none) and a JSON answer. A POST has an idempotency key,
    `key` or a new one, that stays the same over its retries. An edit of a `version` is refused the second time, because
    the first changes the version."""
    headers = {"Idempotency-Key": key or uuid.uuid4().hex} if method == "POST" else {}
    if version is not None:
        headers["If-Match"] = f'"{version}"'
        is_repeatable = is_dry_run
    query = {"dry_run": "true"} if is_dry_run else {}
    return Call(method, API + path, json_as(kind), query, body, headers, is_repeatable)


def moment(value: str | date | None) -> str | None:
    """Return a time or a day as text."""
    return value.isoformat() if isinstance(value, date) else value


def delete(path: str, *, is_repeatable: bool = False) -> Call[None]:
    """Return a DELETE without an answer. By default it is not repeatable: a second one would not find what the first
    deleted."""
    return Call("DELETE", API + path, no_content, is_repeatable=is_repeatable)


def upload(path: str, kind: type[T], content: bytes, content_type: str, /, **query: str | None) -> Call[T]:
    """Return a POST of bytes with a JSON answer and a new idempotency key."""
    headers = {"Idempotency-Key": uuid.uuid4().hex, "Content-Type": content_type}
    return Call("POST", API + path, json_as(kind), without_none(**query), headers=headers, content=content)


def get_bytes(path: str) -> Call[bytes]:
    """Return a GET of bytes of any type, which the server sends as an attachment."""
    return Call("GET", API + path, _attachment, headers={"Accept": "*/*"})


def _attachment(response: "httpx.Response") -> bytes:
    """Return the content. Any other answer comes from another server, such as a proxy."""
    if not response.headers.get("Content-Disposition", "").startswith("attachment"):
        raise ValueError("it is no attachment")
    return response.content


def json_as(kind: type[T]) -> "Callable[[httpx.Response], T]":
    decoder = msgspec.json.Decoder(kind)
    return lambda response: decoder.decode(response.content)


def no_content(response: "httpx.Response") -> None:
    """Accept an empty answer. A body comes from another server, such as a proxy: nothing was done."""
    if response.content:
        raise ValueError("it has a body where none is expected")


def segment(name: str) -> str:
    """Return a name as one segment of a path. Raises Invalid for a name that would change the path."""
    if "/" in name:
        raise Invalid(f"{name!r} is not a valid name: it has a slash")
    return user_segment(name)


def user_segment(name: str) -> str:
    """Return the name of a user, which may have slashes, as `segment` does."""
    if not name:
        raise Invalid("a name must not be empty")
    if name in (".", ".."):
        raise Invalid(f"{name!r} is not a valid name")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as error:
        raise Invalid(f"the name {name!r} is not text in UTF-8") from error


def without_none(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def require_sendable(call: Call[Any]) -> None:
    """Raise Invalid, which names the value, if a call cannot be sent: JSON would turn nan and infinity into null, which
    means "no limit" elsewhere; text is sent as UTF-8, and headers are ASCII."""
    for name, value in (*call.query.items(), *_fields(call.body)):
        require_sendable_value(name, value)
    for name, value in call.headers.items():
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise Invalid(f"{name} must be printable ASCII characters, not {value!r}")


def require_sendable_value(name: str, value: object) -> None:
    """Raise Invalid, which names the value, if JSON cannot carry it or would change it."""
    try:
        _check(name, value)
    except RecursionError as error:
        raise Invalid(f"{name} is nested too deeply") from error


def _fields(body: object) -> tuple[tuple[str, object], ...]:
    return tuple(body.items()) if isinstance(body, Mapping) else (("the body", body),)


def _check(name: str, value: object) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Invalid(f"{name} must be a finite number, not {value}")
    elif isinstance(value, str):
        # A shell argument that is not UTF-8 arrives as a string with surrogates, which cannot be encoded.
        if not value.isascii() and not _is_utf8(value):
            raise Invalid(f"{name} is not text in UTF-8")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not _is_utf8(key):
                raise Invalid(f"{name}: the name {key!r} is not text in UTF-8")
            _check(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _check(f"{name}[{number}]", item)


def _is_utf8(text: object) -> bool:
    try:
        str(text).encode()
    except UnicodeEncodeError:
        return False
    return True
