"""MCP messages to the server under test, as clients send them."""

import json
from typing import Any

from django.test import Client

MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


def post(token: str, body: Any, **headers: str) -> Any:
    """Return Django's response to a POST; `headers` with _ for -."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if token:
        sent["Authorization"] = f"Bearer {token}"
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Client().generic("POST", "/mcp", raw, content_type="application/json", headers=sent)


def request(token: str, method: str, params: dict[str, Any] | None = None, **headers: str) -> Any:
    """Return the JSON of the answer to a request of revision 2026-07-28."""
    params = {**(params or {}), "_meta": META}
    routing = {"MCP_Protocol_Version": MODERN, "Mcp_Method": method}
    if method == "tools/call":
        routing["Mcp_Name"] = params["name"]
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return post(token, body, **{**routing, **headers}).json()


def tool_names(token: str) -> list[str]:
    return [tool["name"] for tool in request(token, "tools/list")["result"]["tools"]]


def call(token: str, tool: str, **arguments: Any) -> tuple[Any, bool]:
    """Return the value that a tool returned, and whether it is an error."""
    result = request(token, "tools/call", {"name": tool, "arguments": arguments})["result"]
    [content] = result["content"]
    value = json.loads(content["text"])
    return (value if result["isError"] else value["data"]), result["isError"]
