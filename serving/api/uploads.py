"""Inputs of tasks that are the body of their request, and results that are files: bytes of any type, up to
GPUSCHED_TASK_MAX_MB."""

import math
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from asgiref.sync import sync_to_async
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from gpusched.lib.api.concurrency_limit import ConcurrencyLimiter
from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.limits import MAX_DOWNLOADS, MAX_DOWNLOADS_EACH
from gpusched.lib.web.uploads import upload_body
from gpusched.protocol.batches import JSON
from gpusched.protocol.job_request import FieldError
from serving import payloads
from serving.requests.submit import NewRequest, require_units

_MAX_TYPE = 100
_FORMS = frozenset({"application/x-www-form-urlencoded", "multipart/form-data"})
# Each holds up to GPUSCHED_TASK_MAX_MB in the memory of the web process.
uploads = ConcurrencyLimiter(
    8, 4, code="too_many_uploads", subject="large inputs are being received", next_step="try again in a moment"
)
downloads = ConcurrencyLimiter(
    MAX_DOWNLOADS, MAX_DOWNLOADS_EACH, code="too_many_downloads", subject="results are being downloaded",
    next_step="try again in a moment",
)  # fmt: skip


def uploaded_request(request: Request, query: Mapping[str, str]) -> NewRequest:
    """Return the request whose input is the body: as JSON, or as bytes for any other media type.

    400 for wrong units, an empty body or malformed JSON, 413 for a body that is too large, 415 for a form."""
    units, kind = _units(query), _media_type(request)
    raw = upload_body(request._request)
    if not raw:
        raise invalid([FieldError("body", "required", "the body is the input, and it is empty")])
    if len(raw) > payloads.max_bytes():
        detail = f"the input has more than {payloads.max_bytes() >> 20} MiB (GPUSCHED_TASK_MAX_MB)"
        raise Problem(413, "too_large", detail, next_step="send a smaller input, or ask an admin for a higher limit")
    if kind == JSON:
        _require_json(raw)
    return NewRequest(raw, kind, units)


def streamed_result(
    name: str, size: int, caller: str, headers: Mapping[str, str], content_type: str | None
) -> HttpResponseBase:
    """Return the answer with the content of a file."""
    options: dict[str, Any] = {"headers": {**headers, "Content-Length": str(size)}, "content_type": content_type}
    return downloads.streamed(caller, _pieces(name), **options)


async def _pieces(name: str) -> AsyncIterator[bytes]:
    pieces = payloads.pieces(name)
    read = sync_to_async(lambda: next(pieces, b""), thread_sensitive=False)
    while piece := await read():
        yield piece


def _units(query: Mapping[str, str]) -> float:
    try:
        units = float(query.get("units", "1"))
    except ValueError:
        units = math.nan
    require_units(units)
    return units


def _media_type(request: Request) -> str:
    """Return the media type without its parameters. Forms are refused: it is what clients send if no type is set."""
    kind = str(request._request.content_type or "").lower()
    if kind in _FORMS or "/" not in kind or len(kind) > _MAX_TYPE or not kind.isascii() or not kind.isprintable():
        detail = f"the Content-Type of an input must be that of its data, not '{kind[:_MAX_TYPE]}'"
        step = "send Content-Type: application/octet-stream, image/png, application/json …"
        raise Problem(415, "unsupported_media_type", detail, next_step=step)
    return kind


def _require_json(raw: bytes) -> None:
    try:
        raw.decode()
        msgspec.json.decode(raw, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        step = "send JSON, or another Content-Type"
        raise Problem(400, "malformed_json", f"the body is not valid JSON: {error}", next_step=step) from error
