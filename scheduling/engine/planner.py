"""The decisions of one cycle: serves the queue in policy order, starts the jobs that can start, explains the rest."""

from collections.abc import Callable, Iterator
from functools import partial
from heapq import heapify, heappop, heapreplace

from scheduling.engine.allocator import Allocator
from scheduling.engine.explain.booked import insisting, latest_end_of
from scheduling.engine.explain.explain import not_yet
from scheduling.engine.explain.pending_reasons import CycleOutcome, RefusedGroup, pending_reasons
from scheduling.engine.limits.accounts import ExceededLimit
from scheduling.engine.limits.budgets import drop_over_budget
from scheduling.engine.limits.quotas import Use
from scheduling.engine.model import Job, Key, PendingGroup, PendingReason, Plan, Policy, Request, Snapshot
from scheduling.engine.policies import policy_rules
from scheduling.engine.promise.backfill import ends_at
from scheduling.engine.queue.ordering import JobGroup, Queue, TenantQueue, band


def plan(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
    """Return which jobs start now and where, and why each other job waits. Pure: equal snapshots give equal plans.

    Units as in `model`. Every job and every running job must name a tenant of the snapshot; lists may come in any
    order. Raises ValueError for an unknown policy.

    A waiting job starts unless it exceeds a limit of its tenant, does not fit, or would delay the one job that holds
    the promise: the first in order that does not fit (see `backfill.promise` for the resulting bound).
    """
    # 1. Set aside the jobs of tenants whose budget is exhausted.
    snapshot, over_budget = drop_over_budget(snapshot, now)
    # 2. Count the running jobs, and order the queue by the policy.
    cycle = _Cycle(snapshot, policy, now)
    # 3. Place the nominated jobs, for which earlier plans preempted others.
    cycle.place_nominated()
    # 4. Serve the tenants in order: start each job, preempt for it, promise it a place, or refuse it.
    cycle.serve_tenants()
    # 5. Determine why each other job waits.
    groups = (*cycle.pending_groups(), *over_budget)
    # 6. Return the decisions.
    end = cycle.allocator
    return Plan(tuple(end.placements), groups, end.promise, tuple(end.victims.preemptions), tuple(end.nominations))


class _Cycle:
    """The state of one pass through the queue."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self.policy, self.now = policy, now
        self.rules = policy_rules(policy.name)
        promise_policy = self.rules.promise_policy(snapshot, policy, now)
        key = self.job_key if self.rules.sorts_identical else None
        self.queue = Queue(snapshot.jobs, promise_policy.next_job_id(), now, snapshot.claims, key)
        self.allocator = Allocator(snapshot, policy, now, promise_policy, _waiting(self.queue))
        self.refused: list[RefusedGroup] = []
        self.booked_groups: list[tuple[tuple[int, ...], PendingReason]] = []
        self.is_blocked = False  # by a job that does not fit, under a policy that lets no other pass it
        self.jobs_ahead = self.gpus_ahead = 0
        self.hidden_counts = dict(snapshot.behind)

    def place_nominated(self) -> None:
        """Place each nominated job, or put it back into the queue if its nomination no longer holds."""
        has_promise = self.queue.promised is not None
        for group in self.queue.nominated:
            if not self.allocator.place_nominated(group.head, group.request_number, has_promise=has_promise):
                self.queue.put_back(group)

    def serve_tenants(self) -> None:
        """Serve the tenant that comes first, one group or job at a time, until all queues are empty."""
        tenant_queues = self._tenant_queues()
        order = [(self._tenant_key(tenant_queue), tenant_queue.number) for tenant_queue in tenant_queues]
        heapify(order)
        while order:
            key, number = order[0]
            tenant_queue = tenant_queues[number]
            while tenant_queue.groups and (current := self._tenant_key(tenant_queue)) == key:
                self._serve(tenant_queue, tenant_queue.groups[0][1])
            if tenant_queue.groups:
                heapreplace(order, (current, number))
            else:
                heappop(order)

    def pending_groups(self) -> Iterator[PendingGroup]:
        end = self.allocator
        outcome = CycleOutcome(end.cluster, end.requests.shapes, end.accounts.tenants, end.promised, end.promise)
        job_reasons = {job.id: not_yet(job) for job in self.queue.later} | end.job_reasons
        yield from pending_reasons(outcome, self.refused, job_reasons)
        yield from [PendingGroup(job_ids, *reason) for job_ids, reason in self.booked_groups]

    def job_key(self, job: Job) -> Key:
        return self.rules.job_key(job, self.policy, self.now)

    def _tenant_key(self, tenant_queue: TenantQueue) -> Key:
        return self.rules.tenant_key(
            self.allocator.standings[tenant_queue.tenant_id], tenant_queue.groups[0][0], tenant_queue.is_promised
        )

    def _tenant_queues(self) -> list[TenantQueue]:
        """Return one queue per tenant; and one for the promised job, unless its tenant has more urgent work by now."""
        groups = self.queue.groups
        tenant_queues: list[TenantQueue] = []
        if self.queue.promised is not None:
            tenant_id, group = self.queue.promised
            tenant_groups = groups.setdefault(tenant_id, [])
            if any(band(other.head.priority) > band(group.head.priority) for other in tenant_groups):
                tenant_groups.append(group)
            else:
                tenant_queues.append(TenantQueue(0, tenant_id, is_promised=True))
                tenant_queues[0].start(self.job_key, [group])
        for tenant_id in sorted(groups):
            if groups[tenant_id]:
                tenant_queues.append(TenantQueue(len(tenant_queues), tenant_id))
                tenant_queues[-1].start(self.job_key, groups[tenant_id])
        return tenant_queues

    def _serve(self, tenant_queue: TenantQueue, group: JobGroup) -> None:
        job, number = group.head, group.request_number
        minimum_use = self.allocator.requests.minimum_uses[number]
        until = ends_at(job.max_runtime_seconds, self.now)
        block = self.allocator.accounts.block(job, minimum_use, until)
        if block is not None:
            self._refuse_for_limit(tenant_queue, group, minimum_use, block)
            return
        if self.allocator.start_in_booking(job, number):
            tenant_queue.advance(self.job_key)
            return
        if job.booking_id is not None and not self.allocator.may_start_beside(job.booking_id):
            self._refuse_for_booking(tenant_queue, group)
            return
        ranks = None if self.is_blocked else self.allocator.place(job, number, until)
        if ranks is None:
            self._refuse_for_capacity(tenant_queue, group, until)
            return
        ranks, use, block = self.allocator.within_limits(job, number, ranks, until)
        if block is not None:
            self._refuse_for_limit(tenant_queue, group, use, block, self._has_other_places(group))
            return
        self.allocator.start(job, number, ranks, until)
        tenant_queue.advance(self.job_key)

    def _refuse_for_limit(
        self,
        tenant_queue: TenantQueue,
        group: JobGroup,
        use: Use,
        block: ExceededLimit,
        has_other_places: Callable[[Job], bool] | None = None,
    ) -> None:
        job, accounts = group.head, self.allocator.accounts
        unaffected = _either(accounts.unaffected_jobs(job, block), has_other_places)
        if block.promise is not None:
            self._refuse(tenant_queue, group, block, block.promise.at, unaffected)
            return
        if not accounts.is_exceeded_by(job, use):
            if tenant_queue.is_promised and self.allocator.guard is None:
                # Its tenant's own short jobs passed it and use the limit for now; its place stays promised.
                self.allocator.promise_place(job, group.request_number, use)
            else:
                accounts.keep_free(job, use, self.now)
        self._refuse(tenant_queue, group, block, None, unaffected)

    def _refuse_for_capacity(self, tenant_queue: TenantQueue, group: JobGroup, until: float) -> None:
        allocator, number = self.allocator, group.request_number
        if (
            allocator.victims.may_preempt(group.head)
            and self.rules.is_live
            and allocator.preempt(group.head, number, until)
        ):
            tenant_queue.advance(self.job_key)
            return
        guard = allocator.guard
        if guard is None and allocator.promise_policy.may_promise(group.head):
            allocator.promise_place(group.head, number, allocator.requests.minimum_uses[number])
        may_preempt = self._may_preempt(group) if self.rules.is_live else None
        self.is_blocked = self.rules.head_blocks
        if allocator.bookings is not None:
            unaffected = _either(self._unaffected_by_bookings(group), may_preempt)
            refused = self._refuse(tenant_queue, group, None, None, unaffected)
        else:
            is_full = number in allocator.requests.full
            at = None if is_full or guard is None else guard.promise.at
            refused = self._refuse(tenant_queue, group, None, at, may_preempt)
        self.jobs_ahead += refused
        self.gpus_ahead += refused * group.head.request.gpu_count

    def _refuse_for_booking(self, tenant_queue: TenantQueue, group: JobGroup) -> None:
        """Refuse a job that insists on a booking that has not started, or has no room for it."""
        number = group.request_number
        can_use = partial(self.allocator.can_use_booking, number=number)
        job_ids = tenant_queue.refuse(self.job_key, can_use)
        self.booked_groups.append((job_ids, insisting(self.allocator.cluster, group.head)))

    def _level(self, job: Job) -> int:
        """Return the level of the job among the bookings: more devices are open to a lower one."""
        bookings = self.allocator.bookings
        return 0 if bookings is None else bookings.level(latest_end_of(bookings, job))

    def _has_other_places(self, group: JobGroup) -> Callable[[Job], bool] | None:
        """Return which jobs end before a booking or the promise that an identical one would cross: they have more
        places, which may count less for the limits; None: that does not matter."""
        guard, level = self.allocator.guard, self._level(group.head)
        ends_early = None
        if guard is not None and not _ends_by(group.head, self.now, guard.promise.at):
            ends_early = partial(_ends_by, now=self.now, at=guard.promise.at)
        return _either(ends_early, (lambda job: self._level(job) < level) if level else None)

    def _may_preempt(self, group: JobGroup) -> Callable[[Job], bool] | None:
        """Return which jobs may preempt others though an identical one has no victims: those that end before bookings
        that it would cross, and those of the other class; None: none of them."""
        allocator, head = self.allocator, group.head
        victims, level = allocator.victims, self._level
        if victims.lowest is None or (allocator.bookings is None and victims.split is None):
            return None
        if victims.split is None and not victims.may_preempt(head):
            return None  # nor may the others, which differ in their ends alone

        def differs(job: Job) -> bool:
            return level(job) < level(head) or (victims.split is not None and job.is_online is not head.is_online)

        # The one of the lowest level of each class has victims if any has.
        lowest: dict[bool, Job] = {}
        for job in sorted(group.passing_variants(differs).values(), key=level, reverse=True):
            lowest[job.is_online] = job
        classes = [is_online for is_online, job in lowest.items() if allocator.has_victims(job, group.request_number)]
        return (lambda job: job.is_online in classes and differs(job)) if classes else None

    def _unaffected_by_bookings(self, group: JobGroup) -> Callable[[Job], bool] | None:
        """Return which jobs may start though an identical one does not fit: in a booking, or before one starts; None:
        none of them."""
        number = group.request_number
        can_use_booking = self.allocator.own_bookings.has_room(group.head, number)
        if not can_use_booking and (self.is_blocked or self.allocator.is_full_for_all(number)):
            return None
        if self.is_blocked:
            return partial(self.allocator.can_use_booking, number=number)
        return partial(self.allocator.may_fit, number=number)

    def _refuse(
        self,
        tenant_queue: TenantQueue,
        group: JobGroup,
        cause: ExceededLimit | None,
        at: float | None,
        unaffected: Callable[[Job], bool] | None = None,
    ) -> int:
        """Return how many jobs stay behind. Jobs that end by `at` may still pass, and so may `unaffected` ones."""
        may_pass = unaffected
        if at is not None:
            may_pass = _either(partial(_ends_by, now=self.now, at=at), unaffected)
        job = group.head
        job_ids = tenant_queue.refuse(self.job_key, may_pass)
        self.refused.append(RefusedGroup(job, job_ids, group.request_number, cause, self.jobs_ahead, self.gpus_ahead))
        if not self.hidden_counts:
            return len(job_ids)
        return len(job_ids) + sum([self.hidden_counts.get(job_id, 0) for job_id in job_ids])


def _waiting(queue: Queue) -> list[tuple[Request, float]]:
    """Return the request mix of the queue: each distinct request and its number of jobs."""
    counts = [0.0] * len(queue.requests)
    for groups in queue.groups.values():
        for group in groups:
            counts[group.request_number] += len(group.jobs)
    return list(zip(queue.requests, counts, strict=True))


def _ends_by(job: Job, now: float, at: float) -> bool:
    return ends_at(job.max_runtime_seconds, now) <= at


def _either(first: Callable[[Job], bool] | None, second: Callable[[Job], bool] | None) -> Callable[[Job], bool] | None:
    if first is None or second is None:
        return first or second
    return lambda job: first(job) or second(job)
