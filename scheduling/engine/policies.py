"""Names the policies: each is a composition of the functions that order jobs and tenants."""

from collections.abc import Callable
from dataclasses import dataclass

from scheduling.engine.model import Key, Policy, Snapshot
from scheduling.engine.promise.promise_policy import FirstBlocked, NoPromise, PromisePolicy, Starving
from scheduling.engine.queue.fairshare import TenantUse, by_cost_share, by_head, by_head_within_guarantees, by_share
from scheduling.engine.queue.ordering import JobKey, by_aged_priority, by_arrival, by_cost, by_remaining, by_service


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """`job_key` orders the jobs of one tenant; `lane_key` says which tenant is served next; `turn` says who may be
    promised a place.

    `sorts_alike`: jobs of one request and priority do not simply go by age. `head_blocks`: once a job has no room, no
    other is looked at. `is_live`: a cluster may run by it; the others are for comparison in simulations.
    """

    job_key: JobKey
    lane_key: Callable[[TenantUse, Key, bool], Key]
    turn: Callable[[Snapshot, Policy, float], PromisePolicy] = FirstBlocked
    sorts_alike: bool = False
    head_blocks: bool = False
    is_live: bool = True


POLICIES = {
    "fair": PolicyRules(by_aged_priority, by_share),
    "priority": PolicyRules(by_aged_priority, by_head),
    "cost_aware": PolicyRules(by_cost, by_cost_share, sorts_alike=True),
    "shortest": PolicyRules(by_service, by_head_within_guarantees, Starving, sorts_alike=True),
    # `shortest` without a promise to any job: what the promises cost is measured against it.
    "overtaking": PolicyRules(by_service, by_head_within_guarantees, NoPromise, sorts_alike=True, is_live=False),
    "fifo": PolicyRules(by_arrival, by_head, NoPromise, head_blocks=True, is_live=False),
    # Preemptive, as its simulation asks at each event where all unfinished jobs would go, and moves them there.
    "srtf": PolicyRules(by_remaining, by_head, NoPromise, sorts_alike=True, is_live=False),
}
LIVE_POLICIES = tuple(name for name, rules in POLICIES.items() if rules.is_live)


def policy_rules(name: str) -> PolicyRules:
    """Raises ValueError for a name that no policy has."""
    try:
        return POLICIES[name]
    except KeyError:
        raise ValueError(f"no policy is named {name!r}; there are {', '.join(sorted(POLICIES))}") from None
