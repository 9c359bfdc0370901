"""The lock that keeps the number of requests at each replica of an endpoint exact."""

from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import prepared

_LOCK = "SELECT pg_advisory_xact_lock(%s, hashint8(%s))"


def lock_places(endpoint_id: int) -> None:
    """Keep other processes from giving places at replicas of this endpoint until the end of the transaction.

    Take it after the locks of token buckets, and wait for no request while you hold it."""
    prepared(_LOCK, [Lock.PLACES, endpoint_id])
