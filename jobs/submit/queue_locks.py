"""Lock the queue of a tenant while jobs are counted and written, and number the bulks that were counted so."""

from collections.abc import Iterable

from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import query

_LOCK = """
    SELECT pg_advisory_xact_lock(%s, hashint8(tenant_id)) FROM unnest(%s::bigint[]) AS t (tenant_id) ORDER BY tenant_id
"""


class CountIsStale(Exception):
    """A bulk of the tenant was counted since, or is being counted."""


def generation_of(tenant_id: str) -> str:
    """The generation of bulks, in SQL; null while another transaction holds `lock` for this tenant.

    Shares the lock until the end of the transaction, so that no bulk is counted or written meanwhile."""
    lock = f"pg_try_advisory_xact_lock_shared({Lock.QUEUE_OF_TENANT:d}, hashint8({tenant_id}))"
    return f"CASE WHEN {lock} THEN pg_sequence_last_value('jobs_bulk_generation') END"


# Whether no bulk was counted exactly since the count of this generation; true for a job that is counted within `lock`.
IS_CURRENT = f"""(%(generation)s::bigint IS NULL
                  OR {generation_of("%(tenant_id)s::bigint")} IS NOT DISTINCT FROM %(generation)s::bigint)"""


def lock(tenant_ids: Iterable[int]) -> None:
    """Have no other submit of these tenants counted or written until the end of this transaction.

    Before any row of a job is locked: a submit locks the jobs that it depends on afterwards."""
    query(_LOCK, [Lock.QUEUE_OF_TENANT, sorted(set(tenant_ids))])


def lock_for_bulk(tenant_ids: Iterable[int]) -> None:
    """The same, and let all earlier counts be stale: they miss more jobs than single submits keep free."""
    lock(tenant_ids)
    query("SELECT nextval('jobs_bulk_generation')")


_GENERATION = generation_of("%s::bigint")
_SHARE = f"SELECT {_GENERATION} AS generation"


def share(tenant_id: int) -> int | None:
    """Share the lock until the end of this transaction. Return the generation of bulks, or None if the lock is held by
    another transaction."""
    found: int | None = query(_SHARE, [tenant_id])[0]["generation"]
    return found
