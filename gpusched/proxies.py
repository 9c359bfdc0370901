"""Proxies of the environment (HTTP_PROXY and others), which httpx reads when a client is made."""

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from gpusched.protocol.addresses import is_address

NEXT_STEP = "unset the variable, or set NO_PROXY='*'"


class ProxyError(Exception):
    """A proxy of the environment cannot be used. The text is a sentence."""


@contextmanager
def usable(is_used: bool = True) -> Iterator[None]:
    """Raise ProxyError while a client is made with a proxy that httpx cannot use, such as one of SOCKS, or without a
    host; not if the client uses none."""
    environment = urllib.request.getproxies_environment() if is_used else {}
    is_used = "*" not in map(str.strip, environment.get("no", "").split(","))
    for name in ("http", "https", "all"):
        url = environment.get(name, "")
        if is_used and url.startswith(("http:", "https:")) and not is_address(url):  # it may contain a password
            raise ProxyError(f"the proxy in {name.upper()}_PROXY cannot be used: its address is wrong")
    try:
        yield
    except httpx.InvalidURL as error:
        sentence = f"NO_PROXY cannot be used: {error}"
        raise ProxyError(f"{sentence}; write addresses of IPv6 without brackets and port") from error
    except (ImportError, ValueError) as error:
        raise ProxyError(f"the proxy in ALL_PROXY, HTTP_PROXY or HTTPS_PROXY cannot be used: {error}") from error
