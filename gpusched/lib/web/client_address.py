"""Find the client's address and scheme. Headers of a proxy count only if the proxy is trusted."""

import ipaddress
import re
from collections.abc import Callable
from functools import lru_cache

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_only_middleware

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


@sync_only_middleware
def behind_proxies(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Set REMOTE_ADDR to the nearest address that is not a trusted proxy. Drop headers of untrusted senders."""

    def middleware(request: HttpRequest) -> HttpResponse:
        peer = request.META["REMOTE_ADDR"] = _plain(request.META.get("REMOTE_ADDR", ""))
        forwarded = request.META.pop("HTTP_X_FORWARDED_FOR", "")
        trusted = networks(settings.ENV.trusted_proxies)
        if is_within(peer, trusted):
            request.META["REMOTE_ADDR"] = client_of(peer, forwarded, trusted)
        else:
            request.META.pop("HTTP_X_FORWARDED_PROTO", None)
        return get_response(request)

    return middleware


@lru_cache(8)
def networks(text: str) -> tuple[Network, ...]:
    """Parse addresses and networks separated by commas. Raise ValueError that names an invalid one."""
    return tuple(_plain_network(ipaddress.ip_network(part.strip())) for part in text.split(",") if part.strip())


def client_of(peer: str, forwarded: str, trusted: tuple[Network, ...]) -> str:
    """Return the peer, or if it is a trusted proxy the last address in X-Forwarded-For that is not: each proxy appends
    its peer, and a client can forge everything before it."""
    nearest = peer = _plain(peer)
    if not is_within(peer, trusted):
        return peer
    for part in reversed(forwarded.split(",")):
        address = _plain(_without_port(part.strip()))
        if not _is_address(address):
            break
        nearest = address
        if not is_within(address, trusted):
            break
    return nearest


def is_within(address: str, trusted: tuple[Network, ...]) -> bool:
    return (
        bool(trusted) and _is_address(address) and any(ipaddress.ip_address(address) in network for network in trusted)
    )


def _plain(text: str) -> str:
    """Return an IPv4 address as such: a socket that listens on `::` names it ::ffff:192.0.2.1."""
    if not text.lower().startswith("::ffff:") or not _is_address(text):
        return text
    address = ipaddress.ip_address(text)
    return str(getattr(address, "ipv4_mapped", None) or address)


def _plain_network(network: Network) -> Network:
    """Return a network of mapped IPv4 addresses as one of IPv4, as `_plain` returns its addresses."""
    if network.version == 6 and network.subnet_of(_MAPPED):
        return ipaddress.ip_network((int(network[0]) & 0xFFFFFFFF, network.prefixlen - 96))
    return network


def _without_port(text: str) -> str:
    """Return the address of `192.0.2.1:4711` or `[2001:db8::1]:4711`, as some proxies write it."""
    found = re.fullmatch(r"\[(.*)\](?::\d+)?|([\d.]+):\d+", text)
    return (found[1] or found[2]) if found else text


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
