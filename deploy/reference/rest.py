"""Generate the REST reference from the OpenAPI document: each operation with roles, parameters, fields and statuses."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from deploy.reference.parts import HEAD, anchor, code, add_links, table

Json = dict[str, Any]
OPENAPI = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"
_INTRODUCTION = """\
# Reference: REST

This page lists each operation with its roles, parameters and answers. [rest.md](../rest.md) explains what all
operations share (tokens, paging, errors, idempotency, dry runs) and the terms. [openapi.json](../openapi.json) is the
machine-readable description.

*Who* is the lowest role in the tenant that can call the operation; admins can call all. `anybody` needs a token or a
login, `no token` needs neither. Any request can also fail with 401, 403, 406, 413, 415 or 429.
"""
GROUPS = {
    "jobs": "Jobs",
    "tenants": "Tenants",
    "users": "Users and passwords",
    "tokens": "Tokens, and who you are",
    "usage": "Budgets and rates",
    "nodes": "Nodes and GPUs",
    "scheduling": "Scheduling",
    "cluster": "The cluster",
    "audit": "Audit",
}
# Terms in descriptions that rest.md explains. The first occurrence of each becomes a link.
_EXPLAINED = {
    r"(?:a )?job requests?": "job-request",
    r"an? explanation": "an-explanation",
    r"a simulation": "a-simulation",
    r"`effect`": "the-effect-of-an-edit",
    r"an array": "arrays",
}
_NAMED = {"JobData": "[a job](../rest.md#a-job)", "Explanation": "[an explanation](../rest.md#an-explanation)"}
# Any request can have these statuses; rest.md lists them.
_ALWAYS = {"401", "403", "406", "413", "415", "429"}
_EVERYWHERE = {"dry_run", "Idempotency-Key", "If-Match", "limit", "cursor"}


@dataclass(frozen=True)
class Operation:
    """One method of one path; `spec` is its part of the OpenAPI document."""

    method: str
    path: str
    spec: Json

    @property
    def heading(self) -> str:
        return f"{self.method} {self.path}"

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


def overview(*groups: str, page: str = "reference/rest.md") -> str:
    """Return a table of the operations of the groups: route, role, summary."""
    rows = [
        (
            f"[{code(operation.method)} {code(operation.path)}]({page}#{anchor(operation.heading)})",
            operation.spec["x-who"],
            operation.summary,
        )
        for group in groups
        for operation in operations(group)
    ]
    return table(("route", "who", "what"), rows)


def reference() -> str:
    """Return the whole document."""
    schemas = document()["components"]["schemas"]
    parts = [HEAD, _INTRODUCTION]
    for group, title in GROUPS.items():
        parts.append(f"\n## {title}\n\n{overview(group, page='')}")
        parts += [_section(operation, schemas) for operation in operations(group)]
    return "".join(parts)


def _section(operation: Operation, schemas: Json) -> str:
    parts = [f"\n### {operation.heading}\n\n{operation.summary}. Who: {operation.spec['x-who']}.\n"]
    if more := operation.spec.get("description"):
        parts.append(f"\n{_linked(' '.join(more.split()))}\n")
    if parameters := _parameters(operation.spec):
        parts.append("\n" + parameters)
    body = operation.spec.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None and _name(body) != "JobRequest":
        parts.append("\n" + _fields(body, schemas))
    parts.append("\nAnswers: " + "; ".join(_answers(operation.spec, schemas)) + ".\n")
    return "".join(parts)


def _linked(text: str) -> str:
    for pattern, target in _EXPLAINED.items():
        text = re.sub(rf"(?<![\w\[]){pattern}(?!\w)", rf"[\g<0>](../rest.md#{target})", text, count=1)
    return add_links(text, "../")


def _parameters(spec: Json) -> str:
    """Return a table of query parameters. Only name those of all writes and all lists; omit path parameters."""
    parameters = [parameter for parameter in spec.get("parameters", ()) if parameter["in"] != "path"]
    described = [
        parameter
        for parameter in parameters
        if parameter["name"] not in _EVERYWHERE or (parameter["name"] == "dry_run" and _is_own(parameter))
    ]
    rows = [
        (code(parameter["name"]), _type(parameter.get("schema", {})), parameter.get("description", ""))
        for parameter in described
    ]
    names = [code(parameter["name"]) for parameter in parameters if parameter not in described]
    text = table(("parameter", "type", "meaning"), rows) if rows else ""
    if names:
        text += ("\nAlso " if rows else "Takes ") + ", ".join(names) + ".\n"
    return text


def _is_own(parameter: Json) -> bool:
    return not str(parameter.get("description", "")).startswith("true: executed, answered")


def _answers(spec: Json, schemas: Json) -> Iterator[str]:
    for status, answer in sorted(spec["responses"].items()):
        if status < "300":
            yield f"**{status}** {_content(answer, schemas)}".strip()
    errors = [status for status in sorted(spec["responses"]) if status >= "300" and status not in _ALWAYS]
    if errors:
        yield "errors: " + ", ".join(errors)


def _content(answer: Json, schemas: Json) -> str:
    """Return the fields of an object, or of the items of a list."""
    shapes = []
    for media_type, content in answer.get("content", {}).items():
        if media_type != "application/json":
            shapes.append(code(media_type))
        else:
            shapes.append(_shape(content.get("schema", {}), schemas))
    return " or ".join(shapes) or "without a body"


def _shape(schema: Json, schemas: Json) -> str:
    if "anyOf" in schema:
        return " or ".join(_shape(field, schemas) for field in schema["anyOf"])
    if _name(schema) in _NAMED:
        return _NAMED[_name(schema)]
    fields = _resolved(schema, schemas).get("properties", {})
    if "items" in fields and "next_cursor" in fields:
        other_fields = {name: field for name, field in fields.items() if name not in ("items", "next_cursor")}
        items = _shape(fields["items"].get("items", {}), schemas)
        return f"a list, each {items}" + (f", with {_names(other_fields)}" if other_fields else "")
    return _names(fields) or "an object"


def _names(fields: Json) -> str:
    return f"`{' '.join(fields)}`" if fields else ""


def job_request() -> str:
    """Return a table of the fields of a job request."""
    fields = document()["components"]["schemas"]["JobRequest"]["properties"]
    rows = [
        (code(name), _type(field), code(json.dumps(field["default"])), add_links(field["description"]))
        for name, field in fields.items()
    ]
    return table(("field", "type", "default", "meaning"), rows)


def _fields(schema: Json, schemas: Json) -> str:
    """Return a table of the fields of a request body."""
    resolved = _resolved(schema, schemas)
    required = set(resolved.get("required", ()))
    rows = [
        (code(name), _type(field), "required" if name in required else code(json.dumps(field.get("default"))))
        for name, field in resolved.get("properties", {}).items()
    ]
    return table(("field of the body", "type", "default"), rows)


def _resolved(schema: Json, schemas: Json) -> Json:
    resolved: Json = schemas[_name(schema)] if _name(schema) else schema
    return resolved


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
