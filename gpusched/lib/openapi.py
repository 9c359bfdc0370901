"""Documents endpoints with the same typed structs that they read and that the SDK gives to its users."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema

_REF = "#/components/schemas/{name}"
_structs: set[Any] = set()

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
    answer: Any = None,
    status: int = 200,
    body: Any = None,
    parameters: Mapping[str, str] | None = None,
    refusals: tuple[int, ...] = (400, 401, 403, 404),
    operation_id: str | None = None,
    media_types: tuple[str, ...] = ("application/json",),
    also: tuple[int, ...] = (),
) -> Callable[[Any], Any]:
    """Marks one method of a view. `answer` and `body` are msgspec types, or a JSON schema as a dictionary;
    `parameters` are query parameters with their meaning; `also`: statuses besides with the same answer."""
    problems = {
        code: OpenApiResponse({"$ref": _REF.format(name="Problem")}, description="Refused, with the reason")
        for code in refusals
    }
    return extend_schema(
        summary=summary,
        tags=[tag],
        operation_id=operation_id,
        request={"application/json": _schema(body)} if body is not None else None,
        responses={
            **{(status, kind): OpenApiResponse(_answer(answer, kind), description="Done") for kind in media_types},
            **{other: OpenApiResponse(_schema(answer), description="The same, otherwise") for other in also},
            **problems,
        },
        parameters=[OpenApiParameter(name, str, description=text) for name, text in (parameters or {}).items()],
    )


def _answer(kind: Any, media_type: str) -> Any:
    return _schema(kind) if media_type == "application/json" else {"type": "string"}


def _schema(kind: Any) -> Any:
    if kind is None or isinstance(kind, dict):
        return kind or {"type": "object"}
    _structs.add(kind)
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema


def add_components(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """drf-spectacular's post-processing hook: the structs that the endpoints name, and problems as problem+json."""
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    _, components = msgspec.json.schema_components(sorted(_structs, key=str), ref_template=_REF)
    schemas.update(components)
    schemas["Problem"] = _PROBLEM
    for operations in result["paths"].values():
        for operation in operations.values():
            for code, response in operation.get("responses", {}).items():
                content = response.get("content", {})
                is_problem = content.get("application/json", {}).get("schema", {}).get("$ref") == _REF.format(
                    name="Problem"
                )
                if code >= "400" and is_problem:
                    content["application/problem+json"] = content.pop("application/json")
    return result
