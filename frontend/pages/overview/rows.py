"""The rows of topic `overview`: problems, idle GPUs, waiting jobs by reason, and the largest job that could start
now."""

from collections import Counter
from collections.abc import Iterator, Sequence, Set

from frontend.live.topics import Topic
from frontend.pages.overview import attention
from frontend.pages.tenants import rows as tenantrows
from gpusched.lib.db.sql import Row, prepared
from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import NodeState
from jobs.listing import representation
from scheduling.status import cluster

_MAX_NEXT = 3

# Waiting times leave out held jobs, which wait for their owner.
_IS_TIMED = "j.is_waiting AND j.state <> 'held'"
_JOBS = f"""
    SELECT count(*) FILTER (WHERE j.state = 'running' AND j.array_count IS NULL) AS running_jobs,
           coalesce(sum(j.weight) FILTER (WHERE j.is_waiting), 0)::bigint AS pending_jobs,
           floor(extract(epoch FROM clock_timestamp() - min(submitted_at) FILTER (WHERE {_IS_TIMED})))::bigint
                AS oldest_wait_seconds,
           floor(percentile_cont(0.9) WITHIN GROUP (ORDER BY extract(epoch FROM clock_timestamp() - submitted_at))
                 FILTER (WHERE {_IS_TIMED}))::bigint AS p90_wait_seconds
      FROM jobs_all j WHERE j.state IN ('pending', 'held', 'running')
"""
_WAITING = """
    SELECT DISTINCT ON (tenant_id, reason) tenant_id, id, priority, submitted_at, reason, evidence, reason_since,
           stop_reason, stop_evidence, exit_code, signal, max_runtime_seconds, NULL AS placement,
           (sum(j.weight) OVER kind)::bigint AS jobs, (sum(j.weight * gpu_count::bigint) OVER kind)::bigint AS gpus
      FROM jobs_all j WHERE j.is_waiting
    WINDOW kind AS (PARTITION BY tenant_id, reason)
     ORDER BY tenant_id, reason, priority DESC, submitted_at, id
"""

_RESERVED = """
    SELECT DISTINCT device_id FROM scheduling_reserved_devices
     WHERE is_live AND clock_timestamp() BETWEEN starts_at AND ends_at
"""

# The first jobs of each tenant that only wait for capacity, ordered by reason, then by queue order.
_NEXT = f"""
    SELECT * FROM (
        SELECT id, tenant_id, name, gpu_count, priority, submitted_at, reason, evidence, reason_since, stop_reason,
               stop_evidence, exit_code, signal, max_runtime_seconds, NULL AS placement, soon,
               row_number() OVER (PARTITION BY tenant_id ORDER BY soon, priority DESC, submitted_at, id) AS place
          FROM jobs_all j JOIN unnest(%s::text[]) WITH ORDINALITY AS w (code, soon) ON reason = code
         WHERE {_IS_TIMED}) waiting
     WHERE place <= %s ORDER BY soon, priority DESC, submitted_at, id
"""
_SOON = [
    str(reason)
    for reason in (Pending.STARTING, Pending.SCHEDULER_BEHIND, Pending.RECLAIM_PENDING, Pending.PREEMPT_DELAY,
                   Pending.RESERVED, Pending.CAPACITY, Pending.FRAGMENTED, Pending.PRIORITY)
]  # fmt: skip


def load(nodes: list[Row], tenants: dict[int, Row]) -> Row:
    """Load the topic, using the rows of frontend.pages.fleet.rows and frontend.pages.tenants.rows."""
    waiting = prepared(_WAITING)
    for row in waiting:
        row["told"] = representation.reason(row)
    lag = cluster.scheduler_lag()
    return {
        "status": _status(nodes, lag),
        "largest": _largest(nodes, {row["device_id"] for row in prepared(_RESERVED)}),
        "attention": attention.load(nodes, lag),
        "next": [{**row, "told": representation.reason(row)} for row in prepared(_NEXT, [_SOON, _MAX_NEXT])],
        "waiting": sorted(waiting, key=lambda row: (-row["priority"], row["submitted_at"], row["id"])),
        "tenants": _entitled(tenants, nodes),
    }


def restrict(loaded: Row, visible: Sequence[int] | None) -> dict[str, Row]:
    """Return all numbers, but only the example jobs and tenants that the viewer can see."""
    rows: dict[str, Row] = {"status": loaded["status"]}
    rows.update({f"largest:{row['model']}": row for row in loaded["largest"]})
    rows.update(attention.restrict(loaded["attention"], visible))
    rows.update({f"waiting:{row['code']}": row for row in _waiting(loaded, visible)})
    rows.update({f"next:{row['id']}": row for row in _next(loaded["next"], visible)})
    visible_tenants = tenantrows.restrict(loaded["tenants"], visible)
    rows.update({f"tenant:{name}": row for name, row in visible_tenants.items()})
    return rows


def _status(nodes: list[Row], lag: Row) -> Row:
    cells = Counter(device["cell"] for node in nodes for device in node["devices"])
    [jobs] = prepared(_JOBS)
    return {
        "total_nodes": len(nodes),
        "online_nodes": sum(node["state"] == NodeState.ONLINE for node in nodes),
        "total_gpus": cells.total(),
        **{f"{cell}_gpus": cells[cell] for cell in ("busy", "held_idle", "free", "unavailable")},
        "pretend_nodes": sum(node["pretend"] for node in nodes),
        **jobs,
        "cycle_is_alive": lag["is_alive"],
    }


def _entitled(tenants: dict[int, Row], nodes: list[Row]) -> dict[int, Row]:
    """Add the usable GPUs that the weight of each tenant entitles it to, among tenants with jobs. GPUs beyond a
    tenant's limit go to the others. None for a tenant without jobs."""
    usable = float(sum(device["cell"] != "unavailable" for node in nodes for device in node["devices"]))
    remaining = {id: row for id, row in tenants.items() if row["jobs_live"] or row["jobs_waiting"]}
    parts: dict[int, float] = {}
    while remaining:
        total_weight = sum(row["weight"] for row in remaining.values()) or 1.0
        fair = {id: usable * row["weight"] / total_weight for id, row in remaining.items()}
        capped = [id for id, row in remaining.items() if row["max_gpus"] is not None and row["max_gpus"] <= fair[id]]
        for id in capped or list(remaining):
            parts[id] = float(remaining[id]["max_gpus"]) if capped else fair[id]
            usable -= parts[id]
            del remaining[id]
    return {id: {**row, "entitled_gpus": round(parts[id], 1) if id in parts else None} for id, row in tenants.items()}


def _largest(nodes: list[Row], reserved: Set[int]) -> list[Row]:
    """Return free whole GPUs per model, in total (a gang can span nodes) and on the best node. Devices slowed down by
    heat are left out, as the scheduler does not use them, and those that are `reserved` now, as most jobs may not."""
    models: dict[str, list[int]] = {}
    for node in nodes:
        free: dict[str, int] = {}
        for device in node["devices"]:
            is_free = device["cell"] == "free" and not device["is_slowed"] and device["id"] not in reserved
            free[device["model"]] = free.get(device["model"], 0) + is_free
        for model, count in free.items():
            models.setdefault(model, []).append(count)
    return [
        {"model": model, "gpus": sum(counts), "on_one_node": max(counts)} for model, counts in sorted(models.items())
    ]


def _next(loaded: Sequence[Row], visible: Sequence[int] | None) -> Iterator[Row]:
    """Yield the viewer's first jobs that only wait for capacity, with their places."""
    visible_rows = [row for row in loaded if visible is None or row["tenant_id"] in visible]
    for place, row in enumerate(visible_rows[:_MAX_NEXT], 1):
        names = ("id", "name", "gpu_count")
        yield {
            **{name: row[name] for name in names},
            "place": place,
            "sentence": row["told"] and row["told"]["sentence"],
        }


def _waiting(loaded: Row, visible: Sequence[int] | None) -> Iterator[Row]:
    """Yield the queue by reason, with the viewer's first waiting job as an example."""
    codes: dict[str, Row] = {}
    for row in loaded["waiting"]:
        code = row["reason"]
        group = codes.setdefault(
            code, {"code": code, "jobs": 0, "gpus": 0, "example_id": None, "example_sentence": None}
        )
        group["jobs"] += row["jobs"]
        group["gpus"] += row["gpus"]
        if group["example_id"] is None and (visible is None or row["tenant_id"] in visible):
            group["example_id"] = row["id"]
            group["example_sentence"] = row["told"] and row["told"]["sentence"]
    yield from codes.values()


TOPICS = (
    Topic(
        "overview",
        lambda _, loaded: load(loaded["nodes"].nodes, loaded["tenants"]),
        lambda rows, _, viewer: restrict(rows, viewer.visible),
        needs=("nodes", "tenants"),
        invalidated_by=frozenset({"jobs", "nodes", "tenants", "assignments", "reservations"}),
        period_seconds=1.0,
        pause_seconds=0.25,
    ),
)
