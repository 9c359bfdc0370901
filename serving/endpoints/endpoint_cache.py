"""Endpoints that this web process read lately, so that a submit needs no read of its own: its statement compares what
was read of the name with what the table holds now."""

from collections.abc import Sequence

from gpusched.lib.cache import Cache
from serving.models import Endpoint

# All that a submit depends on: the version counts changes of an endpoint and of its state.
ROW = "(e.id, e.version, t.name, t.archived_at)::text"
CURRENT = f"""
    SELECT string_agg({ROW}, ' ' ORDER BY e.id) FROM serving_endpoint e JOIN tenants_all t ON t.id = e.tenant_id
     WHERE e.state <> 'removed' AND e.name = %(name)s
"""
_cache: Cache[str, Sequence[Endpoint]] = Cache(max_entries=256)


def remember(name: str, endpoints: Sequence[Endpoint], rows: Sequence[str]) -> None:
    """Remember all endpoints of a name, in the order of their ids, with the ROW of each."""
    for endpoint in endpoints:
        endpoint.read_as = " ".join(rows)
    if endpoints:
        _cache.put(name, endpoints)


def last(name: str) -> Sequence[Endpoint]:
    """Return the endpoints of a name as they were read last, of every tenant; none after `forget`."""
    return _cache.last(name, ())


def forget(name: str) -> None:
    """Forget a name whose endpoints may have changed, or whose submits need more than one statement."""
    _cache.put(name, ())
