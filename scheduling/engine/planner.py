"""One cycle of decisions: walks the queue in policy order, starts what may start, and explains the rest."""

from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heapreplace

from scheduling.engine.allocator import Allocator
from scheduling.engine.explain.explain import not_yet
from scheduling.engine.explain.pending_reasons import CycleOutcome, RefusedGroup, pending_reasons
from scheduling.engine.limits.accounts import ExceededLimit
from scheduling.engine.limits.budgets import drop_over_budget
from scheduling.engine.limits.quotas import Use
from scheduling.engine.model import Job, Key, Plan, Policy, Request, Snapshot
from scheduling.engine.policies import policy_rules
from scheduling.engine.promise.backfill import ends_at
from scheduling.engine.queue.ordering import JobGroup, Queue, TenantQueue, band


def plan(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
    """What starts now and where, and why each other job waits. Pure: equal snapshots give equal plans.

    Units as in `model`. Every job and every running job must name a tenant of the snapshot; lists may come in any
    order. Raises ValueError for a policy that nobody has defined.

    A waiting job starts unless it exceeds a limit of its tenant, has no room, or would delay the one job that holds
    the reservation: the first in order that has no room (see `backfill.reserve` for the bound that this gives).
    """
    snapshot, unaffordable = drop_over_budget(snapshot, now)
    cycle = _Cycle(snapshot, policy, now)
    cycle.run()
    deal = cycle.deal
    outcome = CycleOutcome(deal.scene, deal.groups.shapes, deal.accounts.tenants, deal.promised, deal.reservation)
    told = {job.id: not_yet(job) for job in cycle.queue.later} | deal.told
    found = (*pending_reasons(outcome, cycle.refused, told), *unaffordable)
    return Plan(tuple(deal.placements), found, deal.reservation, tuple(deal.victims.preemptions), tuple(deal.claims))


class _Cycle:
    """The state of one walk through the queue."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self.policy, self.now = policy, now
        self.rules = policy_rules(policy.name)
        turn = self.rules.turn(snapshot, policy, now)
        self.queue = Queue(
            snapshot.jobs, turn.first(), now, snapshot.claims, self.job_key if self.rules.sorts_alike else None
        )
        self.deal = Allocator(snapshot, policy, now, turn, _waiting(self.queue))
        self.refused: list[RefusedGroup] = []
        self.is_blocked = False  # by a job that has no room, under a policy that lets none pass it
        self.jobs_ahead = self.gpus_ahead = 0
        self.behind = dict(snapshot.behind)

    def run(self) -> None:
        """Serve the lane that comes first, one bucket or job at a time, until no lane is left."""
        for bucket in self.queue.claiming:
            if not self.deal.redeem(bucket.head, bucket.group):
                self.queue.put_back(bucket)
        lanes = self._lanes()
        order = [(self._lane_key(lane), lane.number) for lane in lanes]
        heapify(order)
        while order:
            key, number = order[0]
            lane = lanes[number]
            while lane.buckets and (current := self._lane_key(lane)) == key:
                self._serve(lane, lane.buckets[0][1])
            if lane.buckets:
                heapreplace(order, (current, number))
            else:
                heappop(order)

    def job_key(self, job: Job) -> Key:
        return self.rules.job_key(job, self.policy, self.now)

    def _lane_key(self, lane: TenantQueue) -> Key:
        return self.rules.lane_key(self.deal.standings[lane.tenant_id], lane.buckets[0][0], lane.is_promised)

    def _lanes(self) -> list[TenantQueue]:
        """One per tenant; and one for the promised job, unless its tenant has more urgent work by now."""
        buckets = self.queue.buckets
        lanes: list[TenantQueue] = []
        if self.queue.promised is not None:
            tenant_id, bucket = self.queue.promised
            own = buckets.setdefault(tenant_id, [])
            if any(band(other.head.priority) > band(bucket.head.priority) for other in own):
                own.append(bucket)
            else:
                lanes.append(TenantQueue(0, tenant_id, is_promised=True))
                lanes[0].start(self.job_key, [bucket])
        for tenant_id in sorted(buckets):
            if buckets[tenant_id]:
                lanes.append(TenantQueue(len(lanes), tenant_id))
                lanes[-1].start(self.job_key, buckets[tenant_id])
        return lanes

    def _serve(self, lane: TenantQueue, bucket: JobGroup) -> None:
        job, group = bucket.head, bucket.group
        least = self.deal.groups.least[group]
        until = ends_at(job.max_runtime_seconds, self.now)
        block = self.deal.accounts.block(job, least, until)
        if block is not None:
            self._refuse_for_limit(lane, bucket, least, block)
            return
        ranks = None if self.is_blocked else self.deal.place(group, until)
        if ranks is None:
            self._refuse_for_room(lane, bucket, until)
            return
        ranks, use, block = self.deal.within_limits(job, group, ranks, until)
        if block is not None:
            self._refuse_for_limit(lane, bucket, use, block)
            return
        self.deal.start(job, bucket.group, ranks, until)
        lane.advance(self.job_key)

    def _refuse_for_limit(self, lane: TenantQueue, bucket: JobGroup, use: Use, block: ExceededLimit) -> None:
        job = bucket.head
        others = self.deal.accounts.others(job, block)
        if block.promise is not None:
            self._refuse(lane, bucket, block, block.promise.at, others)
            return
        if not self.deal.accounts.is_exceeded_by(job, use):
            if lane.is_promised and self.deal.guard is None:
                # Its tenant's own short jobs passed it and use the limit for now; its place stays promised.
                self.deal.reserve(job, bucket.group, use)
            else:
                self.deal.accounts.keep(job, use, self.now)
        self._refuse(lane, bucket, block, None, others)

    def _refuse_for_room(self, lane: TenantQueue, bucket: JobGroup, until: float) -> None:
        if (
            self.deal.victims.may_preempt(bucket.head)
            and self.rules.is_live
            and self.deal.preempt(bucket.head, bucket.group, until)
        ):
            lane.advance(self.job_key)
            return
        guard = self.deal.guard
        if guard is None and self.deal.turn.may_reserve(bucket.head):
            self.deal.reserve(bucket.head, bucket.group, self.deal.groups.least[bucket.group])
        self.is_blocked = self.rules.head_blocks
        is_full = bucket.group in self.deal.groups.full
        at = None if is_full or guard is None else guard.reservation.at
        refused = self._refuse(lane, bucket, None, at)
        self.jobs_ahead += refused
        self.gpus_ahead += refused * bucket.head.request.gpu_count

    def _refuse(
        self,
        lane: TenantQueue,
        bucket: JobGroup,
        cause: ExceededLimit | None,
        at: float | None,
        others: Callable[[Job], bool] | None = None,
    ) -> int:
        """Says how many stay behind. `at`: jobs that end by then may still pass; `others`: these may, too."""
        may_pass = others
        if at is not None:
            may_pass = _either(partial(_ends_by, now=self.now, at=at), others)
        job = bucket.head
        job_ids = lane.refuse(self.job_key, may_pass)
        self.refused.append(RefusedGroup(job, job_ids, bucket.group, cause, self.jobs_ahead, self.gpus_ahead))
        return len(job_ids) + (sum([self.behind.get(job_id, 0) for job_id in job_ids]) if self.behind else 0)


def _waiting(queue: Queue) -> list[tuple[Request, float]]:
    """The mix of what waits: each distinct request and how many jobs make it."""
    counts = [0.0] * len(queue.requests)
    for buckets in queue.buckets.values():
        for bucket in buckets:
            counts[bucket.group] += len(bucket.jobs)
    return list(zip(queue.requests, counts, strict=True))


def _ends_by(job: Job, now: float, at: float) -> bool:
    return ends_at(job.max_runtime_seconds, now) <= at


def _either(one: Callable[[Job], bool], other: Callable[[Job], bool] | None) -> Callable[[Job], bool]:
    return one if other is None else lambda job: one(job) or other(job)
