"""Responses whose status is known only after a wait, which must hold no thread."""

from collections.abc import Awaitable, Callable

from django.http import HttpResponse
from django.http.response import HttpResponseBase


class BrokenResponse(Exception):
    """The rest of a response that has begun is lost. The server closes the connection, so that the client does not take
    it for complete."""


class DeferredResponse(HttpResponse):
    """The answer of a view that has done its checks. `complete` makes the response in the event loop, and is cancelled
    if the client leaves. Headers that middleware sets on this one are copied to it."""

    def __init__(self, complete: Callable[[], Awaitable[HttpResponseBase]]) -> None:
        super().__init__()
        self._complete = complete

    async def resolve(self) -> HttpResponseBase:
        """Return the completed response."""
        response = await self._complete()
        for name, value in self.items():
            if name != "Content-Length":  # CommonMiddleware set it for the empty body of this one
                response.headers.setdefault(name, value)
        return response
