"""Lock the queue of a tenant while jobs are counted and written, and number the bulks that were counted that way."""

from collections.abc import Iterable

from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import query

_LOCK = """
    SELECT pg_advisory_xact_lock(%s, hashint8(tenant_id)) FROM unnest(%s::bigint[]) AS t (tenant_id) ORDER BY tenant_id
"""


class CountIsStale(Exception):
    """A bulk of the tenant has been counted since, or is being counted."""


def generation_of(tenant_id: str) -> str:
    """Return SQL for the generation of bulks, null while another transaction holds `lock` for this tenant.

    Shares the lock until the end of the transaction, so that no bulk is counted or written meanwhile."""
    lock = f"pg_try_advisory_xact_lock_shared({Lock.QUEUE_OF_TENANT:d}, hashint8({tenant_id}))"
    return f"CASE WHEN {lock} THEN pg_sequence_last_value('jobs_bulk_generation') END"


# True if no bulk was counted exactly since the count of this generation, or the job is counted within `lock`.
IS_CURRENT = f"""(%(generation)s::bigint IS NULL
                  OR {generation_of("%(tenant_id)s::bigint")} IS NOT DISTINCT FROM %(generation)s::bigint)"""


def lock(tenant_ids: Iterable[int]) -> None:
    """Keep other submits of these tenants from being counted or written until the end of this transaction.

    Call it before locking any job: a submit locks the jobs that it depends on after this."""
    query(_LOCK, [Lock.QUEUE_OF_TENANT, sorted(set(tenant_ids))])


def lock_for_bulk(tenant_ids: Iterable[int]) -> None:
    """Do the same, and make all earlier counts stale: they would miss more jobs than single submits allow for."""
    lock(tenant_ids)
    query("SELECT nextval('jobs_bulk_generation')")


_GENERATION = generation_of("%s::bigint")
_SHARE = f"SELECT {_GENERATION} AS generation"


def share(tenant_id: int) -> int | None:
    """Share the lock until the end of this transaction. Return the generation of bulks, or None if the lock is held by
    another transaction."""
    generation: int | None = query(_SHARE, [tenant_id])[0]["generation"]
    return generation
