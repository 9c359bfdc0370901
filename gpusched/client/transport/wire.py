"""The border to httpx: turn a Call into a request, and a failure into a NoResponse."""

import inspect
import os
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
import msgspec

from gpusched import __version__, proxies, tls
from gpusched.client.config import Config
from gpusched.client.errors import Invalid
from gpusched.client.transport.call import Call
from gpusched.client.transport.retries import NoResponse
from gpusched.protocol.addresses import is_local

C = TypeVar("C", httpx.Client, httpx.AsyncClient)
# A submit waits for a durable commit; reads of a busy server can take a while. Connecting is quick or hopeless.
_READ_SECONDS, _CONNECT_SECONDS = 30.0, 5.0
# Until the next address is tried, if the host of one does not answer at all.
_NEXT_SECONDS = 2.0
TIMEOUT = httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)


def client(kind: type[C], config: Config, **options: Any) -> C:
    """Return a client of httpx for this control plane. Raises Invalid if a file of certificates or a proxy of the
    environment cannot be used."""
    try:
        with proxies.usable(not is_local(config.url)):
            return kind(**{**_options(config), **options})
    except proxies.ProxyError as error:
        raise Invalid(str(error), next_step=proxies.NEXT_STEP) from error


def _options(config: Config) -> dict[str, Any]:
    """Return the arguments of httpx's clients."""
    headers = {"User-Agent": f"gpusched/{__version__}", "Accept": "application/json"}
    if config.token:
        headers["Authorization"] = f"Bearer {config.token}"
    # Loading all certificate authorities takes longer than a request, and plain http needs none: trust no authority.
    is_tls = config.url.startswith("https:")
    try:
        verify = tls.verify(config.url, config.ca_file) if is_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    except tls.TlsFileError as error:
        raise Invalid(f"{tls.CA_FILE}: {error}") from error
    timeout = httpx.Timeout(_READ_SECONDS, connect=_NEXT_SECONDS) if "," in config.url else TIMEOUT
    return {"headers": headers, "timeout": timeout, "verify": verify, "trust_env": not is_local(config.url)}


def owner(http: httpx.Client | httpx.AsyncClient) -> tuple[int, object]:
    """Return to what connections that are opened now belong: to this process, and of an async client to the running
    event loop."""
    if isinstance(http, httpx.Client):
        return os.getpid(), None
    import asyncio

    return os.getpid(), asyncio.get_running_loop()


def request(call: Call[Any], address: str) -> dict[str, Any]:
    """Return the arguments of httpx's `request`. Raises Invalid if names in the path or query are too long."""
    try:
        url = httpx.URL(address + call.path).copy_merge_params(dict(call.query))
    except httpx.InvalidURL as error:
        raise Invalid(f"{address} takes no such request: {error}", next_step="use shorter names") from error
    arguments: dict[str, Any] = {"method": call.method, "url": url, "headers": dict(call.headers)}
    if call.max_seconds is not None:
        timeout = min(call.max_seconds, _READ_SECONDS)
        arguments["timeout"] = httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS))
    if call.content is not None:
        arguments["content"] = call.content
    elif call.body is not None:
        arguments["content"] = msgspec.json.encode(call.body)
        arguments["headers"]["Content-Type"] = "application/json"
    return arguments


def lost(error: httpx.HTTPError, url: str) -> NoResponse:
    """Return the outcome of a request that got no answer."""
    if why := tls.distrust(error):
        return NoResponse(f"cannot trust {url}: {why}", was_sent=False, next_step=tls.NEXT_STEP)
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return NoResponse(f"cannot reach {url} ({_reason(error)})", was_sent=False)
    if isinstance(error, httpx.ProxyError):  # it opened no connection, as CONNECT asks it to
        return NoResponse(f"cannot reach {url} through the proxy of the environment ({_reason(error)})", was_sent=False)
    if isinstance(error, httpx.TimeoutException):
        return NoResponse(f"{url} did not answer in time", was_sent=True)
    return NoResponse(f"the connection to {url} broke ({_reason(error)})", was_sent=True)


def _reason(error: httpx.HTTPError) -> str:
    return tls.reason(error) or type(error).__name__


def describe(method: Callable[..., Any], build: Callable[..., Any]) -> None:
    """Give a client's method the name, documentation and parameters of its call."""
    signature = inspect.signature(build)
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__name__, method.__doc__ = build.__name__, build.__doc__
    method.__dict__["__signature__"] = inspect.Signature([me, *signature.parameters.values()])
