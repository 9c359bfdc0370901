"""The rows of topic `overview`: what is broken, what is held but idle, who waits and why, and what could start now."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from frontend import tenantrows
from gpusched.lib.sql import query
from gpusched.protocol.states import DeviceHealth, NodeState
from jobs import representation
from scheduling import services

Row = dict[str, Any]
_FLEET = "/fleet/"

_JOBS = """
    SELECT count(*) FILTER (WHERE state = 'running') AS running_jobs,
           count(*) FILTER (WHERE state = 'pending') AS pending_jobs,
           floor(extract(epoch FROM clock_timestamp() - min(submitted_at) FILTER (WHERE state = 'pending')))::bigint
                AS oldest_wait_seconds,
           floor(percentile_cont(0.9) WITHIN GROUP (ORDER BY extract(epoch FROM clock_timestamp() - submitted_at))
                 FILTER (WHERE state = 'pending'))::bigint AS p90_wait_seconds
      FROM jobs_job WHERE state IN ('pending', 'running')
"""
_WAITING = """
    SELECT DISTINCT ON (tenant_id, reason) tenant_id, id, priority, submitted_at, reason, evidence, reason_since,
           stop_reason, stop_evidence, exit_code, signal, max_runtime_seconds, NULL AS placement,
           count(*) OVER kind AS jobs, (sum(gpu_count) OVER kind)::bigint AS gpus
      FROM jobs_job WHERE state IN ('pending', 'held')
    WINDOW kind AS (PARTITION BY tenant_id, reason)
     ORDER BY tenant_id, reason, priority DESC, submitted_at, id
"""


def load(nodes: list[Row], tenants: dict[int, Row]) -> Row:
    """From what frontend.fleet and frontend.tenantrows have loaded, with three questions more."""
    waiting = query(_WAITING)
    for row in waiting:
        row["told"] = representation.reason(row)
    lag = services.scheduler_lag()
    return {
        "status": _status(nodes, lag),
        "largest": _largest(nodes),
        "attention": list(_attention(nodes, lag)),
        "waiting": sorted(waiting, key=lambda row: (-row["priority"], row["submitted_at"], row["id"])),
        "tenants": tenants,
    }


def restrict(loaded: Row, visible: Sequence[int] | None) -> dict[str, Row]:
    """Numbers are everybody's; examples and tenants are those that the viewer may see."""
    rows: dict[str, Row] = {"status": loaded["status"]}
    rows.update({f"largest:{row['model']}": row for row in loaded["largest"]})
    rows.update({f"attention:{row['kind']}:{name}": row for name, row in loaded["attention"]})
    rows.update({f"waiting:{row['code']}": row for row in _waiting(loaded, visible)})
    own = tenantrows.restrict(loaded["tenants"], visible)
    rows.update({f"tenant:{name}": row for name, row in own.items()})
    return rows


def _status(nodes: list[Row], lag: Row) -> Row:
    cells = Counter(device["cell"] for node in nodes for device in node["devices"])
    [jobs] = query(_JOBS)
    return {
        "total_nodes": len(nodes),
        "online_nodes": sum(node["state"] == NodeState.ONLINE for node in nodes),
        "total_gpus": cells.total(),
        **{f"{cell}_gpus": cells[cell] for cell in ("busy", "held_idle", "free", "unavailable")},
        "pretend_nodes": sum(node["pretend"] for node in nodes),
        **jobs,
        "last_cycle_at": lag["last_cycle_at"],
        "cycle_is_alive": lag["is_alive"],
    }


def _largest(nodes: list[Row]) -> list[Row]:
    """Per model: whole free GPUs altogether (a gang may span nodes) and on the node that has most of them. Devices
    slowed down by heat are free to the eye, but the scheduler offers them to nobody."""
    models: dict[str, list[int]] = {}
    for node in nodes:
        free = Counter({device["model"]: 0 for device in node["devices"]})
        free.update(d["model"] for d in node["devices"] if d["cell"] == "free" and not d["is_slowed"])
        for model, count in free.items():
            models.setdefault(model, []).append(count)
    return [
        {"model": model, "gpus": sum(counts), "on_one_node": max(counts)} for model, counts in sorted(models.items())
    ]


def _attention(nodes: list[Row], lag: Row) -> Iterator[tuple[str, Row]]:
    """(name, row) of each thing that somebody should look at. Job ids are not told: everybody reads these."""
    if not lag["is_alive"]:
        yield "cycle", _notice("scheduler", "red", "the scheduler has not recorded a cycle for a while", None)
    for node in nodes:
        name = node["name"]
        if node["state"] == NodeState.LOST:
            yield name, _notice("lost", "red", f"node {name} does not report any more", _FLEET)
            continue
        bad = Counter(d["health"] for d in node["devices"] if d["health"] != DeviceHealth.OK)
        hot = bad.pop(DeviceHealth.HOT, 0)
        if bad:
            what = ", ".join(f"{count} {health}" for health, count in sorted(bad.items()))
            yield name, _notice("health", "red", f"GPUs of {name} are out of service: {what}", _FLEET)
        if hot:
            slowed = sum(d["is_slowed"] for d in node["devices"])
            what = f"{_gpus(slowed, name)} too hot to take new jobs" if slowed else f"{_gpus(hot, name)} hot"
            yield name, _notice("hot", "amber", what, _FLEET)
        if idle := sum(device["cell"] == "held_idle" for device in node["devices"]):
            yield name, _notice("held_idle", "amber", f"{_gpus(idle, name)} held but idle", _FLEET)


def _notice(kind: str, severity: str, sentence: str, href: str | None) -> Row:
    return {"kind": kind, "severity": severity, "sentence": sentence, "href": href}


def _gpus(count: int, node: str) -> str:
    return f"1 GPU of {node} is" if count == 1 else f"{count} GPUs of {node} are"


def _waiting(loaded: Row, visible: Sequence[int] | None) -> Iterator[Row]:
    """By reason, the whole queue; the example is the viewer's own first job that waits for it."""
    codes: dict[str, Row] = {}
    for row in loaded["waiting"]:
        code = row["reason"]
        found = codes.setdefault(
            code, {"code": code, "jobs": 0, "gpus": 0, "example_id": None, "example_sentence": None}
        )
        found["jobs"] += row["jobs"]
        found["gpus"] += row["gpus"]
        if found["example_id"] is None and (visible is None or row["tenant_id"] in visible):
            found["example_id"] = row["id"]
            found["example_sentence"] = row["told"] and row["told"]["sentence"]
    yield from codes.values()
