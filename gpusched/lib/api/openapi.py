"""Documents endpoints with the same typed structs that they read and that the SDK gives to its users."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema

from gpusched.protocol.field_docs import job_field_docs

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


class PlainNames(AutoSchema):
    """Names an operation by its method and address, so that no two have one name: get_jobs, get_jobs_job_id."""

    def get_operation_id(self) -> str:
        path = self.path.removeprefix("/api/v1/") if self.path.startswith("/api/v1/") else f"root{self.path}"
        words = re.findall(r"\w+", path)
        return "_".join([self.method.lower(), *words])


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "tenants.auth.identity.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "A token: <prefix>.<secret>"}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "tenants.auth.identity.PageSession"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME, "description": "Of the page"}


_REF = "#/components/schemas/{name}"
_structs: set[Any] = set()
_NO_DRY_RUN = "x-no-dry-run"  # only until the schema is complete

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "RFC 9457 problem; `error` repeats the detail for simple scripts.",
    "required": ["type", "title", "status", "detail", "code", "request_id", "errors"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "next_step": {"type": "string"},
        "request_id": {"type": "string"},
        "error": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in ("field", "code", "message")},
            },
        },
    },
}


def documented(
    summary: str,
    *,
    tag: str,
    who: str,
    description: str | None = None,
    answer: Any = None,
    status: int = 200,
    body: Any = None,
    parameters: Mapping[str, str] | None = None,
    refusals: tuple[int, ...] = (400, 401, 403, 404),
    operation_id: str | None = None,
    media_types: tuple[str, ...] = ("application/json",),
    also: Mapping[int, Any] | None = None,
    has_dry_run: bool = True,
) -> Callable[[Any], Any]:
    """Marks one method of a view. `who` may ask it: the least role in the tenant, `admin`, `anybody` with a token, …
    `description`: the docstring, unless given. `answer` and `body` are msgspec types; a tuple: one of them; status 204
    has none.
    `parameters`: query parameters with their meaning; `also`: what other good statuses answer. `has_dry_run`: of a
    write (gpusched/lib/api/dry_run.py)."""
    problems = {code: OpenApiResponse(_refusal(), description="Refused, with the reason") for code in refusals}
    documents = extend_schema(
        summary=f"{summary} ({who})" if who in ("admin", "owner", "no token") else summary,
        description=description,
        tags=[tag],
        operation_id=operation_id,
        request={"application/json": _schema(body)} if body is not None else None,
        responses={
            **_answers(status, answer, media_types),
            **{other: OpenApiResponse(_schema(kind), description="Otherwise") for other, kind in (also or {}).items()},
            **problems,
        },
        parameters=[
            OpenApiParameter(name, schema_of(name, text), description=text) for name, text in (parameters or {}).items()
        ],
        extensions={"x-who": who, **({} if has_dry_run else {_NO_DRY_RUN: True})},
    )

    def mark(method: Any) -> Any:
        # By these tenants/auth/identity.py refuses bodies and parameters that nobody reads.
        method.takes_body, method.query_parameters = body is not None, tuple(parameters or ())
        method.has_dry_run = has_dry_run
        return documents(method)

    return mark


def _answers(status: int, kind: Any, media_types: tuple[str, ...]) -> dict[Any, OpenApiResponse]:
    if status == 204:
        return {status: OpenApiResponse(None, description="Done; there is nothing to say")}
    return {
        (status, media_type): OpenApiResponse(
            _schema(kind) if media_type == "application/json" else {"type": "string"}, description="Done"
        )
        for media_type in media_types
    }


def _schema(kind: Any) -> Any:
    if isinstance(kind, tuple):
        return {"anyOf": [_schema(one) for one in kind]}
    _structs.add(kind)
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema


def _always(method: str, operation: Mapping[str, Any]) -> list[str]:
    """What any such request may be answered, whatever its view does: other content than there is (406), a bad body
    (413, 415), a used idempotency key or one that is being worked on (409), too many requests (429)."""
    found = ["406"]
    if _is_secured(operation):
        found += ["401", "403", "429"]
        if method == "post":
            found += ["400", "409"]
    if method != "get":
        found += ["400", "413", "415"]
    return found


def _is_secured(operation: Mapping[str, Any]) -> bool:
    return any(scheme for scheme in operation.get("security", ()))


def _add_dry_run(operation: dict[str, Any]) -> None:
    """Of a write that says nothing of its own of it."""
    parameters = operation.setdefault("parameters", [])
    if all(parameter["name"] != "dry_run" for parameter in parameters):
        said = "true: answered as it would be, with the header Dry-Run, and nothing is kept"
        parameters.append({"in": "query", "name": "dry_run", "schema": schema_of("dry_run", said), "description": said})
        if made := operation["responses"].get("201"):
            operation["responses"].setdefault("200", {**made, "description": "The same, of a dry run"})


def _refusal() -> dict[str, str]:
    return {"$ref": _REF.format(name="Problem")}


def add_components(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """drf-spectacular's post-processing hook: the structs that the endpoints name, and problems as problem+json."""
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    _, components = msgspec.json.schema_components(sorted(_structs, key=str), ref_template=_REF)
    schemas.update(components)
    schemas["Problem"] = _PROBLEM
    for name, told in job_field_docs().items():
        schemas["JobRequest"]["properties"][name]["description"] = told
    result["components"]["headers"] = COMPONENTS
    for operations in result["paths"].values():
        for method, operation in operations.items():
            if not operation.pop(_NO_DRY_RUN, method == "get"):
                _add_dry_run(operation)
            for code in _always(method, operation):
                refused = {"content": {"": {"schema": _refusal()}}, "description": "Refused, with the reason"}
                operation["responses"].setdefault(code, refused)
            add_headers(operations, method, is_secured=_is_secured(operation))
            for response in operation.get("responses", {}).values():
                content = response.get("content", {})
                if any(kind.get("schema") == _refusal() for kind in content.values()):
                    response["content"] = {"application/problem+json": {"schema": _refusal()}}
    return result
