"""Decide which network addresses may be targets: public ones, and those that an admin allows. Pure.

Users choose targets, and this server's network reaches what theirs does not. So private, loopback, link-local and
other special addresses are refused, also in the forms of IPv6 that contain one of IPv4."""

from collections.abc import Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

Network = IPv4Network | IPv6Network
_NAT64 = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))
_GLOBAL_UNICAST = ip_network("2000::/3")
_IETF = ip_network("192.0.0.0/24")
_IPV4_COMPATIBLE = ip_network("::/96")


def parse_networks(text: str) -> tuple[Network, ...]:
    """Return the networks of `10.0.0.0/8, 127.0.0.1`. Raise ValueError for anything else."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def is_allowed(text: str, allowed: Sequence[Network]) -> bool:
    """Return whether a numeric address, as for a connection, is public or in one of the allowed networks."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    forms: Sequence[IPv4Address | IPv6Address] = _inner(address) or [address]
    return all(_is_good(form, allowed) for form in forms)


def _is_good(address: IPv4Address | IPv6Address, allowed: Sequence[Network]) -> bool:
    if any(address in network for network in allowed if network.version == address.version):
        return True
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved and address not in _IETF


def _inner(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """Return the IPv4 addresses that this IPv6 address leads to."""
    if isinstance(address, IPv4Address):
        return []
    if address.ipv4_mapped:
        return [address.ipv4_mapped]
    if address.sixtofour:
        return [address.sixtofour]
    if address.teredo:
        return list(address.teredo)
    if any(address in network for network in (*_NAT64, _IPV4_COMPATIBLE)) and int(address) > 1:
        return [IPv4Address(int(address) & 0xFFFFFFFF)]
    return []
