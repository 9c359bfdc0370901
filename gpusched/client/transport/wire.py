"""What both clients share at the border to httpx: a Call to a request, a response to a Reply or a Lost."""

import inspect
import ssl
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from gpusched import __version__
from gpusched.client.config import Config
from gpusched.client.transport.call import Call, Reply
from gpusched.client.transport.exchange import NoResponse

# A submit waits for a durable commit; reads of a busy server can take a while. Connecting is quick or hopeless.
_READ_SECONDS, _CONNECT_SECONDS = 30.0, 5.0
TIMEOUT = httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)


def options(config: Config) -> dict[str, Any]:
    """The arguments of httpx's clients."""
    headers = {"User-Agent": f"gpusched/{__version__}", "Accept": "application/json"}
    if config.token:
        headers["Authorization"] = f"Bearer {config.token}"
    # Reading all certificate authorities takes longer than a request, and plain http needs none: it trusts nobody.
    verify = True if config.url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return {"base_url": config.url, "headers": headers, "timeout": TIMEOUT, "verify": verify}


def request(call: Call[Any]) -> dict[str, Any]:
    """The arguments of httpx's `request`."""
    arguments: dict[str, Any] = {"method": call.method, "url": call.path, "headers": dict(call.headers)}
    if call.query:
        arguments["params"] = dict(call.query)
    if call.most_seconds is not None:
        most = min(call.most_seconds, _READ_SECONDS)
        arguments["timeout"] = httpx.Timeout(most, connect=min(most, _CONNECT_SECONDS))
    if call.body is not None:
        arguments["content"] = msgspec.json.encode(call.body)
        arguments["headers"]["Content-Type"] = "application/json"
    return arguments


def reply(response: httpx.Response) -> Reply:
    return Reply(response.status_code, {k.lower(): v for k, v in response.headers.items()}, response.content)


def lost(error: httpx.HTTPError, url: str) -> NoResponse:
    """What is known about a request that got no answer."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return NoResponse(f"cannot reach {url} ({_why(error)})", was_sent=False)
    if isinstance(error, httpx.TimeoutException):
        return NoResponse(f"{url} did not answer in time", was_sent=True)
    return NoResponse(f"the connection to {url} broke ({_why(error)})", was_sent=True)


def _why(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__


def describe(method: Callable[..., Any], build: Callable[..., Any]) -> None:
    """Gives a client's method the name, documentation and parameters of the call that it sends."""
    own = inspect.signature(build)
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__name__, method.__doc__ = build.__name__, build.__doc__
    method.__dict__["__signature__"] = inspect.Signature([me, *own.parameters.values()])
