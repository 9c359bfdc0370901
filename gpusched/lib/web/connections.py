"""The connection of a request or WebSocket, as Daphne's protocol object. Importing this starts no event loop."""

from collections.abc import Mapping
from typing import Any

CONNECTION = "gpusched.connection"


def connection(scope: Mapping[str, Any]) -> Any:
    """Return Daphne's protocol of a request or WebSocket. None with another server, as in tests."""
    return scope.get(CONNECTION)


def abort(scope: Mapping[str, Any]) -> None:
    """Close the connection of a request without the end of its answer."""
    request = connection(scope)
    if request is not None and request.channel is not None:
        request.channel.forceAbortClient()
