"""Whose request it is: the client's address and scheme, from a proxy's headers only where that proxy is trusted."""

import ipaddress
from collections.abc import Callable
from functools import lru_cache

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_only_middleware

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@sync_only_middleware
def behind_proxies(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Sets REMOTE_ADDR to the nearest address that is no trusted proxy, and forgets what anybody else claims."""

    def middleware(request: HttpRequest) -> HttpResponse:
        peer = request.META.get("REMOTE_ADDR", "")
        claimed = request.META.pop("HTTP_X_FORWARDED_FOR", "")
        trusted = networks(settings.ENV.trusted_proxies)
        if is_within(peer, trusted):
            request.META["REMOTE_ADDR"] = client_of(peer, claimed, trusted)
        else:
            request.META.pop("HTTP_X_FORWARDED_PROTO", None)
        return get_response(request)

    return middleware


@lru_cache(8)
def networks(text: str) -> tuple[Network, ...]:
    """Addresses and networks by comma. Raises ValueError, naming the one that is none."""
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


def client_of(peer: str, claimed: str, trusted: tuple[Network, ...]) -> str:
    """Each proxy adds its peer at the end of X-Forwarded-For, so from the end back to the first that is not trusted.
    What stands before that anybody can have made up."""
    nearest = peer
    for part in reversed(claimed.split(",")):
        address = part.strip()
        if not _is_address(address):
            break
        nearest = address
        if not is_within(address, trusted):
            break
    return nearest


def is_within(address: str, trusted: tuple[Network, ...]) -> bool:
    return bool(trusted) and _is_address(address) and any(ipaddress.ip_address(address) in one for one in trusted)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
