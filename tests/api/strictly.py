"""Reads answers by the OpenAPI document, strictly: what it does not name is wrong, and what of it was seen is kept."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from jsonschema_rs import Draft202012Validator

Schema = dict[str, Any]


class Strict:
    """`seen`: the fields, as Component.field, that some answer had with a value."""

    def __init__(self, document: Schema) -> None:
        self.document = deepcopy(document)
        self.seen: set[str] = set()
        for component in self.document["components"]["schemas"].values():
            if component.get("properties"):
                component["additionalProperties"] = False

    def faults(self, schema: Schema, answer: Any) -> list[str]:
        """Return the violations of an answer's schema, and record its fields."""
        found = [f"{error.instance_path}: {error.message}" for error in self._validator(schema).iter_errors(answer)]
        if not found:
            self.seen.update(self._fields(schema, answer))
        return found

    def documented(self, schema: Schema) -> set[str]:
        """Return all fields, at any depth, that answers of this schema may have."""
        names: set[str] = set()
        waiting, known = [schema], set()
        while waiting:
            one = waiting.pop()
            name = _component(one)
            if name and name not in known:
                known.add(name)
                fields = self.document["components"]["schemas"][name].get("properties", {})
                names.update(f"{name}.{field}" for field in fields)
                waiting += fields.values()
            waiting += [*one.get("anyOf", ()), *(one[key] for key in ("items", "additionalProperties") if one.get(key))]
        return names

    def is_free(self, field: str) -> bool:
        """Return whether a field, as Component.field, may have any value."""
        name, _, field = field.partition(".")
        schema = self.document["components"]["schemas"][name]["properties"][field]
        objects = [one for one in schema.get("anyOf", [schema]) if one.get("type") == "object"]
        return any("additionalProperties" not in one for one in objects)

    def _validator(self, schema: Schema) -> Draft202012Validator:
        return Draft202012Validator({**schema, "components": self.document["components"]})

    def _fields(self, schema: Schema, answer: Any) -> Iterator[str]:
        if name := _component(schema):
            yield from self._fields_of(name, answer)
        for one in schema.get("anyOf", ()):
            if self._validator(one).is_valid(answer):
                yield from self._fields(one, answer)
        if isinstance(answer, list) and "items" in schema:
            for item in answer:
                yield from self._fields(schema["items"], item)
        if isinstance(answer, dict) and isinstance(schema.get("additionalProperties"), dict):
            for item in answer.values():
                yield from self._fields(schema["additionalProperties"], item)

    def _fields_of(self, name: str, answer: Any) -> Iterator[str]:
        component = self.document["components"]["schemas"][name]
        for field, value in answer.items() if isinstance(answer, dict) else ():
            yield f"{name}.{field}"
            yield from self._fields(component["properties"][field], value)


def _component(schema: Schema) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]
