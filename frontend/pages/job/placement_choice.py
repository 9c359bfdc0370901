"""Where a job could have gone when it was placed, and the words for what decided."""

from typing import Any

from gpusched.lib.db.sql import query


def represent(job_id: int, attempt: int) -> dict[str, Any]:
    """`placed`: what was kept of that placement (`considered`, and how many `ranks`), None without one; `has_wishes`:
    whether taints or preferences told the nodes apart; `rules` and `meanings`: what the policy's rule and the columns
    are in words."""
    placed = query("SELECT considered, ranks FROM jobs_attempts WHERE job_id = %s AND number = %s", [job_id, attempt])
    candidates = placed[0]["considered"].get("candidates", ()) if placed else ()
    # Attempts from before there were taints have neither.
    has_wishes = any(candidate.get("taints") or candidate.get("preferred") for candidate in candidates)
    return {"placed": placed[0] if placed else None, "has_wishes": has_wishes, "rules": _RULES, "meanings": _MEANINGS}


# What decides where several nodes have room, by the policy's `placement`.
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
