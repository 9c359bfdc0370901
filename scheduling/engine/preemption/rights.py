"""Determines by which rule a running job may be stopped for a waiting one."""

from typing import NamedTuple

from scheduling.engine.model import RunningJob
from scheduling.engine.queue.ordering import band


class PreemptionRights(NamedTuple):
    """The right of a waiting job to preempt others. `is_covered`: its tenant's guarantee covers it;
    `is_online_covered`: the online capacity does; `is_beyond_batch`: it would borrow online capacity, so it may not
    take from it."""

    tenant_id: int
    band: int
    is_covered: bool
    is_online_covered: bool
    is_beyond_batch: bool

    def rule(self, victim: RunningJob) -> str:
        """Return the rule by which the victim may be stopped; empty: by none. A job without GPUs borrows none."""
        if band(victim.priority) < self.band and not (self.is_beyond_batch and victim.is_online):
            return "priority"
        if not victim.request.gpu_count:
            return ""
        if self.is_covered and victim.tenant_id != self.tenant_id:
            return "reclaim"
        return "online" if self.is_online_covered and not victim.is_online else ""
