"""The rule for jobs with `gpu_memory_mb: "auto"` that run out of GPU memory: one retry with more of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from gpusched.lib.db.sql import columns, query
from gpusched.lib.hooks import hook
from gpusched.protocol.exits import ExitClass
from jobs.lifecycle.attempt_end import AttemptOutcome

# The next attempt gets at least this many times the memory that was too little.
FACTOR = 1.5
# The lowest memory of the GPUs of an attempt; all of it, unless the job shares them.
_DEVICE_MEMORY = """
    SELECT a.job_id, min((d->>'memory_mb')::int) AS memory_mb
      FROM unnest(%s::bigint[], %s::int[]) AS t (job_id, number)
      JOIN jobs_attempt a ON a.job_id = t.job_id AND a.number = t.number
     CROSS JOIN LATERAL jsonb_array_elements(a.placement) AS r
     CROSS JOIN LATERAL jsonb_array_elements(r->'devices') AS d
     GROUP BY a.job_id
"""


def raised_mb(had_mb: int, largest_mb: int | None) -> int | None:
    """Return the amount for a retry after `had_mb` was too little, at most `largest_mb`, the most that any suitable GPU
    can give; None if that is not more."""
    amount = ceil(had_mb * FACTOR) if largest_mb is None else min(ceil(had_mb * FACTOR), largest_mb)
    return amount if amount > had_mb else None


def with_memory(
    outcomes: Sequence[AttemptOutcome], jobs: Mapping[int, dict[str, Any]]
) -> tuple[list[AttemptOutcome], dict[int, int]]:
    """Return the outcomes, with the memory that was too little as evidence of those that this rule is about, and
    {job: the amount for its retry} where more is possible. `jobs`: their rows. No query for other ends."""
    short = [o for o in outcomes if jobs[o.job_id]["is_memory_auto"] and o.evidence.get("class") == ExitClass.CUDA_OOM]
    if not short:
        return list(outcomes), {}
    rows = query(_DEVICE_MEMORY, columns([(o.job_id, o.attempt) for o in short], 2))
    devices = {row["job_id"]: row["memory_mb"] for row in rows}
    had = {o.job_id: _had_mb(jobs[o.job_id], devices.get(o.job_id)) for o in short}
    suitable = {job_id: (tuple(jobs[job_id]["gpu_models"]), _is_shared(jobs[job_id])) for job_id in had}
    largest = {key: hook("largest_gpu_mb")(key[0], is_shared=key[1]) for key in set(suitable.values())}
    raised = {}
    for job_id, had_mb in had.items():
        if had_mb and (amount := raised_mb(had_mb, largest[suitable[job_id]])):
            raised[job_id] = amount
    return [
        replace(o, evidence={**o.evidence, "had_gpu_memory_mb": had[o.job_id]}) if had.get(o.job_id) else o
        for o in outcomes
    ], raised


def _had_mb(job: dict[str, Any], device_mb: int | None) -> int | None:
    """Return the memory that each GPU gave the job; None if that is unknown."""
    requested: int | None = job["gpu_memory_mb"]
    if _is_shared(job):
        return requested
    return max(requested or 0, device_mb or 0) or None


def _is_shared(job: dict[str, Any]) -> bool:
    # Without an amount, a job that would share gets the GPU whole.
    return job["gpu_sharing"] == "shared" and job["gpu_memory_mb"] is not None
