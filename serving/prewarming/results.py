"""SQL of the results of pre-warming, for statements that read endpoints as e."""

from serving.prewarming.gaps import STEP_SECONDS

COLUMNS = f"""coalesce(pw.is_kept, false) AS is_kept_warm, coalesce(pw.is_over_budget, false) AS is_over_budget,
           pw.chance AS request_chance, {STEP_SECONDS:g} / pw.worth AS keep_from_chance,
           coalesce(pa.hits, 0) AS prewarming_hits, coalesce(pa.misses, 0) AS prewarming_misses,
           coalesce(pa.avoided, 0) AS cold_starts_avoided, coalesce(pa.wasted, 0.0) AS gpu_hours_wasted"""
# Of the arrivals that are kept: six weeks.
JOINS = """LEFT JOIN serving_prewarming pw ON pw.endpoint_id = coalesce(e.replicas_of_id, e.id)
      LEFT JOIN (
           SELECT endpoint_id, count(*) FILTER (WHERE was_warm) AS hits,
                  count(*) FILTER (WHERE NOT was_warm) AS misses,
                  count(*) FILTER (WHERE was_warm AND gap_seconds > idle_seconds) AS avoided,
                  sum(kept_seconds * gpus) / 3600 AS wasted
             FROM serving_arrival GROUP BY endpoint_id) pa ON pa.endpoint_id = coalesce(e.replicas_of_id, e.id)"""
