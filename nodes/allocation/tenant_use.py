"""SQL of the current use of tenants, which tenants/ includes in its statements (HOOKS in gpusched/settings.py)."""

# Each GPU with a running rank, in the ledger's columns, so that one statement reads both at one moment.
RUNNING_USE = """SELECT tenant_id, user_id, job_id, gpu_model, gpu_weight AS gpus, started_at
                   FROM nodes_held WHERE started_at IS NOT NULL"""
GPU_MODELS = "SELECT DISTINCT model AS gpu_model FROM nodes_device"
# What the jobs of each of the tenants %(ids)s (null: all) hold, and how many are pending. Grouped: reads the ranks once
# for all of them, not for each.
TENANT_USE = """
    SELECT t.id AS tenant_id,
           json_build_object('gpus', coalesce(r.gpus, 0), 'gpu_memory_mb', coalesce(r.gpu_memory_mb, 0),
                             'cpu_cores', coalesce(r.cpu_milli / 1000.0, 0), 'memory_mb', coalesce(r.memory_mb, 0),
                             'jobs', coalesce(r.jobs, 0)) AS in_use,
           coalesce(w.jobs, 0)::bigint AS pending_jobs
      FROM tenants_all t
      LEFT JOIN (
           SELECT j.tenant_id, sum(h.gpus) AS gpus, sum(h.gpu_memory_mb) AS gpu_memory_mb,
                  sum(s.cpu_milli) AS cpu_milli, sum(s.memory_mb) AS memory_mb, count(DISTINCT s.job_id) AS jobs
             FROM nodes_assignment s JOIN jobs_all j ON j.id = s.job_id
            CROSS JOIN LATERAL (SELECT count(*) AS gpus, sum(held_memory_mb) AS gpu_memory_mb
                                  FROM nodes_held WHERE assignment_id = s.id) h
            WHERE s.state <> 'ended' AND (%(ids)s::bigint[] IS NULL OR j.tenant_id = ANY(%(ids)s))
            GROUP BY j.tenant_id) r ON r.tenant_id = t.id
      LEFT JOIN (
           SELECT j.tenant_id, sum(j.weight) AS jobs FROM jobs_all j
            WHERE j.is_waiting AND (%(ids)s::bigint[] IS NULL OR j.tenant_id = ANY(%(ids)s))
            GROUP BY j.tenant_id) w ON w.tenant_id = t.id
"""
