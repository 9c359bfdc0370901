"""The command `mcp`: connect an AI agent's MCP client, which speaks over standard input and output, to the server."""

import io
import itertools
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import typer

from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    import httpx

    from gpusched.protocol.addresses import Addresses

_VERSION = "io.modelcontextprotocol/protocolVersion"
_PAUSE_SECONDS = 0.5
_PARSE_ERROR, _INTERNAL_ERROR = -32700, -32603


def mcp(ctx: typer.Context) -> None:
    """Serve an AI agent (MCP) over standard input and output, with the rights of your token.

    \b
    gpusched mcp                                  (started by the agent's program)
    gpusched --token-file read-only.token mcp

    It passes each message to /mcp of the server. Give it a token with the scope read alone.
    """
    import httpx

    from gpusched.client.transport import wire

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a line that is not UTF-8 is answered like one that is not JSON
    with connect(ctx) as client:
        config = client.config
    with wire.client(httpx.Client, config, timeout=httpx.Timeout(60.0, connect=5.0)) as http:
        for line in sys.stdin:
            if line.strip() and (answer := _answer(http, client.addresses, line)) is not None:
                print(json.dumps(answer), flush=True)


def _answer(http: "httpx.Client", addresses: "Addresses", line: str) -> Any:
    """Return the server's answer to a message, or a JSON-RPC error; None for a notification."""
    import httpx

    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return _error(None, _PARSE_ERROR, "the line is not JSON")
    id = message.get("id") if isinstance(message, dict) else None
    try:
        response = _post(http, addresses, line.encode(errors="replace"), _headers(message))
    except httpx.HTTPError as error:
        names = " and ".join(addresses.all)
        return None if id is None else _error(id, _INTERNAL_ERROR, f"{names} does not answer: {error}")
    if response.status_code == httpx.codes.ACCEPTED:
        return None
    body = _json(response)
    if isinstance(body, dict) and "jsonrpc" in body:
        return body
    detail = body.get("detail", "") if isinstance(body, dict) else ""
    return None if id is None else _error(id, _INTERNAL_ERROR, detail or f"the server answered {response.status_code}")


def _post(http: "httpx.Client", addresses: "Addresses", content: bytes, headers: dict[str, str]) -> "httpx.Response":
    """Send a message to the first address that can be reached, and wait for a server that restarts. Never send it
    twice: it may be a write."""
    import httpx

    from gpusched.client.transport.retries import RETRY_TIMEOUT_SECONDS, is_away

    ends_at = time.monotonic() + RETRY_TIMEOUT_SECONDS
    for number in itertools.count(1):
        address = addresses.current
        try:
            response = http.post(f"{address}/mcp", content=content, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            addresses.move_on(address)
            if number % len(addresses) == 0:
                if time.monotonic() >= ends_at:
                    raise
                time.sleep(_PAUSE_SECONDS)
        except httpx.HTTPError:
            addresses.move_on(address)  # for the next message
            raise
        else:
            if is_away(response):
                addresses.move_on(address)
            return response
    raise AssertionError("unreachable")


def _headers(message: Any) -> dict[str, str]:
    """Return the headers that repeat parts of a message of revision 2026-07-28; none for older ones."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    version = meta.get(_VERSION) if isinstance(meta, dict) else None
    if isinstance(version, str) and isinstance(params, dict):
        headers["MCP-Protocol-Version"], headers["Mcp-Method"] = version, str(message.get("method"))
        if "name" in params:
            headers["Mcp-Name"] = str(params["name"])
    return {name: value for name, value in headers.items() if value.isascii() and value.isprintable()}


def _json(response: "httpx.Response") -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _error(id: Any, code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}
