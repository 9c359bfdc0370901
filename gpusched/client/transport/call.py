"""Each call of the REST API described once, as a value: what to send, and how to read the answer."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from gpusched.client.errors import Invalid

T = TypeVar("T")
API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request and the reading of its answer.

    `is_repeatable`: sending it twice does what sending it once does, if only for its idempotency key, so it may be sent
    again when nobody knows whether it arrived. `most_seconds`: to wait for its answer, where that is less than
    usual."""

    method: str
    path: str
    parse: Callable[[Reply], T]
    query: Mapping[str, str | int] = field(default_factory=dict)
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = True
    most_seconds: float | None = None


def get(path: str, kind: type[T], /, **query: str | int | None) -> Call[T]:
    """A GET of JSON; filters that are None are left out."""
    return Call("GET", API + path, json_as(kind), query={k: v for k, v in query.items() if v is not None})


def write(
    method: str, path: str, kind: type[T], body: object = None, *, key: str | None = None, is_dry_run: bool = False
) -> Call[T]:
    """A POST, PUT, PATCH or DELETE with a JSON body (or none) and a JSON answer. A POST has an idempotency key, `key`
    or its own, that is the same over its repeats."""
    return Call(
        method,
        API + path,
        json_as(kind),
        query={"dry_run": "true"} if is_dry_run else {},
        body=body,
        headers={"Idempotency-Key": key or uuid.uuid4().hex} if method == "POST" else {},
    )


def json_as(kind: type[T]) -> Callable[[Reply], T]:
    decoder = msgspec.json.Decoder(kind)
    return lambda reply: decoder.decode(reply.body)


def no_content(reply: Reply) -> None:
    """Accept an empty answer. A body is not the server's, such as a proxy's page: nothing was done."""
    if reply.body:
        raise ValueError("it has a body where none is expected")


def segment(name: str) -> str:
    """A name as one piece of a path, whatever characters it has. Raises Invalid for one that would be another path."""
    if not name:
        raise Invalid("a name must not be empty")
    if name in (".", ".."):
        raise Invalid(f"{name!r} is no name")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as error:
        raise Invalid(f"the name {name!r} is not text in UTF-8") from error


def without_none(**values: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}
