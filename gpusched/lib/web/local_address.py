"""The address of the web server for clients on its own machine: supervisors, health checks and an agent."""

import urllib.request


def local_host(http_host: str) -> str:
    """Return that address, as URLs and Host headers have it, for a server that listens on `http_host`."""
    # The wildcard address is for listening, not for connecting.
    if http_host in ("0.0.0.0", "::"):  # noqa: S104  # nosec B104
        return "127.0.0.1"
    return in_url(http_host)


def in_url(host: str) -> str:
    """Return a host as URLs and Host headers have it: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def without_proxy(http_host: str) -> str:
    """Return the variable `no_proxy` with that address added: requests to it bypass the proxies of the environment."""
    host = local_host(http_host)
    present = urllib.request.getproxies_environment().get("no", "")
    # Programs differ in how they write an address of IPv6.
    return ",".join(dict.fromkeys(part for part in (present, host, host.strip("[]")) if part))
