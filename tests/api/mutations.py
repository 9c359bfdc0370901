"""JSON that nearly fits: a valid message with one thing in it wrong (A55)."""

import json
import string
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

DEEP = "an array in an array, and so on"
# What breaks programs: the ends of numbers, texts that PostgreSQL or UTF-8 cannot hold, wrong types, depth.
HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["", "\x00", "nlp", "../..", "a" * 300, "%s", "{}", "9" * 40, "2030-01-01T00:00:00Z", "💥", "'; --", "\ud800",
         "\u202e", 2**31, 2**63, -1, 0, 1e308, 10**400, DEEP, [], {}, [[]], {"": None}, "x" * 70_000]
    ),
    st.lists(st.one_of(st.text(max_size=5), st.integers()), max_size=3),
    st.dictionaries(st.text(string.ascii_letters + "\x00", max_size=5), st.text(max_size=5), max_size=3),
)  # fmt: skip
NO_JSON = (
    b"{", b"[" * 50_000, b'{"a":' * 20_000, b"\xff\xfe", b'{"name": "\xff"}', b"null", b"1e999", b'"text"', b"[]", b"{}x",
    b"\x00", b"NaN", b"true", b"{'a': 1}", b"\xef\xbb\xbf{}",
)  # fmt: skip


class Again(str):
    """The name of a field that is there already: JSON may have it twice, a dictionary not."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def encoded(value: Any) -> bytes:
    """Also of what no JSON should have: NaN, half a character, a name twice, arrays without end."""
    return json.dumps(value).encode().replace(json.dumps(DEEP).encode(), b"[" * 3000 + b"]" * 3000)


@st.composite
def mutated(draw: st.DrawFn, valid: dict[str, Any], remaining: tuple[Any, ...] = (), maximum: int = 3) -> bytes:
    """The valid message, or this with up to `most` changes: a value replaced by a hostile one or by one of `others`,
    left out, moved elsewhere, put into an array, an unknown field or a repeated one; or cut off."""
    value: Any = valid
    for _ in range(draw(st.integers(0, maximum))):
        path = draw(st.sampled_from(list(_paths(value))))
        new = draw(st.one_of(HOSTILE, st.sampled_from(remaining)) if remaining else HOSTILE)
        value = _changed(value, path, draw(st.sampled_from(_CHANGES)), new)
    raw = encoded(value)
    return raw if draw(st.integers(0, 9)) else raw[: draw(st.integers(0, len(raw) - 1))]


def _paths(value: Any, present: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield present
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _paths(each, (*present, key))


_CHANGES = ("replace", "replace", "replace", "leave out", "into an array", "unknown", "twice", "doubled")


def _changed(value: Any, path: tuple[Any, ...], change: str, new: Any) -> Any:
    if path and not (len(path) == 1 and change in ("leave out", "twice", "doubled")):
        inner = _changed(value[path[0]], path[1:], change, new)
        if isinstance(value, dict):
            return {key: inner if key is path[0] else each for key, each in value.items()}
        return [inner if n == path[0] else each for n, each in enumerate(value)]
    if change == "into an array":
        return [value]
    if change == "unknown" and isinstance(value, dict):
        return {**value, "no_such_field": new}
    if path and change == "leave out":
        return _without(value, path[0])
    if path and isinstance(value, dict):
        return {**value, Again(path[0]): new}
    if path:
        return [*value, value[path[0]]]
    return new


def _without(value: Any, key: Any) -> Any:
    if isinstance(value, dict):
        return {name: each for name, each in value.items() if name is not key}
    return [each for n, each in enumerate(value) if n != key]
