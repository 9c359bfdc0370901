"""What requests and answers have beside their bodies, for the OpenAPI document: types of query parameters, headers."""

import re
from typing import Any

Schema = dict[str, Any]
_NUMBERS = frozenset({"attempt", "limit", "offset", "rank", "tail"})
_REQUEST_HEADERS: dict[str, tuple[Schema, str]] = {
    "Idempotency-Key": (
        {"type": "string", "maxLength": 255},
        "repeated with the same key within 24 hours, it is answered as the first time and does nothing again",
    ),
    "If-Match": ({"type": "string"}, "the ETag that was read: refused with 412 if it is another one by now; *: any"),
}
_ANSWER_HEADERS: dict[str, tuple[Schema, str]] = {
    "ETag": ({"type": "string"}, "The version, for If-Match"),
    "Dry-Run": ({"type": "string", "enum": ["true"]}, "Nothing of it was kept: it was a dry run"),
    "Idempotent-Replay": ({"type": "string", "enum": ["true"]}, "The answer of the first request with this key"),
    "Queue-Warning": (
        {"type": "string"},
        "Limits of the queue that are nearly reached, like queued-per-user;used=20001;limit=25000",
    ),
    "RateLimit-Limit": ({"type": "integer"}, "Requests that the caller may send in a minute; left out: any number"),
    "RateLimit-Remaining": ({"type": "integer"}, "Of them are left"),
    "RateLimit-Reset": ({"type": "integer"}, "Seconds until all are there again"),
}
COMPONENTS = {name: {"schema": schema, "description": said} for name, (schema, said) in _ANSWER_HEADERS.items()}
# The operations that submit jobs.
_QUEUING = ("post_jobs", "post_jobs_bulk")
_RATES = [name for name in COMPONENTS if name.startswith("RateLimit-")]


def schema_of(name: str, meaning: str) -> Schema:
    """The type of a query parameter, by its name and by how its meaning begins."""
    if bounds := re.match(r"(\d+) to (\d+)", meaning):
        return {"type": "integer", "minimum": int(bounds[1]), "maximum": int(bounds[2])}
    if meaning.startswith("true: "):
        return {"type": "boolean"}
    return {"type": "integer" if name in _NUMBERS or meaning.startswith("id of ") else "string"}


def add_headers(operations: dict[str, dict[str, Any]], method: str, *, is_secured: bool) -> None:
    """Those that one operation of an address reads and answers with. Versions have the addresses where one is refused
    with 412."""
    operation = operations[method]
    has_dry_run = any(one["name"] == "dry_run" for one in operation.get("parameters", ()))
    has_version = any("412" in one["responses"] for one in operations.values())
    asked = ["Idempotency-Key"] if is_secured and method == "post" else []
    asked += ["If-Match"] if "412" in operation["responses"] else []
    for name in asked:
        schema, said = _REQUEST_HEADERS[name]
        parameter = {"in": "header", "name": name, "schema": schema, "description": said}
        operation.setdefault("parameters", []).append(parameter)
    for code, response in operation["responses"].items():
        told = [*_RATES] if is_secured and (code < "300" or code == "429") else []
        if code < "300":
            told += ["ETag"] if has_version else []
            told += ["Idempotent-Replay"] if "Idempotency-Key" in asked else []
            told += ["Queue-Warning"] if code == "201" and operation.get("operationId") in _QUEUING else []
            told += ["Dry-Run"] if has_dry_run and code != "201" else []
        if told:
            response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in told}
