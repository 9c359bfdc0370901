"""The order of several database hosts: the one that accepted the latest connection first.

A host that is lost without a word costs each connection its connect timeout, if it comes first."""

from typing import Any

import psycopg


class Hosts:
    def __init__(self) -> None:
        self._latest: tuple[str, str] | None = None

    def note(self, connection: psycopg.Connection[Any]) -> None:
        """Remember the host of a new connection."""
        self._latest = (connection.info.host, str(connection.info.port))

    def ordered(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of a connection with the latest host first; those of a single host are unchanged."""
        names = str(parameters.get("host", "")).split(",")
        if len(names) == 1 or "hostaddr" in parameters:
            return parameters
        ports = str(parameters.get("port") or "5432").split(",")
        hosts = list(zip(names, ports if len(ports) > 1 else ports * len(names), strict=True))
        hosts.sort(key=lambda host: host != self._latest)
        return {
            **parameters,
            "host": ",".join(name for name, _ in hosts),
            "port": ",".join(port for _, port in hosts),
        }
