"""The values that a field with a fixed choice accepts, for messages: msgspec names only the value it found."""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

_WRONG = re.compile(r"Invalid enum value (.*?)(?: - at `\$(.*)`)?$", re.DOTALL)
# A part of a path as msgspec writes it: `.name`, `[0]`, or `[...]` for a value of an object.
_PART = re.compile(r"\.(\w+)|\[[^\]]*\]")


def named(kind: Any, text: str) -> str:
    """Return a message of msgspec about a value of the type `kind`. If it found none of a choice, name the choice."""
    wrong = _WRONG.match(text)
    if wrong is None:
        return text
    *others, last = _choices(kind, wrong[2] or "")
    place = f" - at `${wrong[2]}`" if wrong[2] else ""
    return f"Must be {', '.join(others)}{' or ' if others else ''}{last}, not {wrong[1]}{place}"


def _choices(kind: Any, path: str) -> Iterator[str]:
    types = _alternatives(inspect.type_info(kind))
    for name in _PART.findall(path):
        types = [each for outer in types for inner in _inside(outer, name) for each in _alternatives(inner)]
    for each in types:
        if isinstance(each, inspect.EnumType):
            yield from (repr(member.value) for member in each.cls)
        elif isinstance(each, inspect.LiteralType):
            yield from map(repr, each.values)
        elif isinstance(each, inspect.IntType):
            yield "a whole number"


def _alternatives(kind: inspect.Type) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return _alternatives(kind.type)
    return list(kind.types) if isinstance(kind, inspect.UnionType) else [kind]


def _inside(kind: inspect.Type, name: str) -> list[inspect.Type]:
    """Return the types of the field `name`, or of the items if it is empty."""
    if name:
        fields = kind.fields if isinstance(kind, inspect.StructType) else ()
        return [field.type for field in fields if field.encode_name == name]
    if isinstance(kind, inspect.DictType):
        return [kind.value_type]
    return [kind.item_type] if isinstance(kind, (inspect.ListType, inspect.VarTupleType, inspect.SetType)) else []
