"""Keep the history of each endpoint's arrivals, and decide in rounds whether one of its replicas stays or starts."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings

from gpusched.lib.bus import events
from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import execute, query, rows
from serving.prewarming.gaps import MIN_GAP_SECONDS, WEEK_SECONDS, WEEKS, Arrival, Chances
from serving.prewarming.keeping import WASTE_SHARE, chance_of_use, chosen_worth, is_within_budget, is_worth_it

ROUND_SECONDS = 10.0
# The worth of an avoided cold start, and the budget, are judged again after this time.
JUDGE_SECONDS = 600.0
_COLD_START_SECONDS = 60.0  # while none was measured
# The chances by endpoint and its number of arrivals.
_chances: Cache[tuple[int, float], Chances] = Cache(seconds=JUDGE_SECONDS, max_entries=1000)

# Arrivals before the last week are judged by the weeks before them.
_KEPT_SECONDS = (WEEKS + 1) * WEEK_SECONDS
_DUE = f"""
    SELECT e.id, e.tenant_id, e.prewarming, e.idle_seconds, e.cold_start_seconds,
           greatest(coalesce((e.template ->> 'gpu_count')::int, 0), 0) AS gpus,
           date_part('epoch', clock_timestamp()) AS now, date_part('epoch', p.active_at) AS active_at,
           date_part('epoch', p.seen_at) AS seen_at, date_part('epoch', p.judged_at) AS judged_at,
           p.worth, p.chance, coalesce(p.is_over_budget, false) AS is_over_budget,
           coalesce(p.is_kept, false) AS is_kept, coalesce(p.kept_seconds, 0) AS kept_seconds, r.warm, r.was_warm,
           date_part('epoch', r.busy_at) AS busy_at,
           EXISTS (SELECT 1 FROM serving_inferencerequest q
                    WHERE q.endpoint_id IN (SELECT s.id FROM serving_endpoint s
                                             WHERE s.id = e.id OR s.replicas_of_id = e.id)
                      AND q.state IN ('queued', 'running')) AS is_active
      FROM serving_endpoint e LEFT JOIN serving_prewarming p ON p.endpoint_id = e.id
     CROSS JOIN LATERAL (
           SELECT count(*) FILTER (WHERE warm_at IS NOT NULL AND ended_at IS NULL) > 0 AS warm,
                  -- One that became warm since the last round may have started for the request that is seen now.
                  count(*) FILTER (WHERE warm_at <= p.seen_at AND ended_at IS NULL) > 0 AS was_warm,
                  max(busy_at) AS busy_at
             FROM serving_replica WHERE endpoint_id = e.id) r
     WHERE e.replicas_of_id IS NULL AND e.state = 'active'
       AND (p.seen_at IS NULL OR p.seen_at < clock_timestamp() - interval '{ROUND_SECONDS:g} s'
            OR p.seen_at > clock_timestamp())  -- the clock was set back
     ORDER BY e.id
"""
_SAVE = """
    INSERT INTO serving_prewarming (endpoint_id, active_at, seen_at, judged_at, worth, is_over_budget, is_kept,
                                    kept_seconds, chance)
    VALUES (%(id)s, to_timestamp(%(active_at)s), to_timestamp(%(now)s), to_timestamp(%(judged_at)s), %(worth)s,
            %(is_over_budget)s, %(is_kept)s, %(kept_seconds)s, %(chance)s)
    ON CONFLICT (endpoint_id) DO UPDATE
       SET active_at = excluded.active_at, seen_at = excluded.seen_at, judged_at = excluded.judged_at,
           worth = excluded.worth, is_over_budget = excluded.is_over_budget, is_kept = excluded.is_kept,
           kept_seconds = excluded.kept_seconds, chance = excluded.chance
"""
_ARRIVED = """
    INSERT INTO serving_arrival (endpoint_id, at, gap_seconds, was_warm, gpus, kept_seconds, idle_seconds)
    VALUES (%(id)s, to_timestamp(%(at)s), %(gap)s, %(was_warm)s, %(gpus)s, %(kept_seconds)s, %(idle_seconds)s)
"""
_ARRIVALS = f"""
    SELECT date_part('epoch', at), gap_seconds FROM serving_arrival
     WHERE endpoint_id = %s AND at > clock_timestamp() - interval '{_KEPT_SECONDS:.0f} s' ORDER BY at
"""
_WASTED_AND_USED = f"""
    SELECT (SELECT coalesce(sum(a.kept_seconds * a.gpus), 0) FROM serving_arrival a
              JOIN serving_endpoint e ON e.id = a.endpoint_id
             WHERE e.tenant_id = %(tenant)s AND a.at > clock_timestamp() - interval '{WEEK_SECONDS:.0f} s'),
           (SELECT coalesce(sum(date_part('epoch', u.ended_at - u.started_at) * u.gpus), 0) FROM tenants_usage u
             WHERE u.tenant_id = %(tenant)s AND u.ended_at > clock_timestamp() - interval '{WEEK_SECONDS:.0f} s')
"""
# What pages show: a change of these reaches them at once.
_SHOWN = ("is_kept", "is_over_budget", "worth", "chance")
_FORGET = f"DELETE FROM serving_arrival WHERE at < clock_timestamp() - interval '{_KEPT_SECONDS:.0f} s'"


def update() -> None:
    """Record arrivals since the last round, and decide for each endpoint that is due. Call it in a transaction that
    only one process runs at a time."""
    changed = []
    for row in query(_DUE):
        state = _round(row)
        execute(_SAVE, state)
        if any(state[name] != row[name] for name in _SHOWN):
            changed.append(row["id"])
    events.changed("endpoints", changed)


def forget_old() -> None:
    """Delete arrivals that are too old to count."""
    execute(_FORGET)


def _round(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new state of an endpoint."""
    now, before = row["now"], row["active_at"]
    state = {name: row[name] for name in ("id", "judged_at", "worth", "is_over_budget", "now")}
    kept = row["kept_seconds"]
    if row["is_kept"] and row["warm"] and row["seen_at"] is not None and not row["is_active"]:
        kept += max(0.0, now - row["seen_at"])
    # A request may have come and ended since the last round.
    at = now if row["is_active"] else row["busy_at"]
    if before is None or (at is not None and at > before):
        if before is not None and at - before >= MIN_GAP_SECONDS:
            _arrived(row, at, at - before, kept)
        before, kept = at or now, 0.0
    if row["prewarming"] and settings.ENV.prewarming and _is_judged_again(row):
        state |= _judged(row)
    is_in_force = state["worth"] is not None and not state["is_over_budget"] and row["prewarming"]
    chance = _chance(row, before) if is_in_force and settings.ENV.prewarming else None
    is_kept = chance is not None and is_worth_it(chance, state["worth"])
    return {
        **state,
        "active_at": before,
        "is_kept": is_kept,
        "kept_seconds": kept,
        # Rounded, since each change is sent to the pages.
        "chance": None if chance is None else round(chance, 2),
    }


def _arrived(row: Mapping[str, Any], at: float, gap: float, kept: float) -> None:
    values = {name: row[name] for name in ("id", "gpus", "idle_seconds", "was_warm")}
    execute(_ARRIVED, {**values, "at": at, "gap": gap, "kept_seconds": min(kept, gap)})


def _is_judged_again(row: Mapping[str, Any]) -> bool:
    return row["judged_at"] is None or row["judged_at"] < row["now"] - JUDGE_SECONDS


def _judged(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the worth of a cold start that the history supports, and whether the tenant's budget is used up. Replicas
    without GPUs waste no GPU-hours."""
    budget, is_over_budget = float("inf"), False
    if row["gpus"]:
        [(wasted, used)] = rows(_WASTED_AND_USED, {"tenant": row["tenant_id"]})
        budget, is_over_budget = WASTE_SHARE * used / row["gpus"], not is_within_budget(wasted, used)
    worth = chosen_worth(_arrivals(row["id"]), row["now"], budget)
    return {"judged_at": row["now"], "worth": worth, "is_over_budget": is_over_budget}


def _chance(row: Mapping[str, Any], idle_since: float) -> float:
    key = row["id"], row["judged_at"] or 0.0
    chances = _chances.get(key, lambda: Chances(_arrivals(row["id"]), row["now"]))
    lead = row["cold_start_seconds"] or _COLD_START_SECONDS
    return chance_of_use(chances, idle_since, row["now"], is_warm=row["warm"], cold_start_seconds=lead)


def _arrivals(endpoint_id: int) -> list[Arrival]:
    return [Arrival(at, gap) for at, gap in rows(_ARRIVALS, [endpoint_id])]
