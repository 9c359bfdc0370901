"""Parameters of database connections: Django's, and those of listeners and notifiers."""

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.db import connection

# Bounds for a network that drops packets, in seconds (tcp_user_timeout: milliseconds); the URL can override them. The
# connect timeout is half of that of a WebSocket's handshake and of a client.
SILENCE: dict[str, Any] = {
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


def django_database(url: str) -> dict[str, Any]:
    """Convert `postgresql://user:password@host:port/name?host=/socket/dir&sslmode=…` to a DATABASES entry.

    An empty URL returns an entry that cannot connect, so that commands without a database still run. Each thread keeps
    its connection: every process has a fixed number of threads that use the database."""
    parts = urlsplit(url or "postgresql://nobody@127.0.0.1:1/no-database-yet")
    if parts.scheme not in ("postgres", "postgresql"):
        raise ValueError("DATABASE_URL must start with postgresql://; gpusched needs PostgreSQL")
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    host = options.pop("host", None) or parts.hostname or ""
    return {
        "ENGINE": "gpusched.lib.db.engine",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(options.pop("port", None) or parts.port or ""),
        "CONN_HEALTH_CHECKS": True,
        "CONN_MAX_AGE": None,
        # Only explicitly prepared statements are (gpusched.lib.db.sql.prepared); None, the default, would disable them.
        "OPTIONS": {**SILENCE, **options, "prepare_threshold": 1_000_000},
    }


def connection_parameters() -> dict[str, Any]:
    """Return the parameters of a psycopg connection: Django's, without those that only Django has."""
    names = ("host", "port", "user", "password", "dbname", "sslmode", *SILENCE)
    return {key: value for key, value in connection.get_connection_params().items() if key in names and value}
