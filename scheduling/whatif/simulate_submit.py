"""Simulate a submit: run the same plan() with an additional job, and write nothing."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from gpusched.lib.db.sql import query
from gpusched.protocol import reasons
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.job_request import JobRequest
from scheduling.auto_memory import advice
from scheduling.cycle.array_heads import elements_worth_planning
from scheduling.cycle.request_shapes import with_constraints
from scheduling.cycle.snapshot import require_unix_user
from scheduling.engine.model import ELEMENT_ID_STEP, DeviceHold, Job, Preemption, RankPlacement, Request, Snapshot
from scheduling.engine.whatif import questions
from scheduling.engine.whatif.questions import Present
from scheduling.history.current import order_seconds
from scheduling.history.shown import kind_of_row, predicted_of_row
from scheduling.whatif import current
from scheduling.whatif.client import ask
from scheduling.whatif.presenters import present_change, present_estimate, present_reason

# The id of the simulated job: after all others, and without a claim or promise.
_NEWEST = ELEMENT_ID_STEP - 1
_MAX_ELEMENTS = 10_000


def simulate(request: JobRequest, row: dict[str, Any], visible: Collection[int] | None) -> dict[str, Any]:
    """Return the answer of POST /jobs/simulate (docs/rest.md). `row`: the columns of the job. `visible`: the tenants
    whose jobs can be named; None: all."""
    return {**_answer(request, row, visible), "predicted": predicted_of_row(row), "advice": advice(request, row)}


def _answer(request: JobRequest, row: dict[str, Any], visible: Collection[int] | None) -> dict[str, Any]:
    view = current.take_snapshot()
    job = _job(request, row, view)
    jobs = [replace(job, id=job.id + n * ELEMENT_ID_STEP) for n in range(_elements(request.array, job, view.snapshot))]
    is_small = len(view.snapshot.jobs) + len(jobs) <= current.MAX_JOBS
    result = ask(view, questions.simulated, jobs, current.median_limit_use() if is_small else None)
    if job.id in result.started:
        answer = _represent_start(result.started[job.id], view.snapshot)
        return answer if request.array is None else _represent_array(answer, len(result.started), request)
    reason, estimate = result.reason, current.calibrated(result.estimate, view.now)
    sentence = reasons.sentence(reason.code, reason.evidence) if reason else ""
    return _simulation(
        reasons.would_wait(sentence),
        reason=reason and present_reason(reason),
        estimate=estimate and present_estimate(estimate, result.blockers, visible),
        estimate_reason=None if estimate else current.why_no_outlook_estimate(),
        victims=_victims(result.preemption, view.snapshot, visible),
        alternatives=[present_change(change, starts=True) for change in result.alternatives],
    )


def _elements(array: ArrayRequest | None, job: Job, snapshot: Snapshot) -> int:
    """Return how many elements could start at once."""
    if array is None:
        return 1
    return int(
        min(array.count, array.max_parallel or array.count, elements_worth_planning(snapshot.nodes, _MAX_ELEMENTS)(job))
    )


def _represent_array(answer: dict[str, Any], number: int, request: JobRequest) -> dict[str, Any]:
    """Represent the start of an array, with the placement of its first element."""
    assert request.array is not None
    place = answer["sentence"].removeprefix("it would start now ")
    sentence = f"{number} of its {request.array.count} elements would start now, the first {place}"
    return {**answer, "sentence": sentence}


def to_engine_request(request: JobRequest, tenant_id: int) -> Request:
    """Convert a job request to the engine's request."""
    engine_request = Request(
        gpu_count=request.gpu_count,
        gpu_memory_mb=request.fixed_gpu_memory_mb,
        gpu_models=request.gpu_models,
        shared=request.gpu_sharing == "shared",
        cpu_milli=ceil(request.cpu_cores * 1000),
        memory_mb=request.memory_mb,
        gang=request.gang_scheduling,
        ranks=request.ranks,
        node_selector=tuple(sorted(request.required_labels.items())),
        topology=str(request.topology),
        apart=f"{tenant_id}/{request.anti_affinity}" if request.anti_affinity else "",
    )
    return with_constraints(engine_request, request.node_affinity, request.tolerations)


def _job(request: JobRequest, row: dict[str, Any], view: Present) -> Job:
    eligible_at = row["eligible_at"]
    job = Job(
        id=_NEWEST,
        tenant_id=row["tenant_id"],
        request=to_engine_request(request, row["tenant_id"]),
        priority=row["priority"],
        user_id=row["user_id"],
        queued_at=view.now,
        eligible_at=eligible_at.timestamp() if eligible_at else 0.0,
        max_runtime_seconds=row["max_runtime_seconds"],
        predicted_seconds=_predicted_seconds(row, view),
        is_online=row["workload_class"] == "online",
        booking_id=row["reservation"],
        grace_seconds=float(row["grace_seconds"]),
    )
    return require_unix_user(job)


def _predicted_seconds(row: dict[str, Any], view: Present) -> float | None:
    """Return the submitter's expectation, or else the run time by which the scheduler would order the job."""
    if row["predicted_seconds"] is not None:
        return float(row["predicted_seconds"])
    return order_seconds(kind_of_row(row), view.now, row["max_runtime_seconds"])


def _represent_start(ranks: Sequence[RankPlacement], snapshot: Snapshot) -> dict[str, Any]:
    nodes = {node.id: node.name for node in snapshot.nodes}
    placement = [{"rank": rank.rank, "node": nodes[rank.node_id], **_gpus(rank.holds)} for rank in ranks]
    names = ", ".join(sorted({rank["node"] for rank in placement}))
    return _simulation(f"it would start now on {names}", starts_now=True, placement=placement)


def _simulation(sentence: str, **fields: Any) -> dict[str, Any]:
    unknown = dict.fromkeys(("reason", "estimate", "estimate_reason", "victims"))
    return {"starts_now": False, "sentence": sentence, "placement": [], **unknown, "alternatives": [], **fields}


def _gpus(holds: Sequence[DeviceHold]) -> dict[str, Any]:
    ids = [hold.device_id for hold in holds]
    rows = query("SELECT index, model FROM nodes_devices WHERE id = ANY(%s) ORDER BY index", [ids]) if ids else []
    return {"gpus": [row["index"] for row in rows], "models": sorted({row["model"] for row in rows})}


def _victims(
    preemption: Preemption | None, snapshot: Snapshot, visible: Collection[int] | None
) -> dict[str, Any] | None:
    """Represent the victims of a preemption. Jobs of tenants that the caller cannot see are counted, not named."""
    if preemption is None:
        return None
    running = [job for job in snapshot.running if job.job_id in preemption.victims]
    visible_ids = sorted(job.job_id for job in running if visible is None or job.tenant_id in visible)
    return {
        "jobs": len(running),
        "gpus": sum(job.request.gpu_count for job in running),
        "rule": preemption.rule,
        "lost_gpu_seconds": round(preemption.lost_gpu_seconds),
        "own_jobs": visible_ids,
    }
