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
    has_wishes = any(one.get("taints") or one.get("preferred") for one in candidates)
    return {"placed": placed[0] if placed else None, "has_wishes": has_wishes, "rules": _RULES, "meanings": _MEANINGS}


# What decides where several nodes have room, by the policy's `placement`.
_RULES = {
    "fragmentation": "the place that spoils the least for the requests of late",
    "best_fit": "the node with the least left of everything",
    "packing": "shared GPUs in use first, then nodes in use",
    "tightest": "the tightest fit",
}


_MEANINGS = {
    "hot": "how many of the GPUs that it would get are hot: the fewer, the better",
    "avoided": "taints PreferNoSchedule of the node that the job does not tolerate: the fewer, the better",
    "preferred": "the weights of the job's preferences that the node meets: the more, the better",
    "locality": "how many of its ranks would not get GPUs that are near each other (NVLink, NUMA) as it prefers",
    "wasted": "how many of the free GPUs the requests of late could use no more; less than 0: it takes up such GPUs",
    "score": "what the policy counts: the least is the best",
    "taken": "of the GPUs that nobody is on: a smaller GPU is taken before a larger one",
    "left": "GPUs of the node that nobody would be on",
    "alike": "nodes with room that are no better and no worse; it goes to one of them",
}
