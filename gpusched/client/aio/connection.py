"""The connection of a client to its server: send calls, repeat them while that is safe, and read lists page by page."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from gpusched.client import config
from gpusched.client.transport import wire
from gpusched.client.transport.call import Call
from gpusched.client.transport.retries import (
    RETRY_TIMEOUT_SECONDS,
    NoResponse,
    Retries,
    is_away,
    is_success,
    may_repeat,
    read,
)
from gpusched.protocol.addresses import Addresses
from gpusched.protocol.rest.jobs import Page

P = ParamSpec("P")
T = TypeVar("T")
_MAX_PER_PAGE = 1000
# Begin with new connections after this many interrupted requests: httpx has 100 at most.
_MAX_INTERRUPTED = 50


class AsyncConnection:
    """A connection to one control plane. URL, token and tenant come from the arguments, the environment, or the config
    file. With several addresses, separated by commas, a call that fails at one goes to the next while that is safe.

    `ca_file`: trust only the authorities in this file, not those of the machine.
    `patience_seconds`: how long to retry a repeatable call while the server cannot be reached or is too busy.
    `on_retry`: called with the reason before each retry."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        tenant: str | None = None,
        ca_file: str | None = None,
        patience_seconds: float = RETRY_TIMEOUT_SECONDS,
        on_retry: Callable[[str], None] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.config = config.resolve(url, token, tenant, ca_file=ca_file)
        self.patience_seconds, self.on_retry = patience_seconds, on_retry
        self.addresses = Addresses(self.config.url)
        self._transport = transport
        self._client = self._connect()
        self._owner: object = None
        self._interrupted = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; `with` does this automatically."""
        await self._http.aclose()

    @property
    def _http(self) -> httpx.AsyncClient:
        """The HTTP client, which keeps connections open: a new one in another process or event loop. Two processes on
        the same connections would read each other's answers."""
        owner = wire.owner(self._client)
        if self._owner not in (None, owner):
            self._client = self._connect()
        self._owner = owner
        return self._client

    def _connect(self) -> httpx.AsyncClient:
        return wire.client(httpx.AsyncClient, self.config, transport=self._transport)

    async def send(self, call: Call[T], patience_seconds: float | None = None) -> T:
        """Send a call; retry it while that is safe, for at most `patience_seconds` (None: those of the client)."""
        retries = Retries(call, self.patience_seconds if patience_seconds is None else patience_seconds)
        while True:
            outcomes = await self._request(call)
            if is_success(outcome := outcomes[-1]):
                return read(call, outcome)
            seconds, because = retries.pause(outcomes)
            if self.on_retry:
                self.on_retry(because)
            await asyncio.sleep(seconds)

    async def _request(self, call: Call[Any]) -> list[httpx.Response | NoResponse]:
        """Send a call to one address after the other, while that is safe, until one answers. Return their outcomes."""
        outcomes: list[httpx.Response | NoResponse] = []
        for _ in self.addresses.all:
            address = self.addresses.current
            outcome = await self._request_at(address, call)
            outcomes.append(outcome)
            if not is_away(outcome):
                break
            self.addresses.move_on(address)
            if not may_repeat(call, outcome):
                break
        return outcomes

    async def _request_at(self, address: str, call: Call[Any]) -> httpx.Response | NoResponse:
        try:
            return await self._http.request(**wire.request(call, address))
        except httpx.RequestError as error:
            return wire.lost(error, address)
        except BaseException:
            # If it was cancelled at certain moments, httpcore has lost the connection.
            self._interrupted += 1
            if self._interrupted % _MAX_INTERRUPTED == 0:
                self._client = self._connect()
            raise

    async def _items(self, call: Call[Page[T]], limit: int | None = None, *, is_sized: bool = False) -> list[T]:
        """Return up to `limit` items (None: all), from as many pages as needed. `is_sized`: the call has a `limit`
        parameter; a `limit` that it already has applies instead."""
        items: list[T] = []
        if isinstance(fixed := call.query.get("limit"), int):
            limit, is_sized = fixed, True
        while True:
            if is_sized:
                size = _MAX_PER_PAGE if limit is None else min(_MAX_PER_PAGE, limit - len(items))
                call = replace(call, query={**call.query, "limit": size})
            page = await self.send(call)
            items += page.items
            if page.next_cursor is None or (limit is not None and len(items) >= limit):
                return items
            call = replace(call, query={**call.query, "cursor": page.next_cursor})


def single(build: Callable[P, Call[T]]) -> "Callable[Concatenate[AsyncConnection, P], Coroutine[Any, Any, T]]":
    """Return the method that sends the call of `build`."""

    async def method(self: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(build(*args, **kwargs))

    wire.describe(method, build)
    return method


def items(
    build: Callable[P, Call[Page[T]]],
) -> "Callable[Concatenate[AsyncConnection, P], Coroutine[Any, Any, list[T]]]":
    """Return the method that reads all pages of the call of `build`."""

    async def method(self: AsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        return await self._items(build(*args, **kwargs))

    wire.describe(method, build)
    return method
