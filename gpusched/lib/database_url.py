"""A PostgreSQL address as Django's DATABASES entry."""

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit


def django_database(url: str, pool_size: int) -> dict[str, Any]:
    """`postgresql://user:password@host:port/name?host=/socket/dir&sslmode=…` → a DATABASES entry.

    An empty address gives an entry that cannot connect, so that commands which need no database still run.
    `pool_size` 0: one lasting connection per thread, right for processes that fork (a pool's threads do not survive
    a fork); otherwise a pool, right for a web process whose requests each run in a thread of their own."""
    parts = urlsplit(url or "postgresql://nobody@127.0.0.1:1/no-database-yet")
    if parts.scheme not in ("postgres", "postgresql"):
        raise ValueError("DATABASE_URL must start with postgresql://; gpusched needs PostgreSQL")
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    host = options.pop("host", None) or parts.hostname or ""
    entry: dict[str, Any] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(options.pop("port", None) or parts.port or ""),
        "CONN_HEALTH_CHECKS": True,
        "CONN_MAX_AGE": 0 if pool_size else None,
        "OPTIONS": {**options, "connect_timeout": 5},
    }
    if pool_size:
        entry["OPTIONS"]["pool"] = {"min_size": 2, "max_size": pool_size, "timeout": 10, "max_idle": 60}
    return entry
