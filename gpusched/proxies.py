"""Proxies of the environment (HTTP_PROXY and others), which httpx reads when a client is made."""

from collections.abc import Iterator
from contextlib import contextmanager

NEXT_STEP = "unset the variable, or set NO_PROXY='*'"


class ProxyError(Exception):
    """A proxy of the environment cannot be used. The text is a sentence."""


@contextmanager
def usable() -> Iterator[None]:
    """Raise ProxyError while a client is made with a proxy that httpx cannot use, such as one of SOCKS."""
    try:
        yield
    except (ImportError, ValueError) as error:
        raise ProxyError(f"the proxy in ALL_PROXY, HTTP_PROXY or HTTPS_PROXY cannot be used: {error}") from error
