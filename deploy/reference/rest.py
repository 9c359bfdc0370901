"""Generate the tables of routes and of the fields of a job request from the OpenAPI document."""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from deploy.reference.parts import add_links, code, table

Json = dict[str, Any]
OPENAPI = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"


@dataclass(frozen=True)
class Operation:
    """One method of one path; `spec` is its part of the OpenAPI document."""

    method: str
    path: str
    spec: Json

    @property
    def summary(self) -> str:
        return re.sub(rf" \({re.escape(self.spec['x-who'])}\)$", "", self.spec["summary"])


@cache
def document() -> Json:
    content: Json = json.loads(OPENAPI.read_text())
    return content


def operations(group: str) -> list[Operation]:
    return [
        Operation(method.upper(), path, spec)
        for path, methods in document()["paths"].items()
        for method, spec in methods.items()
        if spec["tags"] == [group]
    ]


def overview(*groups: str) -> str:
    """Return a table of the operations of the groups: route, role, summary."""
    rows = [
        (f"{code(operation.method)} {code(operation.path)}", operation.spec["x-who"], operation.summary)
        for group in groups
        for operation in operations(group)
    ]
    return table(("route", "who", "what"), rows)


def job_request() -> str:
    """Return a table of the fields of a job request."""
    fields = document()["components"]["schemas"]["JobRequest"]["properties"]
    rows = [
        (code(name), _type(field), code(json.dumps(field["default"])), add_links(field["description"]))
        for name, field in fields.items()
    ]
    return table(("field", "type", "default", "meaning"), rows)


def _name(schema: Json) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _type(schema: Json) -> str:
    """Return the type as text: integer, string or null, list of string, one of a, b."""
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(option) for option in schema[key]))
    if name := _name(schema):
        values = document()["components"]["schemas"][name].get("enum")
        return ", ".join(code(word) for word in values) if values else name
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if "minimum" in schema and "maximum" in schema:
        return f"{schema['minimum']} to {schema['maximum']}"
    return str(schema.get("type", "any"))
