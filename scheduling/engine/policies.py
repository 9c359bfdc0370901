"""Defines the policies: each combines the functions that order jobs and tenants."""

from collections.abc import Callable
from dataclasses import dataclass

from scheduling.engine.model import Key, Policy, Snapshot
from scheduling.engine.promise.promise_policy import FirstBlocked, NoPromise, PromisePolicy, Starving
from scheduling.engine.queue.fairshare import TenantUse, by_cost_share, by_head, by_head_within_guarantees, by_share
from scheduling.engine.queue.ordering import JobKey, by_aged_priority, by_arrival, by_cost, by_remaining, by_service


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """The functions of a policy: `job_key` orders the jobs of one tenant; `tenant_key` orders the tenants;
    `promise_policy` chooses the job that may be promised a place.

    `sorts_identical`: identical jobs are not ordered by age alone. `head_blocks`: once a job does not fit, no later job
    may start. `is_live`: a cluster may run by it; the others are for comparison in simulations.
    """

    job_key: JobKey
    tenant_key: Callable[[TenantUse, Key, bool], Key]
    promise_policy: Callable[[Snapshot, Policy, float], PromisePolicy] = FirstBlocked
    sorts_identical: bool = False
    head_blocks: bool = False
    is_live: bool = True


POLICIES = {
    "fair": PolicyRules(by_aged_priority, by_share),
    "priority": PolicyRules(by_aged_priority, by_head),
    "cost_aware": PolicyRules(by_cost, by_cost_share, sorts_identical=True),
    "shortest": PolicyRules(by_service, by_head_within_guarantees, Starving, sorts_identical=True),
    # `shortest` without promises, as the reference by which the cost of promises is measured.
    "overtaking": PolicyRules(by_service, by_head_within_guarantees, NoPromise, sorts_identical=True, is_live=False),
    "fifo": PolicyRules(by_arrival, by_head, NoPromise, head_blocks=True, is_live=False),
    # Preemptive: its simulation plans all unfinished jobs anew at each event, and moves them accordingly.
    "srtf": PolicyRules(by_remaining, by_head, NoPromise, sorts_identical=True, is_live=False),
}
LIVE_POLICIES = tuple(name for name, rules in POLICIES.items() if rules.is_live)


def policy_rules(name: str) -> PolicyRules:
    """Return the rules of a policy. Raises ValueError for an unknown name."""
    try:
        return POLICIES[name]
    except KeyError:
        raise ValueError(f"no policy is named {name!r}; there are {', '.join(sorted(POLICIES))}") from None
