"""The time at which a sender last worked, for metrics and alerts."""

from gpusched.lib.db.sql import execute, query


def renew() -> None:
    """Record that a sender works now."""
    execute(
        """INSERT INTO notifications_heartbeat (id, at) VALUES (1, clock_timestamp())
           ON CONFLICT (id) DO UPDATE SET at = excluded.at"""
    )


def age_seconds() -> float | None:
    """Return the seconds since a sender last worked; None if none ever has."""
    rows = query("SELECT extract(epoch FROM clock_timestamp() - at)::float8 AS age FROM notifications_heartbeat")
    return rows[0]["age"] if rows else None
