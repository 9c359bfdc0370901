"""Shared code of endpoints: fast JSON, strict reading of bodies and query strings, cursors."""

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
from django.conf import settings
from django.http import QueryDict
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from gpusched.lib.api.problems import Problem, invalid, too_large
from gpusched.lib.times import parsed
from gpusched.protocol import choices
from gpusched.protocol.job_request import FieldError

S = TypeVar("S", bound=msgspec.Struct)
Problems = Callable[[S], Iterable[FieldError]]
MAX_FIELD_ERRORS = 50


def no_problems(_: object) -> Iterable[FieldError]:
    return ()


T = TypeVar("T")
DEFAULT_LIMIT, MAX_LIMIT = 100, 1000


class JsonRenderer(BaseRenderer):
    media_type = "application/json"
    format = "json"
    charset = None

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:
        return b"" if data is None else msgspec.json.encode(data)


class Negotiation(DefaultContentNegotiation):
    """Negotiation by `Accept`, or by `?format=` if the endpoint has that parameter. An unknown format is refused like
    any other parameter."""

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """Parse no header if there is nothing to choose: most endpoints have one renderer, and many callers accept
        anything."""
        choices = list(renderers)
        if len(choices) == 1 and request.META.get("HTTP_ACCEPT", "*/*") == "*/*":
            return choices[0], choices[0].media_type
        selected: tuple[BaseRenderer, str] = super().select_renderer(request, choices, format_suffix)
        return selected

    def filter_renderers(self, renderers: Iterable[BaseRenderer], format: str) -> list[BaseRenderer]:
        return [renderer for renderer in renderers if renderer.format == format] or list(renderers)


class JsonParser(BaseParser):
    """A parser that keeps the raw bytes. Each endpoint decodes them into its own typed struct (`read_body`)."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        maximum: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        raw = stream.read(maximum + 1)
        if len(raw) > maximum:
            raise too_large()
        return raw


def read_body(request: Request, kind: type[S], problems: Problems[S] = no_problems) -> S:
    """Return the body as a struct. Malformed JSON, wrong types and unknown fields are 400s that name every such field,
    together with the errors from `problems`."""
    return decode(raw_body(request) or b"{}", kind, problems)


def raw_body(request: Request) -> bytes:
    """Return the bytes that JsonParser kept. DRF has an empty dictionary instead if there is no body."""
    raw: object = request.data
    return raw.strip() if isinstance(raw, bytes) else b""


def decode(raw: bytes, kind: type[S], problems: Problems[S] = no_problems) -> S:
    """Return the struct. `problems` finds further errors, and is called only if there are type errors."""
    try:
        raw.decode("utf-8")
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise invalid(_field_errors(raw, kind, str(error), problems), at_most=MAX_FIELD_ERRORS) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(
            400, "malformed_json", f"the body is not valid JSON: {_fault(raw, error)}", next_step="send a JSON object"
        ) from error


def _fault(raw: bytes, error: Exception) -> str:
    """Describe the error. For half a surrogate pair near the end, msgspec reports truncated input instead."""
    if "truncated" in str(error) and rb"\u" in raw:
        try:
            json.loads(raw)
        except (ValueError, RecursionError):
            return str(error)
        return "a string has half of a surrogate pair (\\ud800 to \\udfff)"
    return str(error)


def _field_errors(raw: bytes, kind: type[S], text: str, problems: Problems[S]) -> list[FieldError]:
    """Return all field errors. msgspec stops at the first one, so convert the body again without its field, and so on.
    Decode it once: a body may have megabytes."""
    errors = [_field_error(kind, text)]
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):  # in a part that msgspec skipped for the type
        return errors
    removed: set[str] = set()
    while isinstance(body, dict) and len(errors) < MAX_FIELD_ERRORS:
        field = _top_field(text) or errors[-1].field
        if field not in body:
            break
        removed.add(field)
        del body[field]
        try:
            value = msgspec.convert(body, kind, builtin_types=(), str_keys=True)
        except msgspec.ValidationError as error:
            text = str(error)
            errors.append(_field_error(kind, text))
        else:
            return errors + [
                problem for problem in problems(value) if re.split(r"[.\[]", problem.field)[0] not in removed
            ]
    return errors


def _top_field(text: str) -> str:
    """Return the field of the body in which msgspec found an error; empty for the body itself."""
    return re.split(r"[.\[`]", text.partition(" - at `$")[2].lstrip("."))[0]


def _field_error(kind: type[S], text: str) -> FieldError:
    """Convert a message of msgspec, like "Expected `array`, got `str` - at `$.command`", to field and sentence."""
    message, _, path = choices.named(kind, text).partition(" - at `$")
    field = path.rstrip("`").lstrip(".").partition("[")[0]
    if "contains unknown field" in message:
        field = message.split("`")[1]
        return FieldError(field, "unknown_field", f"there is no field '{field}'; leave it out or check its spelling")
    if "missing required field" in message:
        field = message.split("`")[1]
        return FieldError(field, "required", "is required")
    if field in ("command", "args") and "got `str`" in message:
        return FieldError(field, "wrong_type", 'must be an array like ["python", "train.py"], not a string')
    if field == "secrets":  # a former format, or the values themselves
        message = 'must be an array of names of the tenant\'s secrets, like ["wandb"]'
        return FieldError(field, "wrong_type", message)
    return FieldError(field, "wrong_type", message[0].lower() + message[1:])


def check_query(request: Request, allowed: Iterable[str]) -> None:
    """Reject unknown query parameters by name, so that a misspelt filter never selects everything, and repeated ones,
    whose value is ambiguous."""
    query = request.GET
    names = set(allowed)
    if unknown := sorted(set(query) - names):
        message = f"there is no parameter '{unknown[0]}'; use {', '.join(sorted(names)) or 'none'}"
        raise invalid([FieldError(unknown[0], "unknown_parameter", message)])
    require_once(query)
    for name, value in query.items():
        if "\x00" in str(value):
            raise invalid([FieldError(name, "invalid_character", "must not contain a NUL character")])


def require_once(query: QueryDict) -> None:
    """Raise a 400 that names the first repeated parameter."""
    for name, values in query.lists():
        if len(values) > 1:
            raise invalid([FieldError(name, "repeated", f"is set {len(values)} times; set it once")])


def read_query(request: Request) -> dict[str, str]:
    """Return the query parameters of a documented method, without empty ones. The view's permission has checked
    them."""
    return {name: str(value) for name, value in request.GET.items() if value != ""}


def whole_number(query: Mapping[str, str], name: str, default: int, lowest: int, highest: int) -> int:
    """Return a whole number from the query, within its bounds (both included)."""
    text = query.get(name)
    if text is None:
        return default
    if not re.fullmatch("-?[0-9]{1,19}", text) or not lowest <= int(text) <= highest:
        raise invalid([FieldError(name, "out_of_range", f"must be a whole number from {lowest} to {highest}")])
    return int(text)


def is_true(query: Mapping[str, str], name: str) -> bool:
    """Return whether a parameter of the query is `true`; it may be `false` or absent."""
    if query.get(name, "true") not in ("true", "false"):
        raise invalid([FieldError(name, "invalid_value", "must be true or false")])
    return query.get(name) == "true"


def parse_moment(name: str, text: str, *, spare: timedelta = timedelta()) -> datetime:
    """Parse a time of a query or a body, in UTC unless it names an offset, at least `spare` from both ends of time."""
    try:
        at = parsed(text)
        _ = (at - spare, at + spare)
        return at
    except (ValueError, OverflowError) as error:
        message = "must be a time like 2030-01-31T08:00:00Z, or a day like 2030-01-31"
        raise invalid([FieldError(name, "wrong_type", message)]) from error


def read_moment(filters: Mapping[str, str], name: str, *, spare: timedelta = timedelta()) -> datetime | None:
    """Return the time that a query names, or None if it names none; as `parse_moment`."""
    return parse_moment(name, filters[name], spare=spare) if name in filters else None


def page_limit(query: Mapping[str, str]) -> int:
    return whole_number(query, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)


PAGED = {"limit": "1 to 1000, default 100", "cursor": "next_cursor of the previous page"}


def cursor_number(query: Mapping[str, str], of: str) -> int | None:
    """Return where the previous page ended, in a list `of` that is ordered by a number; None for the first page."""
    return decode_cursor(query["cursor"], of, tuple[int])[0] if "cursor" in query else None


def paged(items: Sequence[Mapping[str, Any]], limit: int, of: str, key: str = "id") -> dict[str, Any]:
    """Return a page of such a list. `key` names the number in each item."""
    return {"items": items, "next_cursor": encode_cursor(of, items[-1][key]) if len(items) == limit else None}


def encode_cursor(of: str, *parts: int | float | str) -> str:
    """Encode a cursor. `of` names the list, so that a cursor of another list is rejected."""
    return base64.urlsafe_b64encode(msgspec.json.encode((of, *parts))).decode().rstrip("=")


def decode_cursor(text: str, of: str, kind: type[T]) -> T:
    """Return the parts of a cursor of that list as the tuple type `kind`. 400 for anything else."""
    try:
        cursor_of, *values = msgspec.json.decode(
            base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=list[Any]
        )
        parts = msgspec.convert(values, kind)
        if cursor_of == of and all(_is_bounded(part) for part in parts):  # type: ignore[attr-defined]
            return parts
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError, RecursionError):
        pass
    message = "is not a cursor of this list; start without one"
    raise invalid([FieldError("cursor", "invalid", message)])


def _is_bounded(part: int | float | str) -> bool:
    return "\x00" not in part if isinstance(part, str) else abs(part) < 2**63


def if_match(request: Request, of: str, version: int | None = None) -> int | None:
    """Return the version that an edit expects, from the header, else from the body; None: any, as `*` (RFC 9110,
    13.1.1). 400 if the header is not an ETag of `of`."""
    # A proxy that compresses answers makes their ETags weak (nginx does). The version is the same in any encoding.
    match = request.headers.get("If-Match", "").strip().removeprefix("W/").strip('"')
    if match in ("", "*"):
        return version
    if not (match.isascii() and match.isdigit()) or len(match) > 9:
        raise invalid([FieldError("If-Match", "invalid", f"is not an ETag of {of}")])
    return int(match)
