"""Turn what a replica answers into outcomes. A replica runs a user's program: nothing that it sends is trusted."""

import re

import msgspec

from gpusched.protocol.batches import BYTES, JSON, Body
from serving.requests.claims import Claimed
from serving.requests.results import Outcome

MAX_MESSAGE = 2000
_CODE = re.compile(r"[a-z][a-z0-9_]{0,29}")
_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(; ?[\w-]+=[\w.+-]+)*", re.ASCII)
_MAX_TYPE = 100


def outcome(request: Claimed, body: Body) -> Outcome:
    """Return the outcome of a request: its result, or the error that the replica reports. A result of type JSON that is
    not JSON is an error, since answers of the API embed it."""
    if body.error:
        return _failed(request, code(body.error), body.data.decode(errors="replace"))
    if body.type == JSON and not _is_json(body.data):
        return _failed(request, "wrong_result", "the result is not JSON")
    is_type = len(body.type) <= _MAX_TYPE and _TYPE.fullmatch(body.type)
    return Outcome(request.id, request.attempt, body.data, body.type if is_type else BYTES)


def code(value: object) -> str:
    """Return the code of an error; `error` for what is not a code."""
    return value if isinstance(value, str) and _CODE.fullmatch(value) else "error"


def message(value: object) -> str:
    """Return a text that PostgreSQL can store."""
    return str(value)[:MAX_MESSAGE].replace("\x00", "").encode(errors="replace").decode()


def _failed(request: Claimed, error_code: str, text: str) -> Outcome:
    return Outcome(request.id, request.attempt, error_code=error_code, error=message(text))


def _is_json(data: bytes) -> bool:
    try:
        data.decode()
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
