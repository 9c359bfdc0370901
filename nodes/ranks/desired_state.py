"""Compute what should run on each node, as the messages for its agent."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

import msgspec

from gpusched.lib.db.sql import prepared
from gpusched.protocol.agent_messages import Desired, Limit, RankSpec, Run, Stop, rank_key
from gpusched.protocol.reasons import EndReason
from gpusched.protocol.states import JobState, RankState
from tenants import secrets

# Agents refuse messages over 16 MiB, and a job's script alone may take 6 MiB.
MAX_RUN_BYTES = 4 << 20
NO_LIMITS: Mapping[int, Mapping[str, int]] = {}
_LIVE = """
    SELECT s.id, s.node_id, s.job_id, s.number, s.rank, s.state, j.state AS job_state, j.attempt, j.stop_reason,
           j.grace_seconds, j.max_runtime_seconds, j.limit_version, s.limit_version AS limit_in_force,
           j.signal_count,
           j.stop_reason = 'node_fault' AND j.stop_evidence->>'node' <> n.name AS is_bystander,
           s.state = 'assigned' AND EXISTS (
               SELECT 1 FROM nodes_assignment o JOIN nodes_node m ON m.id = o.node_id
                WHERE o.attempt_id = s.attempt_id AND o.node_id <> s.node_id AND o.state = 'assigned'
                  AND (m.state <> 'online' OR m.last_seen_at < clock_timestamp() - interval '8 seconds')) AS is_early
      FROM nodes_assignment s JOIN jobs_all j ON j.id = s.job_id JOIN nodes_node n ON n.id = s.node_id
     WHERE s.node_id = ANY(%s) AND s.state <> 'ended'
     ORDER BY s.job_id, s.rank
"""


def live_ranks(node_ids: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """Return the assignments of each node that have not ended."""
    ranks_of: dict[int, list[dict[str, Any]]] = {node_id: [] for node_id in node_ids}
    for row in prepared(_LIVE, [list(node_ids)]):
        ranks_of[row["node_id"]].append(row)
    return ranks_of


def desired(
    rows_of: Mapping[int, list[dict[str, Any]]],
    agent_keys: Mapping[int, Sequence[str]],
    sent_runs: Mapping[int, Set[str]],
    limits: Mapping[int, Mapping[str, int]] = NO_LIMITS,
) -> dict[int, Desired]:
    """Return the orders for each node: run assigned ranks that have not started, stop ranks of stopping jobs, and stop
    ranks that the agent has (`agent_keys`) but that are no longer assigned to it. `sent_runs`: rank keys whose run
    order was sent a moment ago and need not be sent again. `limits`: the versions of changed time limits in force
    there."""
    to_run = [
        row["id"]
        for node_id, rows in rows_of.items()
        for row in rows
        if _is_to_run(row) and key_of(row) not in sent_runs.get(node_id, ())
    ]
    specs = _specs(to_run) if to_run else {}
    answers = {}
    for node_id, rows in rows_of.items():
        orders: list[Run | Stop] = []
        assigned = set()
        size = 0  # of all run orders, sent or not
        for row in rows:
            key = key_of(row)
            assigned.add(key)
            if row["id"] in specs:
                # Always send the first order, however large; the next answers carry the others.
                is_first = size == 0
                size += len(msgspec.json.encode(specs[row["id"]]))
                if is_first or size <= MAX_RUN_BYTES:
                    orders.append(Run(key=key, spec=specs[row["id"]]))
            elif _is_to_stop(row):
                # The other nodes of a gang are not at fault, and must not be cordoned for it.
                reason = EndReason.RANK_FAILED if row["is_bystander"] else row["stop_reason"] or EndReason.SUPERSEDED
                orders.append(Stop(key=key, reason=reason, grace_seconds=row["grace_seconds"]))
        unassigned = [key for key in agent_keys.get(node_id, ()) if key not in assigned]
        orders += [Stop(key=key, reason=EndReason.SUPERSEDED) for key in unassigned]
        changed = [limit for row in rows if (limit := _limit(row, limits.get(node_id, {})))]
        answers[node_id] = Desired(assignments=orders, limits=changed)
    return answers


def key_of(row: dict[str, Any]) -> str:
    """Return the rank key of an assignment."""
    return rank_key(row["job_id"], row["number"], row["rank"])


def _is_to_stop(row: dict[str, Any]) -> bool:
    return bool(row["job_state"] == JobState.STOPPING or row["attempt"] != row["number"])


def _is_to_run(row: dict[str, Any]) -> bool:
    """Not if `is_early`: a gang starts together, so no rank starts while the node of another rank is silent."""
    return row["state"] == RankState.ASSIGNED and not _is_to_stop(row) and not row["is_early"]


def _limit(row: dict[str, Any], agent_versions: Mapping[str, int]) -> Limit | None:
    """Return the time limit if it changed after the rank's run order and the agent does not have it yet."""
    key, version = key_of(row), row["limit_version"]
    if version <= agent_versions.get(key, 0) or row["max_runtime_seconds"] is None or row["attempt"] != row["number"]:
        return None
    return Limit(key=key, version=version, max_runtime_seconds=row["max_runtime_seconds"])


_SPECS = """
    SELECT s.id, s.job_id, s.number, s.rank, a.ranks, j.name, w.payload, j.array_index, j.gpu_memory_mb, j.gpu_sharing,
           w.traceparent, j.cpu_milli, j.memory_mb, j.max_runtime_seconds, j.limit_version, j.grace_seconds,
           head.hostname AS head, head.name AS head_name, own.id = head.id AS is_head,
           own.hostname = head.hostname AS is_named_alike, own.boot_id = head.boot_id AS is_one_boot,
           t.unix_user, t.name AS tenant,
           CASE WHEN w.payload->'secrets' <> '[]' THEN
                (SELECT jsonb_object_agg(k.name, k.sealed) FROM tenants_secrets k
                  WHERE k.tenant_id = j.tenant_id AND w.payload->'secrets' ? k.name) END AS sealed,
           (SELECT coalesce(array_agg(d.uuid ORDER BY d.index), '{}') FROM nodes_device d
             WHERE d.node_id = s.node_id AND s.device_ids @> to_jsonb(d.id)) AS uuids
      FROM nodes_assignment s
      JOIN jobs_all j ON j.id = s.job_id
      JOIN jobs_all w ON w.id = coalesce(j.array_id, j.id)
      JOIN tenants_all t ON t.id = j.tenant_id
      JOIN jobs_attempts a ON a.id = s.attempt_id
      JOIN nodes_node own ON own.id = s.node_id
      JOIN nodes_assignment s0 ON s0.attempt_id = s.attempt_id AND s0.rank = 0
      JOIN nodes_node head ON head.id = s0.node_id
     WHERE s.id = ANY(%s)
"""


def _specs(assignment_ids: Sequence[int]) -> dict[int, RankSpec]:
    return {row["id"]: _rank_spec(row) for row in prepared(_SPECS, [list(assignment_ids)])}


def _rank_spec(row: dict[str, Any]) -> RankSpec:
    payload, ranks = row["payload"], row["ranks"]
    # Unsealed here, so that a new value applies from the next attempt on. An error in the secrets of one job goes into
    # its own order and must not block the orders for other jobs.
    values, unfit = secrets.unseal(row["sealed"] or {}, payload.get("secrets", []), row["tenant"])
    return RankSpec(
        job_id=row["job_id"],
        attempt=row["number"],
        rank=row["rank"],
        ranks=ranks,
        name=row["name"],
        argv=[*payload["command"], *payload["args"]],
        script=payload["script"],
        workdir=payload["workdir"],
        environment={**payload["environment"], **_element_environment(row["array_index"])},
        traceparent=row["traceparent"],
        user=row["unix_user"],
        secrets=values,
        unfit=unfit,
        image=payload.get("image"),
        runtime=payload.get("runtime", "auto"),
        mounts=payload.get("mounts", []),
        device_uuids=row["uuids"],
        gpu_memory_mb=row["gpu_memory_mb"] if row["gpu_sharing"] == "shared" else None,
        cpu_cores=row["cpu_milli"] / 1000 / ranks,
        memory_mb=row["memory_mb"] // ranks,
        max_runtime_seconds=row["max_runtime_seconds"],
        limit_version=row["limit_version"],
        grace_seconds=row["grace_seconds"],
        master_addr=_head_address(row) if ranks > 1 else None,
        master_port=_port(row["job_id"], row["number"]) if ranks > 1 else None,
    )


def _element_environment(index: int | None) -> dict[str, str]:
    """Return the variables of an array element. Agents see them as the job's own and need no notion of arrays."""
    return {} if index is None else {"GPUSCHED_ARRAY_INDEX": str(index)}


def _head_address(row: dict[str, Any]) -> str:
    """Return the host of rank 0: loopback on the same machine, which can be several pretend nodes. If another machine
    has the same host name, as copies of one image do, only the name of the node tells them apart."""
    if row["is_head"] or (row["is_named_alike"] and row["is_one_boot"]):
        return "127.0.0.1"
    return str(row["head_name"] if row["is_named_alike"] else row["head"])


def _port(job_id: int, attempt: int) -> int:
    """Return a port below the ephemeral range that neighbouring jobs and attempts do not share."""
    return 10_000 + (job_id * 31 + attempt) % 20_000
