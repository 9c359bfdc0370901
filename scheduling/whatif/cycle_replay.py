"""Replay a recorded cycle: the recorded plan, whether the engine still makes it, and the plan of another policy."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpusched.lib.api.problems import invalid, not_found
from gpusched.protocol import reasons
from gpusched.protocol.job_request import FieldError
from scheduling.cycle import recorded_cycles, recording
from scheduling.engine.explain.explain import timestamp
from scheduling.engine.model import Placement, Plan, Snapshot, public_id
from scheduling.engine.policies import LIVE_POLICIES
from scheduling.engine.whatif import replay as engine
from scheduling.engine.whatif.questions import Present
from scheduling.engine.whatif.replay import Replayed, placement_of
from scheduling.whatif.client import ask
from scheduling.whatif.presenters import present_change, present_reason

# Maximum ids per pending reason, and per list of jobs that two policies treat differently.
MAX_IDS = 100


def replay(
    cycle_id: int, policy: str | None = None, job_id: int | None = None, node: str | None = None
) -> dict[str, Any]:
    """Return a recorded cycle, planned again by the recorded policy or by the queue order `policy`.

    `job_id`: also why that job starts there or waits. `node`: and why it does not start on that node. Raise Problem 400
    for a policy that does not exist, 404 for a cycle, job or node that is not recorded."""
    if policy is not None and policy not in LIVE_POLICIES:
        raise invalid([FieldError("policy", "invalid_choice", f"must be one of {', '.join(LIVE_POLICIES)}")])
    if node is not None and job_id is None:
        raise invalid([FieldError("job_id", "required", "is required with node")])
    read = recorded_cycles.load(cycle_id)
    recorded = read.recording
    engine_id = None if job_id is None else _engine_id(recorded.snapshot, cycle_id, job_id)
    node_id = None if node is None else _node_id(recorded.snapshot, cycle_id, node)
    rules = recorded.policy if policy is None else replace(recorded.policy, name=policy)
    view = Present(recorded.snapshot, rules, recorded.now)
    replayed = ask(view, engine.replay, engine_id, node_id)
    is_recorded_policy = rules == recorded.policy
    names = {node_record.id: node_record.name for node_record in recorded.snapshot.nodes}
    return {
        "cycle_id": cycle_id,
        "decided_at": timestamp(recorded.now),
        "recorded_policy": recorded.policy.name,
        "policy": rules.name,
        "is_same": recording.encode_plan(replayed.plan) == read.plan if is_recorded_policy else None,
        **_plan(replayed.plan, names),
        **_differences(recorded.plan, replayed.plan),
        "job": None if engine_id is None else _job(engine_id, node, replayed, names),
    }


def _engine_id(snapshot: Snapshot, cycle_id: int, job_id: int) -> int:
    """Return the engine's id of a job, or of the next element of an array."""
    engine_id = next((job.id for job in snapshot.jobs if public_id(job.id) == job_id), None)
    if engine_id is None:
        raise not_found(f"job {job_id} that waits in cycle {cycle_id}", "omit job_id to list the jobs of this cycle")
    return engine_id


def _node_id(snapshot: Snapshot, cycle_id: int, name: str) -> int:
    node_id = next((node.id for node in snapshot.nodes if node.name == name), None)
    if node_id is None:
        raise not_found(f"node {name} in cycle {cycle_id}", "check the name")
    return node_id


def _plan(plan: Plan, names: dict[int, str]) -> dict[str, Any]:
    promise = plan.reservation
    return {
        "placements": [
            {"job_id": public_id(item.job_id), "nodes": _nodes(item, names), "gpus": _gpus(item)}
            for item in plan.placements
        ],
        "preemptions": [
            {"job_id": public_id(item.job_id), "victims": list(item.victims), "rule": item.rule}
            for item in plan.preemptions
        ],
        "waits": [
            {
                "code": wait.code,
                "sentence": reasons.sentence(wait.code, wait.evidence),
                "jobs": len(wait.job_ids),
                "job_ids": _ids(wait.job_ids),
            }
            for wait in plan.waits
        ],
        "promised_job_id": public_id(promise.job_id) if promise else None,
        "promised_at": timestamp(promise.at) if promise else None,
    }


def _differences(recorded: Plan, replayed: Plan) -> dict[str, list[int]]:
    """Return the jobs that start in only one of the two plans."""
    original, after = ({placement.job_id for placement in plan.placements} for plan in (recorded, replayed))
    return {"starts_only_recorded": _ids(sorted(original - after)), "starts_only_here": _ids(sorted(after - original))}


def _ids(job_ids: Sequence[int]) -> list[int]:
    return [public_id(job_id) for job_id in job_ids[:MAX_IDS]]


def _job(engine_id: int, node: str | None, replayed: Replayed, names: dict[int, str]) -> dict[str, Any]:
    placed = placement_of(replayed.plan, engine_id)
    steps = replayed.steps
    return {
        "job_id": public_id(engine_id),
        "starts": placed is not None,
        "nodes": _nodes(placed, names) if placed else [],
        "reason": present_reason(steps[0].reason) if steps else None,
        "changes": [
            present_change(step.change, starts=step.starts, then=then.reason if then else None)["sentence"]
            for step, then in zip(steps, [*steps[1:], None], strict=True)
            if step.change is not None
        ],
        "node": node,
        "obstacles": [{"test": obstacle.name, "sentence": obstacle.sentence} for obstacle in replayed.obstacles],
    }


def _nodes(placement: Placement, names: dict[int, str]) -> list[str]:
    return sorted({names[rank.node_id] for rank in placement.ranks})


def _gpus(placement: Placement) -> int:
    return sum(len(rank.holds) for rank in placement.ranks)
