"""The envelope of MCP messages over HTTP: JSON-RPC, protocol revisions, and the checks that a revision requires. Pure.

Revision 2026-07-28 has neither handshake nor session: each request carries its revision. Older clients send
`initialize` first; the server remembers nothing of it."""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

MODERN = "2026-07-28"
# Newest first: the server offers the first to a client whose revision it does not know.
HANDSHAKE = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
_META = "io.modelcontextprotocol/"
SERVER_INFO = f"{_META}serverInfo"
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
HEADER_MISMATCH, UNSUPPORTED_VERSION = -32020, -32022
_HTTP_STATUS = {METHOD_NOT_FOUND: 404, INTERNAL_ERROR: 200}
_ENCODED = re.compile(r"=\?base64\?(.*)\?=")


class Rejected(Exception):
    """A message that is refused with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None, id: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data, self.id = code, message, data, id

    def body(self) -> dict[str, Any]:
        error = {"code": self.code, "message": self.message, **({} if self.data is None else {"data": self.data})}
        return {"jsonrpc": "2.0", "id": self.id, "error": error}

    def status(self, is_modern: bool) -> int:
        """Return the HTTP status. Older revisions report an unknown method with 200."""
        if self.code == METHOD_NOT_FOUND and not is_modern:
            return 200
        return _HTTP_STATUS.get(self.code, 400)


@dataclass(frozen=True)
class Message:
    """A request; `id` None: a notification, which has no answer."""

    id: int | str | None
    method: str
    params: dict[str, Any]
    is_modern: bool


def read(raw: bytes, headers: Mapping[str, str]) -> Message:
    """Return the message of a POST. `headers` by any case. Raise Rejected."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Rejected(PARSE_ERROR, "the body is not JSON") from None
    if not isinstance(body, dict) or body.get("jsonrpc") != "2.0" or not isinstance(body.get("method"), str):
        raise Rejected(INVALID_REQUEST, "send one JSON-RPC 2.0 request or notification, not a batch")
    id, params = body.get("id"), body.get("params", {})
    if "id" in body and (isinstance(id, bool) or not isinstance(id, int | str)):
        raise Rejected(INVALID_REQUEST, "`id` must be a string or a whole number")
    if not isinstance(params, dict):
        raise Rejected(INVALID_PARAMS, "`params` must be an object", id=id)
    version = headers.get("MCP-Protocol-Version")
    meta = params.get("_meta")
    meta = meta if isinstance(meta, dict) else {}
    is_modern = version == MODERN or f"{_META}protocolVersion" in meta
    message = Message(id, body["method"], params, is_modern)
    if version is not None and version not in (MODERN, *HANDSHAKE):
        raise _unsupported(version, id)
    if is_modern and id is not None:
        _require_modern(message, meta, headers)
    return message


def _require_modern(message: Message, meta: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    """Require what revision 2026-07-28 requires of a request. The headers repeat parts of the body for proxies, so a
    difference could be a way around them."""
    for name in ("protocolVersion", "clientCapabilities"):
        if _META + name not in meta:
            raise Rejected(INVALID_PARAMS, f"params._meta lacks '{_META}{name}'", id=message.id)
    requested = meta[f"{_META}protocolVersion"]
    if headers.get("MCP-Protocol-Version") != requested:
        raise Rejected(HEADER_MISMATCH, "the header MCP-Protocol-Version differs from params._meta", id=message.id)
    if requested != MODERN:
        raise _unsupported(requested, message.id)
    if headers.get("Mcp-Method") != message.method:
        raise Rejected(HEADER_MISMATCH, "the header Mcp-Method differs from `method`", id=message.id)
    tool = message.params.get("name")
    if message.method == "tools/call" and tool is not None and _header_text(headers.get("Mcp-Name")) != tool:
        raise Rejected(HEADER_MISMATCH, "the header Mcp-Name differs from params.name", id=message.id)


def _header_text(value: str | None) -> str | None:
    """Return the text of a header, which clients encode if it is not plain ASCII."""
    if value is None or not (match := _ENCODED.fullmatch(value)):
        return value
    try:
        return base64.b64decode(match[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _unsupported(requested: object, id: Any) -> Rejected:
    data = {"supported": [MODERN], "requested": requested}
    return Rejected(UNSUPPORTED_VERSION, "Unsupported protocol version", data, id)
