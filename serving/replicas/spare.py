"""SQL of the replicas that the scheduler stops first when a job needs their GPUs (HOOKS in gpusched/settings.py)."""

from serving.replicas.scaling import YIELD_SECONDS

# The jobs of idle replicas, beyond min_replicas of their endpoint.
SPARE_JOBS = f"""
    SELECT s.job_id FROM (
        SELECT r.job_id, i.is_idle, e.min_replicas, count(*) OVER (PARTITION BY r.endpoint_id) AS live,
               row_number() OVER (PARTITION BY r.endpoint_id
                                      ORDER BY i.is_idle DESC, greatest(r.warm_at, r.busy_at), r.job_id) AS number
          FROM serving_replica r JOIN serving_endpoint e ON e.id = r.endpoint_id
         CROSS JOIN LATERAL (
               SELECT coalesce(greatest(r.warm_at, r.busy_at) < now() - interval '{YIELD_SECONDS:g} s', false)
                      AND r.warm_at IS NOT NULL AND NOT EXISTS (
                          SELECT 1 FROM serving_inferencerequest q
                           WHERE q.endpoint_id IN (SELECT w.id FROM serving_endpoint w
                                                    WHERE w.id = e.id OR w.replicas_of_id = e.id)
                             AND q.state = 'queued')
                      AND NOT EXISTS (
                          SELECT 1 FROM serving_inferencerequest q
                           WHERE q.replica_job_id = r.job_id AND q.state = 'running') AS is_idle) i
         WHERE r.ended_at IS NULL AND NOT r.is_draining) s
     WHERE s.is_idle AND s.number <= s.live - s.min_replicas
"""
