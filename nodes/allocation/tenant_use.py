"""SQL of the current use of tenants, which tenants/ includes in its statements (HOOKS in gpusched/settings.py)."""

# Each GPU with a running rank, in the ledger's columns, so that one statement reads both at one moment.
RUNNING_USE = """SELECT tenant_id, user_id, job_id, gpu_model, gpu_weight AS gpus, started_at
                   FROM nodes_held WHERE started_at IS NOT NULL"""
GPU_MODELS = "SELECT DISTINCT model AS gpu_model FROM nodes_device"
# For tenant t: what its jobs hold, and how many are pending.
TENANT_USE = """
    SELECT json_build_object('gpus', coalesce(sum(r.gpus), 0), 'gpu_memory_mb', coalesce(sum(r.gpu_memory_mb), 0),
                             'cpu_cores', coalesce(sum(r.cpu_milli) / 1000.0, 0),
                             'memory_mb', coalesce(sum(r.memory_mb), 0), 'jobs', count(DISTINCT r.job_id)) AS in_use,
           (SELECT coalesce(sum(j.weight), 0)::bigint FROM jobs_all j
             WHERE j.tenant_id = t.id AND j.is_waiting) AS pending_jobs
      FROM (SELECT s.job_id, s.cpu_milli, s.memory_mb, h.gpus, h.gpu_memory_mb
              FROM nodes_assignment s JOIN jobs_all j ON j.id = s.job_id
             CROSS JOIN LATERAL (SELECT count(*) AS gpus, sum(held_memory_mb) AS gpu_memory_mb
                                   FROM nodes_held WHERE assignment_id = s.id) h
             WHERE s.state <> 'ended' AND j.tenant_id = t.id) r
"""
