"""What should run on nodes, as the messages that their agents get."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

import msgspec

from gpusched.lib.db.sql import prepared
from gpusched.protocol.agent_messages import Desired, Limit, RankSpec, Run, Stop, rank_key
from gpusched.protocol.reasons import EndReason
from gpusched.protocol.states import JobState, RankState
from tenants import secrets

# Agents refuse messages of 16 MiB; a job's script alone may have six.
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
    """The assignments of each node that have not ended."""
    found: dict[int, list[dict[str, Any]]] = {node_id: [] for node_id in node_ids}
    for row in prepared(_LIVE, [list(node_ids)]):
        found[row["node_id"]].append(row)
    return found


def desired(
    rows_of: Mapping[int, list[dict[str, Any]]],
    held: Mapping[int, Sequence[str]],
    told: Mapping[int, Set[str]],
    limits: Mapping[int, Mapping[str, int]] = NO_LIMITS,
) -> dict[int, Desired]:
    """For each node: run what is assigned and not started, stop what is to stop, and stop what the agent holds
    (`held`, keys by node) although nobody wants it (any more). `told`: keys that the node was told a moment ago to
    run; they need not be spelled out again. `limits`: the versions of changed time limits that are in force there."""
    to_run = [
        row["id"]
        for node_id, rows in rows_of.items()
        for row in rows
        if _is_to_run(row) and _key(row) not in told.get(node_id, ())
    ]
    specs = _specs(to_run) if to_run else {}
    answers = {}
    for node_id, rows in rows_of.items():
        orders: list[Run | Stop] = []
        wanted = set()
        size = 0  # of what is to run, sent or not
        for row in rows:
            key = _key(row)
            wanted.add(key)
            if row["id"] in specs:
                # The first is always sent, however large and whatever is to stop; the rest comes with the next answers.
                is_first = size == 0
                size += len(msgspec.json.encode(specs[row["id"]]))
                if is_first or size <= MAX_RUN_BYTES:
                    orders.append(Run(key=key, spec=specs[row["id"]]))
            elif _is_to_stop(row):
                # The other nodes of a gang are not at fault, and must not be held for it.
                reason = EndReason.RANK_FAILED if row["is_bystander"] else row["stop_reason"] or EndReason.SUPERSEDED
                orders.append(Stop(key=key, reason=reason, grace_seconds=row["grace_seconds"]))
        unwanted = [key for key in held.get(node_id, ()) if key not in wanted]
        orders += [Stop(key=key, reason=EndReason.SUPERSEDED) for key in unwanted]
        changed = [limit for row in rows if (limit := _limit(row, limits.get(node_id, {})))]
        answers[node_id] = Desired(assignments=orders, limits=changed)
    return answers


def _key(row: dict[str, Any]) -> str:
    return rank_key(row["job_id"], row["number"], row["rank"])


def _is_to_stop(row: dict[str, Any]) -> bool:
    return bool(row["job_state"] == JobState.STOPPING or row["attempt"] != row["number"])


def _is_to_run(row: dict[str, Any]) -> bool:
    """Not `is_early`: a gang starts together, or not at all, so none starts while a node of another is silent."""
    return row["state"] == RankState.ASSIGNED and not _is_to_stop(row) and not row["is_early"]


def _limit(row: dict[str, Any], known: Mapping[str, int]) -> Limit | None:
    """The time limit that was changed since the rank was told to run, unless its agent has it."""
    key, version = _key(row), row["limit_version"]
    if version <= known.get(key, 0) or row["max_runtime_seconds"] is None or row["attempt"] != row["number"]:
        return None
    return Limit(key=key, version=version, max_runtime_seconds=row["max_runtime_seconds"])


_SPECS = """
    SELECT s.id, s.job_id, s.number, s.rank, a.ranks, j.name, w.payload, j.array_index, j.gpu_memory_mb, j.gpu_sharing,
           w.traceparent, j.cpu_milli, j.memory_mb, j.max_runtime_seconds, j.limit_version, j.grace_seconds,
           head.hostname AS head, own.hostname AS own, t.unix_user, t.name AS tenant,
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
    # Read now: a secret with a new value has it from the next attempt on. What is wrong with those of one job must not
    # keep the node from hearing of the others.
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
        environment={**payload["environment"], **_of_element(row["array_index"])},
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


def _of_element(index: int | None) -> dict[str, str]:
    """Sent as the job's own, so that agents need not know of arrays."""
    return {} if index is None else {"GPUSCHED_ARRAY_INDEX": str(index)}


def _head_address(row: dict[str, Any]) -> str:
    """Where rank 0 listens: loopback when it is the same machine, which needs no name service."""
    return "127.0.0.1" if row["head"] == row["own"] else row["head"]


def _port(job_id: int, attempt: int) -> int:
    """A port below the ephemeral range that neighbouring jobs and attempts do not share."""
    return 10_000 + (job_id * 31 + attempt) % 20_000
