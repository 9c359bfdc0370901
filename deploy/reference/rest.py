"""The reference of REST, from the OpenAPI document: each operation with who may, parameters, fields and statuses."""

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

Each operation with who may ask it, what it takes, and what it answers. [rest.md](../rest.md) says what all have in
common (tokens, paging, errors, idempotency, dry runs), and what the words mean. For programs there is
[openapi.json](../openapi.json).

*Who* is the least role in the tenant; an admin may do all. `anybody` needs a token or a login, `no token` not even
that. Any request may also be refused with 401, 403, 406, 413, 415 or 429.
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
# What descriptions name and rest.md explains. Each is linked where it is first named.
_EXPLAINED = {
    r"(?:a )?job requests?": "job-request",
    r"an? explanation": "an-explanation",
    r"a simulation": "a-simulation",
    r"`effect`": "the-effect-of-an-edit",
    r"an array": "arrays",
}
_NAMED = {"JobData": "[a job](../rest.md#a-job)", "Explanation": "[an explanation](../rest.md#an-explanation)"}
# These any request may be answered; rest.md has them.
_ALWAYS = {"401", "403", "406", "413", "415", "429"}
_EVERYWHERE = {"dry_run", "Idempotency-Key", "If-Match", "limit", "cursor"}


@dataclass(frozen=True)
class Operation:
    """One method of one address."""

    method: str
    path: str
    told: Json

    @property
    def heading(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def summary(self) -> str:
        return re.sub(rf" \({re.escape(self.told['x-who'])}\)$", "", self.told["summary"])


@cache
def document() -> Json:
    found: Json = json.loads(OPENAPI.read_text())
    return found


def operations(group: str) -> list[Operation]:
    return [
        Operation(method.upper(), path, told)
        for path, methods in document()["paths"].items()
        for method, told in methods.items()
        if told["tags"] == [group]
    ]


def overview(*groups: str, page: str = "reference/rest.md") -> str:
    """A row for each operation of the groups: what it is, who may, what it does."""
    rows = [
        (f"[{code(one.method)} {code(one.path)}]({page}#{anchor(one.heading)})", one.told["x-who"], one.summary)
        for group in groups
        for one in operations(group)
    ]
    return table(("route", "who", "what"), rows)


def reference() -> str:
    """The whole document."""
    schemas = document()["components"]["schemas"]
    parts = [HEAD, _INTRODUCTION]
    for group, title in GROUPS.items():
        parts.append(f"\n## {title}\n\n{overview(group, page='')}")
        parts += [_section(one, schemas) for one in operations(group)]
    return "".join(parts)


def _section(one: Operation, schemas: Json) -> str:
    parts = [f"\n### {one.heading}\n\n{one.summary}. Who: {one.told['x-who']}.\n"]
    if more := one.told.get("description"):
        parts.append(f"\n{_linked(' '.join(more.split()))}\n")
    if parameters := _parameters(one.told):
        parts.append("\n" + parameters)
    body = one.told.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None and _name(body) != "JobRequest":
        parts.append("\n" + _fields(body, schemas))
    parts.append("\nAnswers: " + "; ".join(_answers(one.told, schemas)) + ".\n")
    return "".join(parts)


def _linked(text: str) -> str:
    for words, target in _EXPLAINED.items():
        text = re.sub(rf"(?<![\w\[]){words}(?!\w)", rf"[\g<0>](../rest.md#{target})", text, count=1)
    return add_links(text, "../")


def _parameters(told: Json) -> str:
    """Those of the address are in it already; what all writes and all lists take is only named."""
    given = [one for one in told.get("parameters", ()) if one["in"] != "path"]
    own = [one for one in given if one["name"] not in _EVERYWHERE or (one["name"] == "dry_run" and _is_own(one))]
    rows = [(code(one["name"]), _type(one.get("schema", {})), one.get("description", "")) for one in own]
    names = [code(one["name"]) for one in given if one not in own]
    text = table(("parameter", "type", "meaning"), rows) if rows else ""
    if names:
        text += ("\nAlso " if rows else "Takes ") + ", ".join(names) + ".\n"
    return text


def _is_own(parameter: Json) -> bool:
    return not str(parameter.get("description", "")).startswith("true: answered as it would be")


def _answers(told: Json, schemas: Json) -> Iterator[str]:
    for status, answer in sorted(told["responses"].items()):
        if status < "300":
            yield f"**{status}** {_content(answer, schemas)}".strip()
    refused = [status for status in sorted(told["responses"]) if status >= "300" and status not in _ALWAYS]
    if refused:
        yield "refused with " + ", ".join(refused)


def _content(answer: Json, schemas: Json) -> str:
    """What an answer holds: the fields of an object, of a list those of its items."""
    told = []
    for media_type, content in answer.get("content", {}).items():
        if media_type != "application/json":
            told.append(code(media_type))
        else:
            told.append(_shape(content.get("schema", {}), schemas))
    return " or ".join(told) or "without a body"


def _shape(schema: Json, schemas: Json) -> str:
    if "anyOf" in schema:
        return " or ".join(_shape(one, schemas) for one in schema["anyOf"])
    if _name(schema) in _NAMED:
        return _NAMED[_name(schema)]
    fields = _resolved(schema, schemas).get("properties", {})
    if "items" in fields and "next_cursor" in fields:
        others = {name: one for name, one in fields.items() if name not in ("items", "next_cursor")}
        items = _shape(fields["items"].get("items", {}), schemas)
        return f"a list, each {items}" + (f", with {_names(others)}" if others else "")
    return _names(fields) or "an object"


def _names(fields: Json) -> str:
    return f"`{' '.join(fields)}`" if fields else ""


def job_request() -> str:
    """A row for each field of a job request."""
    fields = document()["components"]["schemas"]["JobRequest"]["properties"]
    rows = [
        (code(name), _type(one), code(json.dumps(one["default"])), add_links(one["description"]))
        for name, one in fields.items()
    ]
    return table(("field", "type", "default", "meaning"), rows)


def _fields(schema: Json, schemas: Json) -> str:
    """Of what is sent."""
    found = _resolved(schema, schemas)
    required = set(found.get("required", ()))
    rows = [
        (code(name), _type(one), "needed" if name in required else code(json.dumps(one.get("default"))))
        for name, one in found.get("properties", {}).items()
    ]
    return table(("field of the body", "type", "default"), rows)


def _resolved(schema: Json, schemas: Json) -> Json:
    found: Json = schemas[_name(schema)] if _name(schema) else schema
    return found


def _name(schema: Json) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _type(schema: Json) -> str:
    """In words: integer, string or null, list of string, one of a, b."""
    for many in ("anyOf", "oneOf"):
        if many in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[many]))
    if name := _name(schema):
        words = document()["components"]["schemas"][name].get("enum")
        return ", ".join(code(word) for word in words) if words else name
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if "minimum" in schema and "maximum" in schema:
        return f"{schema['minimum']} to {schema['maximum']}"
    return str(schema.get("type", "any"))
