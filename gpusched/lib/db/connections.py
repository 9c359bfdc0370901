"""How to reach the default database outside of Django's connections: to listen, and to ring."""

from typing import Any

from django.db import connection

from gpusched.lib.db.database_url import SILENCE


def connection_parameters() -> dict[str, Any]:
    """Of a psycopg connection: those of Django's, without what is only Django's."""
    wanted = ("host", "port", "user", "password", "dbname", "sslmode", *SILENCE)
    return {key: value for key, value in connection.get_connection_params().items() if key in wanted and value}
