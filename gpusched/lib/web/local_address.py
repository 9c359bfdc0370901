"""The address of the web server for clients on its own machine: supervisors, health checks and an agent."""


def local_host(http_host: str) -> str:
    """Return that address for a server that listens on `http_host`."""
    # The wildcard address is for listening, not for connecting.
    return "127.0.0.1" if http_host in ("0.0.0.0", "::") else http_host  # noqa: S104  # nosec B104
