"""Database connections: the parameters of Django's, and those of listeners and notifiers."""

from typing import Any

import psycopg
from django.db import connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from gpusched.env import SettingError
from gpusched.lib.db.hosts import hosts

# Bounds for a network that drops packets, in seconds (tcp_user_timeout: milliseconds); the URL can override them. The
# connect timeout is half of that of a WebSocket's handshake and of a client.
SILENCE: dict[str, Any] = {
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# The connect timeout of each of several hosts: one that is lost delays the attempt that finds its successor.
SEVERAL_SECONDS = 2
# The keywords of libpq; Django adds parameters of psycopg, such as cursor_factory, which only its own connections need.
_KEYWORDS = frozenset(option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults())


def django_database(url: str) -> dict[str, Any]:
    """Convert `postgresql://user:password@host:port/name?host=/socket/dir&sslmode=…` to a DATABASES entry.

    Several hosts, `host1:5432,host2:5432`, are a primary and its standbys: a connection goes to the one that accepts
    writes. An empty URL returns an entry that cannot connect, so that commands without a database still run. Each
    thread keeps its connection: every process has a fixed number of threads that use the database. Raises SettingError
    for an invalid URL, without repeating it, as it has a password."""
    url = url or "postgresql://nobody@127.0.0.1:1/no-database-yet"
    if not url.startswith(("postgres://", "postgresql://")):
        raise SettingError("GPUSCHED_DATABASE_URL must start with postgresql://; gpusched needs PostgreSQL")
    try:
        options = _parameters(url)
    except psycopg.ProgrammingError:
        form = "postgresql://user:password@host:port/name; several hosts are separated by commas"
        raise SettingError(f"GPUSCHED_DATABASE_URL is not a valid address; its form is {form}") from None
    return {
        "ENGINE": "gpusched.lib.db.engine",
        "NAME": options.pop("dbname", ""),
        "USER": options.pop("user", ""),
        "PASSWORD": options.pop("password", ""),
        "HOST": options.pop("host", ""),
        "PORT": str(options.pop("port", "")),
        "CONN_HEALTH_CHECKS": True,
        "CONN_MAX_AGE": None,
        # Only explicitly prepared statements are (gpusched.lib.db.sql.prepared); None, the default, would disable them.
        "OPTIONS": {**SILENCE, **options, "prepare_threshold": 1_000_000},
    }


def writable(url: str) -> str:
    """Return an address by which any client of PostgreSQL finds, among several hosts, the one that accepts writes."""
    return make_conninfo(**_parameters(url))


def _parameters(url: str) -> dict[str, Any]:
    parameters: dict[str, Any] = conninfo_to_dict(url)
    if "," in str(parameters.get("host", "")):
        return {"target_session_attrs": "read-write", "connect_timeout": SEVERAL_SECONDS, **parameters}
    return parameters


def connect() -> psycopg.Connection[Any]:
    """Return a connection of its own, in autocommit mode."""
    parameters = connection_parameters()
    own = psycopg.connect(**parameters, autocommit=True)
    hosts.note(own, parameters)
    return own


async def connect_async() -> psycopg.AsyncConnection[Any]:
    """Return such a connection for the event loop."""
    parameters = connection_parameters()
    own = await psycopg.AsyncConnection.connect(**parameters, autocommit=True)
    hosts.note(own, parameters)
    return own


def connection_parameters() -> dict[str, Any]:
    """Return Django's parameters without those that only Django has."""
    return {key: value for key, value in connection.get_connection_params().items() if key in _KEYWORDS and value}
