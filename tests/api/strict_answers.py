"""Check answers strictly against the OpenAPI document: undocumented fields are errors, and seen fields are recorded."""

import json
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
        self._validators: dict[str, Draft202012Validator] = {}
        for component in self.document["components"]["schemas"].values():
            if component.get("properties"):
                component["additionalProperties"] = False

    def faults(self, schema: Schema, answer: Any) -> list[str]:
        """Return the violations of an answer's schema, and record its fields."""
        result = [f"{error.instance_path}: {error.message}" for error in self._validator(schema).iter_errors(answer)]
        if not result:
            self.seen.update(self._fields(schema, answer))
        return result

    def documented(self, schema: Schema) -> set[str]:
        """Return all fields, at any depth, that answers of this schema may have."""
        names: set[str] = set()
        waiting, allowed = [schema], set()
        while waiting:
            operation = waiting.pop()
            name = _component(operation)
            if name and name not in allowed:
                allowed.add(name)
                fields = self.document["components"]["schemas"][name].get("properties", {})
                names.update(f"{name}.{field}" for field in fields)
                waiting += fields.values()
            waiting += [
                *operation.get("anyOf", ()),
                *(operation[key] for key in ("items", "additionalProperties") if operation.get(key)),
            ]
        return names

    def is_free(self, field: str) -> bool:
        """Return whether a field, as Component.field, may have any value."""
        name, _, field = field.partition(".")
        schema = self.document["components"]["schemas"][name]["properties"][field]
        objects = [operation for operation in schema.get("anyOf", [schema]) if operation.get("type") == "object"]
        return any("additionalProperties" not in operation for operation in objects)

    def _validator(self, schema: Schema) -> Draft202012Validator:
        key = json.dumps(schema)
        if key not in self._validators:  # each one is compiled from the whole document
            self._validators[key] = Draft202012Validator({**schema, "components": self.document["components"]})
        return self._validators[key]

    def _fields(self, schema: Schema, answer: Any) -> Iterator[str]:
        if name := _component(schema):
            yield from self._fields_of(name, answer)
        for operation in schema.get("anyOf", ()):
            if self._validator(operation).is_valid(answer):
                yield from self._fields(operation, answer)
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
