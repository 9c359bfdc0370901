"""Refuses what no request can say as it is meant, before it is sent."""

import math
from collections.abc import Mapping
from typing import Any

from gpusched.client.errors import Invalid
from gpusched.client.transport.call import Call


def require_sendable(call: Call[Any]) -> None:
    """Raises Invalid that names the value: JSON has null for nan and infinity, which elsewhere is "no limit"; text is
    sent as UTF-8, and headers are ASCII."""
    for name, value in (*call.query.items(), *_fields(call.body)):
        _check(name, value)
    for name, value in call.headers.items():
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise Invalid(f"{name} must be ASCII characters that can be seen, not {value!r}")


def _fields(body: object) -> tuple[tuple[str, object], ...]:
    return tuple(body.items()) if isinstance(body, Mapping) else (("the body", body),)


def _check(name: str, value: object) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Invalid(f"{name} must be a finite number, not {value}")
    elif isinstance(value, str):
        # An argument of the shell that is no UTF-8 is a text with halves of characters here, which nothing encodes.
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
