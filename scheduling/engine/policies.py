"""Names the policies: each is a composition of the functions that order jobs and tenants."""

from collections.abc import Callable
from dataclasses import dataclass

from scheduling.engine.fairshare import Standing, by_head, by_share
from scheduling.engine.model import Key
from scheduling.engine.ordering import JobKey, by_aged_priority


@dataclass(frozen=True, slots=True)
class Rules:
    """`job_key` orders the jobs of one tenant; `lane_key` says which tenant is served next."""

    job_key: JobKey
    lane_key: Callable[[Standing, Key, bool], Key]


POLICIES = {
    "fair": Rules(job_key=by_aged_priority, lane_key=by_share),
    "priority": Rules(job_key=by_aged_priority, lane_key=by_head),
}


def rules_of(name: str) -> Rules:
    """Raises ValueError for a name that no policy has."""
    try:
        return POLICIES[name]
    except KeyError:
        raise ValueError(f"no policy is named {name!r}; there are {', '.join(sorted(POLICIES))}") from None
