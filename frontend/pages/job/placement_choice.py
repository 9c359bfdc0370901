"""Candidate nodes of a placement, and descriptions of the criteria."""

from typing import Any

from gpusched.lib.db.sql import query


def represent(job_id: int, attempt: int) -> dict[str, Any]:
    """Return `placed`: the recorded placement (`considered` and number of `ranks`) or None; `has_wishes`: whether
    taints or preferences distinguished nodes; `rules` and `meanings`: descriptions of the policy's rules and the
    columns."""
    placed = query("SELECT considered, ranks FROM jobs_attempts WHERE job_id = %s AND number = %s", [job_id, attempt])
    candidates = placed[0]["considered"].get("candidates", ()) if placed else ()
    # Attempts recorded before taints existed have neither.
    has_wishes = any(candidate.get("taints") or candidate.get("preferred") for candidate in candidates)
    return {"placed": placed[0] if placed else None, "has_wishes": has_wishes, "rules": _RULES, "meanings": _MEANINGS}


# The deciding rule if several nodes have room, by the policy's `placement`.
_RULES = {
    "fragmentation": "the least fragmentation for recent requests",
    "best_fit": "the node with the least capacity left",
    "packing": "shared GPUs in use first, then nodes in use",
    "tightest": "the tightest fit",
}


_MEANINGS = {
    "hot": "hot GPUs that the job would get; fewer is better",
    "avoided": "PreferNoSchedule taints of the node that the job does not tolerate; fewer is better",
    "preferred": "the total weight of the job's preferences that the node meets; more is better",
    "locality": "ranks that would not get GPUs near each other (NVLink, NUMA) as the job prefers",
    "wasted": "free GPUs that recent requests could no longer use; less than 0: it uses up such GPUs",
    "score": "the policy's score; the lowest is best",
    "taken": "memory of GPUs that no job uses yet; a smaller GPU is taken before a larger one",
    "left": "GPUs of the node that would stay free",
    "alike": "other nodes with room that rank equally; the job goes to one of them",
}
