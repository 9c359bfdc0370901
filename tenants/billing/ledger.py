"""Write the ledger and the decayed balances: charge the use of a device once, when it is released.

Balance B at time t with half-life h: B(t) = Σ over uses of ∫ 2^-((t-s)/h) ds (s: times within the use), so a use of g
GPUs from a to b counts g · h/ln 2 · (2^-((t-b)/h) - 2^-((t-a)/h)). Balances decay by 2^-(Δt/h) and add up."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from gpusched.lib.db.sql import columns, execute, prepared
from gpusched.lib.hooks import hook
from gpusched.protocol.reasons import NODE_FAULTS, EndReason

# Not for a killed supervisor: jobs that run as the same user can kill it themselves.
REFUNDED = NODE_FAULTS - {EndReason.SUPERVISOR_LOST}


RESERVED = "reserved"


class Charge(NamedTuple):
    """The use of a device by a rank, a row of the ledger. `gpus`: 1, or the fraction of a shared device's memory.

    Of idle reserved time, `cause` is RESERVED, `job_id` 0, `attempt` the reservation, and `rank` counts its entries for
    the device."""

    tenant_id: int
    user_id: int | None
    job_id: int
    attempt: int
    rank: int
    device_id: int
    node: str
    gpu_model: str
    memory_mb: int | None
    gpus: float
    started_at: datetime
    ended_at: datetime
    cause: str


_LEDGER = """
    INSERT INTO tenants_usageentry (tenant_id, user_id, job_id, attempt, rank, device_id, node, gpu_model, memory_mb,
                                    gpus, started_at, ended_at, cause)
    SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::int[], %s::int[], %s::bigint[], %s::text[],
                         %s::text[], %s::int[], %s::float8[], %s::timestamptz[], %s::timestamptz[], %s::text[])
"""


def remaining_sql(at: str) -> str:
    """Return SQL for the part of a use at the time `at` that still counts, by the half-life %(h)s in seconds. None
    counts after 100 half-lives: PostgreSQL refuses to calculate numbers that are too small. All counts if `at` is in
    the future: the clock was set back."""
    age = f"greatest(extract(epoch FROM now() - {at}) / %(h)s, 0)"
    return f"CASE WHEN {age} < 100 THEN power(2, -{age}) ELSE 0 END"


_OF_START, _OF_END, _OF_BALANCE = map(remaining_sql, ("started_at", "ended_at", "b.as_of"))
# Rows are locked in one order, so that two charges of several tenants cannot deadlock.
_BALANCE = f"""
    WITH locked AS (SELECT id FROM tenants_usagebalance WHERE tenant_id = ANY(%(tenants)s) ORDER BY id FOR UPDATE),
    use AS (
        SELECT tenant_id, sum(gpus * %(h)s / ln(2) * (
                   {_OF_END} - {_OF_START})) AS gpu_seconds
          FROM unnest(%(tenants)s::bigint[], %(gpus)s::float8[], %(starts)s::timestamptz[], %(ends)s::timestamptz[])
               AS u (tenant_id, gpus, started_at, ended_at)
         GROUP BY tenant_id)
    UPDATE tenants_usagebalance b
       SET gpu_seconds = b.gpu_seconds * {_OF_BALANCE} + use.gpu_seconds,
           as_of = now()
      FROM use, locked
     WHERE b.tenant_id = use.tenant_id AND b.id = locked.id
"""


def charge(charges: Sequence[Charge]) -> None:
    """Write the ledger and update the balances, inside the caller's transaction. The ledger's unique key rejects a
    second charge for the same device, rank and attempt."""
    if not charges:
        return
    prepared(_LEDGER, columns(charges, len(Charge._fields)))
    execute(
        _BALANCE,
        {
            "h": half_life_seconds(),
            "tenants": [c.tenant_id for c in charges],
            "gpus": [c.gpus for c in charges],
            "starts": [c.started_at for c in charges],
            "ends": [c.ended_at for c in charges],
        },
    )


_REFUND = """
    INSERT INTO tenants_usagerefund (entry_id, reason)
    SELECT e.id, t.reason FROM unnest(%s::bigint[], %s::int[], %s::text[]) AS t (job_id, attempt, reason)
      JOIN tenants_usageentry e ON e.job_id = t.job_id AND e.attempt = t.attempt
        ON CONFLICT (entry_id) DO NOTHING
"""


def refund(attempts: Sequence[tuple[int, int, str]]) -> None:
    """Refund the charges of attempts, as (job, attempt, reason), that ended by a node fault. The balance stays: the
    GPUs were held."""
    faults = [attempt for attempt in attempts if attempt[2] in REFUNDED]
    if faults:
        execute(_REFUND, columns(faults, 3))


def half_life_seconds() -> float:
    """Return the half-life of use from the scheduling policy."""
    return float(hook("policy_values")()["usage_half_life_days"]) * 86400.0


def rebase_balances() -> None:
    """Decay all balances to now, before an edit of the half-life: use so far fades at the old rate."""
    sql = f"UPDATE tenants_usagebalance b SET as_of = now(), gpu_seconds = b.gpu_seconds * {_OF_BALANCE}"
    execute(sql, {"h": half_life_seconds()})
