"""Publish the tables of this app as views for the SQL of other apps."""

from gpusched.lib.db.views import published
from nodes.models import (
    Allocation,
    Assignment,
    Device,
    GpuClock,
    Incident,
    ListenerLease,
    Node,
    Reading,
    Rollup,
    Sample,
)

VIEWS = {
    "nodes_all": published(Node, without=("node_key", "credential_prefix", "credential_hash", "next_credential_hash")),
    "nodes_devices": published(Device, also={"row_version": "t.xmin::text::bigint"}),
    "nodes_readings": published(Reading),
    "nodes_ranks": published(Assignment, also={"row_version": "t.xmin::text::bigint"}),
    "nodes_allocations": published(Allocation),
    # A device, or part of its memory, that a rank holds. `gpu_weight` is the unit of quotas and billing.
    "nodes_held": """
        SELECT a.assignment_id, a.device_id, d.node_id, s.job_id, s.number AS attempt, s.rank, j.tenant_id, j.user_id,
               d.model AS gpu_model, a.memory_mb, coalesce(a.memory_mb, d.memory_mb) AS held_memory_mb,
               CASE WHEN a.memory_mb IS NULL THEN 1.0 ELSE a.memory_mb::float8 / greatest(d.memory_mb, 1) END
                   AS gpu_weight, a.since, s.started_at
          FROM nodes_allocation a JOIN nodes_assignment s ON s.id = a.assignment_id
          JOIN nodes_device d ON d.id = a.device_id JOIN jobs_all j ON j.id = s.job_id""",
    "nodes_incidents": published(Incident),
    "nodes_samples": published(Sample),
    "nodes_rollups": published(Rollup),
    "nodes_gpu_clock": published(GpuClock),
    "nodes_listener": published(ListenerLease),
}
