"""Document endpoints with the typed structs that they read and that the SDK returns."""

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
        "a request repeated with the same key within 24 hours gets the first answer and is not executed again",
    ),
    "If-Match": ({"type": "string"}, "the ETag that was read: 412 if it has changed since; *: any"),
}


_ANSWER_HEADERS: dict[str, tuple[Schema, str]] = {
    "ETag": ({"type": "string"}, "The version, for If-Match"),
    "Dry-Run": ({"type": "string", "enum": ["true"]}, "Nothing was stored: it was a dry run"),
    "Idempotent-Replay": ({"type": "string", "enum": ["true"]}, "The answer of the first request with this key"),
    "Queue-Warning": (
        {"type": "string"},
        "Queue limits that are nearly reached, like queued-per-user;used=20001;limit=25000",
    ),
    "RateLimit-Limit": ({"type": "integer"}, "Requests per minute that the caller may send; absent without a limit"),
    "RateLimit-Remaining": ({"type": "integer"}, "Requests left"),
    "RateLimit-Reset": ({"type": "integer"}, "Seconds until all are available again"),
}


COMPONENTS = {name: {"schema": schema, "description": text} for name, (schema, text) in _ANSWER_HEADERS.items()}


# The operations that submit jobs.
_QUEUING = ("post_jobs", "post_jobs_bulk")


_RATES = [name for name in COMPONENTS if name.startswith("RateLimit-")]


def schema_of(name: str, meaning: str) -> Schema:
    """Return the type of a query parameter, by its name and the first words of its description."""
    if bounds := re.match(r"(\d+) to (\d+)", meaning):
        return {"type": "integer", "minimum": int(bounds[1]), "maximum": int(bounds[2])}
    if meaning.startswith("true: "):
        return {"type": "boolean"}
    return {"type": "integer" if name in _NUMBERS or meaning.startswith("id of ") else "string"}


def add_headers(operations: dict[str, dict[str, Any]], method: str, *, is_secured: bool) -> None:
    """Add the request and answer headers of an operation. An address has versions if one of its operations answers
    412."""
    operation = operations[method]
    has_dry_run = any(parameter["name"] == "dry_run" for parameter in operation.get("parameters", ()))
    has_version = any("412" in other["responses"] for other in operations.values())
    request_headers = ["Idempotency-Key"] if is_secured and method == "post" else []
    request_headers += ["If-Match"] if "412" in operation["responses"] else []
    for name in request_headers:
        schema, text = _REQUEST_HEADERS[name]
        parameter = {"in": "header", "name": name, "schema": schema, "description": text}
        operation.setdefault("parameters", []).append(parameter)
    for code, response in operation["responses"].items():
        answer_headers = [*_RATES] if is_secured and (code < "300" or code == "429") else []
        if code < "300":
            answer_headers += ["ETag"] if has_version else []
            answer_headers += ["Idempotent-Replay"] if "Idempotency-Key" in request_headers else []
            answer_headers += ["Queue-Warning"] if code == "201" and operation.get("operationId") in _QUEUING else []
            answer_headers += ["Dry-Run"] if has_dry_run and code != "201" else []
        if answer_headers:
            response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in answer_headers}


class PlainNames(AutoSchema):
    """Name an operation uniquely by its method and address: get_jobs, get_jobs_job_id."""

    def get_operation_id(self) -> str:
        path = self.path.removeprefix("/api/v1/") if self.path.startswith("/api/v1/") else f"root{self.path}"
        parts = re.findall(r"\w+", path)
        return "_".join([self.method.lower(), *parts])


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "tenants.auth.identity.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "A token: <prefix>.<secret>"}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "tenants.auth.identity.PageSession"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": settings.SESSION_COOKIE_NAME,
            "description": "The page's session",
        }


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
    takes_bytes: bool = False,
) -> Callable[[Any], Any]:
    """Document a method of a view. `who`: the minimum role in the tenant, `admin`, `anybody` with a token, …
    `description` replaces the docstring. `answer` and `body`: msgspec types, or tuples of alternatives; none with 204.
    `parameters`: query parameters and their descriptions. `also`: answers of other successful statuses.
    `has_dry_run`: whether a write has it (gpusched/lib/api/dry_run.py). `takes_bytes`: the body may also be
    bytes of any type."""
    documents = extend_schema(
        summary=f"{summary} ({who})" if who in ("admin", "owner", "no token") else summary,
        description=description,
        tags=[tag],
        operation_id=operation_id,
        request=_request(body, takes_bytes=takes_bytes) if body is not None else None,
        responses={**_answers(status, answer, media_types, also or {}), **_refusals(refusals)},
        parameters=[
            OpenApiParameter(n, schema_of(n, text), description=text) for n, text in (parameters or {}).items()
        ],
        extensions={"x-who": who, **({} if has_dry_run else {_NO_DRY_RUN: True})},
    )

    def mark(method: Any) -> Any:
        # tenants/auth/identity.py uses these to reject bodies and parameters that the method does not read.
        method.takes_body, method.query_parameters = body is not None, tuple(parameters or ())
        method.has_dry_run = has_dry_run
        return documents(method)

    return mark


def _request(body: Any, *, takes_bytes: bool) -> dict[str, Any]:
    types = {"application/json": _schema(body)}
    return types | ({"application/octet-stream": {"type": "string", "format": "binary"}} if takes_bytes else {})


def _refusals(codes: tuple[int, ...]) -> dict[Any, OpenApiResponse]:
    return {code: OpenApiResponse(_refusal(), description="Refused, with the reason") for code in codes}


def _answers(
    status: int, kind: Any, media_types: tuple[str, ...], also: Mapping[int, Any]
) -> dict[Any, OpenApiResponse]:
    others = {code: OpenApiResponse(_schema(other), description="Otherwise") for code, other in also.items()}
    if status == 204:
        return {status: OpenApiResponse(None, description="Done; there is no body"), **others}
    return others | {
        (status, media_type): OpenApiResponse(
            _schema(kind) if media_type == "application/json" else {"type": "string"}, description="Done"
        )
        for media_type in media_types
    }


def _schema(kind: Any) -> Any:
    if isinstance(kind, tuple):
        return {"anyOf": [_schema(member) for member in kind]}
    _structs.add(kind)
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema


def _common_refusals(method: str, operation: Mapping[str, Any]) -> list[str]:
    """Return the codes with which any such request can be refused: unavailable content type (406), bad body (413, 415),
    idempotency key used or in use (409), too many requests (429)."""
    codes = ["406"]
    if _is_secured(operation):
        codes += ["401", "403", "429"]
        if method == "post":
            codes += ["400", "409"]
    if method != "get":
        codes += ["400", "413", "415"]
    return codes


def _is_secured(operation: Mapping[str, Any]) -> bool:
    return any(scheme for scheme in operation.get("security", ()))


def _add_dry_run(operation: dict[str, Any]) -> None:
    """Add the parameter to a write that does not declare it itself."""
    parameters = operation.setdefault("parameters", [])
    if all(parameter["name"] != "dry_run" for parameter in parameters):
        text = "true: executed, answered with the header Dry-Run, and rolled back"
        parameters.append({"in": "query", "name": "dry_run", "schema": schema_of("dry_run", text), "description": text})
        if created := operation["responses"].get("201"):
            operation["responses"].setdefault("200", {**created, "description": "The same, for a dry run"})


def _refusal() -> dict[str, str]:
    return {"$ref": _REF.format(name="Problem")}


def add_components(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Add the structs of the endpoints, and problems as problem+json: drf-spectacular's post-processing hook."""
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    _, components = msgspec.json.schema_components(sorted(_structs, key=str), ref_template=_REF)
    schemas.update(components)
    schemas["Problem"] = _PROBLEM
    for name, text in job_field_docs().items():
        schemas["JobRequest"]["properties"][name]["description"] = text
    result["components"]["headers"] = COMPONENTS
    for operations in result["paths"].values():
        for method, operation in operations.items():
            if not operation.pop(_NO_DRY_RUN, method == "get"):
                _add_dry_run(operation)
            for code in _common_refusals(method, operation):
                refused = {"content": {"": {"schema": _refusal()}}, "description": "Refused, with the reason"}
                operation["responses"].setdefault(code, refused)
            add_headers(operations, method, is_secured=_is_secured(operation))
            for response in operation.get("responses", {}).values():
                content = response.get("content", {})
                if any(kind.get("schema") == _refusal() for kind in content.values()):
                    response["content"] = {"application/problem+json": {"schema": _refusal()}}
    return result
