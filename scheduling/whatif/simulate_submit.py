"""Says what would become of a request if it were submitted now: the same plan() with one job more. Writes nothing."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from gpusched.lib.db.sql import query
from gpusched.protocol import reasons
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.job_request import JobRequest
from scheduling.cycle.array_heads import elements_worth_planning
from scheduling.cycle.request_shapes import with_constraints
from scheduling.engine.model import ELEMENT_ID_STEP, DeviceHold, Job, Preemption, RankPlacement, Request, Snapshot
from scheduling.engine.whatif import questions
from scheduling.engine.whatif.questions import Present
from scheduling.whatif import current
from scheduling.whatif.client import ask
from scheduling.whatif.presenters import present_change, present_estimate, present_reason

# Of the job that does not exist: later than all others, and nobody's claim or promise.
_NEWEST = ELEMENT_ID_STEP - 1
_MAX_ELEMENTS = 10_000


def simulate(request: JobRequest, row: dict[str, Any], visible: Collection[int] | None) -> dict[str, Any]:
    """The answer of POST /jobs/simulate (docs/rest.md). `row`: the columns that the job would have. `visible`: the
    tenants whose jobs may be named; None: all."""
    here = current.take_snapshot()
    job = _job(request, row, here)
    jobs = [replace(job, id=job.id + n * ELEMENT_ID_STEP) for n in range(_elements(request.array, job, here.snapshot))]
    is_small = len(here.snapshot.jobs) + len(jobs) <= current.MAX_JOBS
    found = ask(here, questions.simulated, jobs, current.median_limit_use() if is_small else None)
    if job.id in found.started:
        told = _started(found.started[job.id], here.snapshot)
        return told if request.array is None else _of_array(told, len(found.started), request)
    reason, estimate = found.reason, current.calibrated(found.estimate, here.now)
    sentence = reasons.sentence(reason.code, reason.evidence) if reason else ""
    return _simulation(
        reasons.would_wait(sentence),
        reason=reason and present_reason(reason),
        estimate=estimate and present_estimate(estimate, found.blockers, visible),
        estimate_reason=None if estimate else current.why_unseen(),
        victims=_victims(found.preemption, here.snapshot, visible),
        alternatives=[present_change(change, starts=True) for change in found.alternatives],
    )


def _elements(array: ArrayRequest | None, job: Job, here: Snapshot) -> int:
    """How many of them could start at once."""
    if array is None:
        return 1
    return int(
        min(array.count, array.max_parallel or array.count, elements_worth_planning(here.nodes, _MAX_ELEMENTS)(job))
    )


def _of_array(found: dict[str, Any], number: int, request: JobRequest) -> dict[str, Any]:
    """Of an array: the place is that of its first element."""
    assert request.array is not None
    where = found["sentence"].removeprefix("it would start now ")
    said = f"{number} of its {request.array.count} elements would start now, the first {where}"
    return {**found, "sentence": said}


def to_engine_request(request: JobRequest, tenant_id: int) -> Request:
    """What the engine is asked for."""
    found = Request(
        gpu_count=request.gpu_count,
        gpu_memory_mb=request.gpu_memory_mb,
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
    return with_constraints(found, request.node_affinity, request.tolerations)


def _job(request: JobRequest, row: dict[str, Any], here: Present) -> Job:
    eligible_at = row["eligible_at"]
    return Job(
        id=_NEWEST,
        tenant_id=row["tenant_id"],
        request=to_engine_request(request, row["tenant_id"]),
        priority=row["priority"],
        user_id=row["user_id"],
        queued_at=here.now,
        eligible_at=eligible_at.timestamp() if eligible_at else 0.0,
        max_runtime_seconds=row["max_runtime_seconds"],
        predicted_seconds=row["predicted_seconds"],
        is_online=row["workload_class"] == "online",
    )


def _started(ranks: Sequence[RankPlacement], here: Snapshot) -> dict[str, Any]:
    nodes = {node.id: node.name for node in here.nodes}
    placement = [{"rank": one.rank, "node": nodes[one.node_id], **_gpus(one.holds)} for one in ranks]
    where = ", ".join(sorted({one["node"] for one in placement}))
    return _simulation(f"it would start now on {where}", starts_now=True, placement=placement)


def _simulation(sentence: str, **found: Any) -> dict[str, Any]:
    unknown = dict.fromkeys(("reason", "estimate", "estimate_reason", "victims"))
    return {"starts_now": False, "sentence": sentence, "placement": [], **unknown, "alternatives": [], **found}


def _gpus(holds: Sequence[DeviceHold]) -> dict[str, Any]:
    ids = [hold.device_id for hold in holds]
    found = query("SELECT index, model FROM nodes_devices WHERE id = ANY(%s) ORDER BY index", [ids]) if ids else []
    return {"gpus": [row["index"] for row in found], "models": sorted({row["model"] for row in found})}


def _victims(preemption: Preemption | None, here: Snapshot, visible: Collection[int] | None) -> dict[str, Any] | None:
    """Whom it would preempt. Jobs of tenants that the asker may not see are counted, not named."""
    if preemption is None:
        return None
    running = [one for one in here.running if one.job_id in preemption.victims]
    own = sorted(one.job_id for one in running if visible is None or one.tenant_id in visible)
    return {
        "jobs": len(running),
        "gpus": sum(one.request.gpu_count for one in running),
        "rule": preemption.rule,
        "lost_gpu_seconds": round(preemption.lost_gpu_seconds),
        "own_jobs": own,
    }
