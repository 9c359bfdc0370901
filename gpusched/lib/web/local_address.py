"""The address of the web server for clients on its own machine: supervisors, health checks and an agent."""

import urllib.request

# A proxy of the environment does not lead to this machine.
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def local_host(http_host: str) -> str:
    """Return that address, as URLs and Host headers have it, for a server that listens on `http_host`."""
    # The wildcard address is for listening, not for connecting.
    if http_host in ("0.0.0.0", "::"):  # noqa: S104  # nosec B104
        return "127.0.0.1"
    return in_url(http_host)


def local_url(http_host: str, port: int) -> str:
    return f"http://{local_host(http_host)}:{port}"


def in_url(host: str) -> str:
    """Return a host as URLs and Host headers have it: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def without_proxy(http_host: str) -> str:
    """Return the variable `no_proxy` with that address added: requests to it bypass the proxies of the environment."""
    present = urllib.request.getproxies_environment().get("no", "").split(",")
    # Without the brackets of IPv6: httpx, which the agent uses, takes them for an error.
    hosts = (part.strip().strip("[]") for part in (*present, local_host(http_host)))
    return ",".join(dict.fromkeys(filter(None, hosts)))
