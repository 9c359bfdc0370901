"""One cycle of decisions: walks the queue in policy order, places what fits, promises, and explains the rest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heapreplace
from math import inf
from operator import attrgetter

from scheduling.engine.accounts import Accounts, Block
from scheduling.engine.backfill import End, Guard, ends_at, ends_of, reserve
from scheduling.engine.board import Board
from scheduling.engine.claims import claimed
from scheduling.engine.explain import Scene, not_yet, preempt_delay, reclaim_pending
from scheduling.engine.fairshare import standings
from scheduling.engine.feasibility import Verdict, fits, least_use, matching
from scheduling.engine.model import (
    Claim,
    Job,
    Key,
    Placement,
    Plan,
    Policy,
    RankPlacement,
    Request,
    Reservation,
    Running,
    Snapshot,
)
from scheduling.engine.ordering import Bucket, Lane, Queue, band
from scheduling.engine.placement import place
from scheduling.engine.policies import rules_of
from scheduling.engine.preemption import Victims
from scheduling.engine.quotas import Use, gpu_memory_of, models_of, use_of
from scheduling.engine.scorers import scorer_of
from scheduling.engine.shapes import Shape
from scheduling.engine.split import limits_now
from scheduling.engine.verdicts import Outcome, Refused, reasons
from scheduling.engine.within import spared, within_limits


def plan(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
    """What starts now and where, and why each other job waits. Pure: equal snapshots give equal plans.

    Units as in `model`. Every job and every running job must name a tenant of the snapshot; lists may come in any
    order. Raises ValueError for a policy that nobody has defined.

    A waiting job starts unless it exceeds a limit of its tenant, has no room, or would delay the one job that holds
    the reservation: the first in order that has no room (see `backfill.reserve` for the bound that this gives).
    """
    cycle = _Cycle(snapshot, policy, now)
    cycle.run()
    outcome = Outcome(cycle.scene, cycle.groups.shapes, cycle.accounts.tenants, cycle.promised, cycle.reservation)
    found = tuple(reasons(outcome, cycle.refused, cycle.told))
    preemptions = tuple(cycle.victims.preemptions)
    return Plan(tuple(cycle.placements), found, cycle.reservation, preemptions, tuple(cycle.claims))


@dataclass(slots=True)
class _Groups:
    """What is known of each distinct request in this cycle. The board only fills up, so a failure is final."""

    shapes: list[Shape]
    least: list[Use]
    full: set[int] = field(default_factory=set)
    full_for_long: set[int] = field(default_factory=set)


class _Cycle:
    """The state of one walk through the queue."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self.snapshot, self.policy, self.now = snapshot, policy, now
        self.rules = rules_of(policy.name)
        self.board = Board(snapshot.nodes, thermal=policy.thermal, running=snapshot.running)
        self.placements: list[Placement] = []
        self.claims: list[Claim] = []
        self.scene = Scene(snapshot, policy, self.board, self.placements, self.claims)
        self.turn = self.rules.turn(snapshot, policy, now)
        self.queue = Queue(
            snapshot.jobs, self.turn.first(), now, snapshot.claims, self.job_key if self.rules.sorts_alike else None
        )
        self.board.scorer = scorer_of(snapshot.mix or _waiting(self.queue), self.board, policy)
        shapes = [Shape(request, self.board, policy) for request in self.queue.requests]
        least = [least_use(request, self.scene.inventory, policy) for request in self.queue.requests]
        self.groups = _Groups(shapes, least)
        self.cluster_cpu_milli = sum(node.cpu_milli for node in snapshot.nodes)
        self.standings = standings(snapshot.tenants, policy)
        self.accounts = Accounts(snapshot.tenants, limits_now(snapshot, policy, now, self._fits_in_service))
        self.counts_memory = any(tenant.max_gpu_memory_mb is not None for tenant in snapshot.tenants)
        devices = [device for node in snapshot.nodes for device in node.devices]
        self.device_memory = {device.id: device.memory_mb for device in devices} if self.counts_memory else {}
        self.device_models = {device.id: device.model for device in devices} if self.accounts.counts_models else {}
        self.uses: dict[int, Use] = {}
        self.ends = ends_of(snapshot.running, policy, now)
        self._count_running()
        self.guard: Guard | None = None
        self.promised: Job | None = None  # the job of the guard's reservation
        self.refused: list[Refused] = []
        self.is_blocked = False  # by a job that has no room, under a policy that lets none pass it
        self.jobs_ahead = self.gpus_ahead = 0
        self.victims = Victims(snapshot, policy, now, self.standings)
        # What is known of single jobs: they wait for those that were stopped for them, or may stop somebody later.
        self.told: dict[int, Verdict] = {job.id: not_yet(job) for job in self.queue.later}

    @property
    def reservation(self) -> Reservation | None:
        return None if self.guard is None else self.guard.reservation

    def _count_running(self) -> None:
        # In a fixed order, as the shares are sums of floats.
        bounds = {end.job_id: end.at for end in self.ends}
        for job in sorted(self.snapshot.running, key=attrgetter("job_id")):
            bound = bounds[job.job_id]
            self._count(job, job.ranks, bound, bound)

    def _count(self, job: Job | Running, ranks: tuple[RankPlacement, ...], until: float, bound: float) -> None:
        self.standings[job.tenant_id].add(job.request, self.cluster_cpu_milli)
        self.accounts.take(job, self._use(job, ranks), until, bound)

    def _use(self, job: Job | Running, ranks: tuple[RankPlacement, ...]) -> Use:
        request = job.request
        if not (self.counts_memory or self.device_models):
            # It depends on the request alone, and jobs share theirs.
            known = self.uses.get(id(request))
            if known is None:
                known = self.uses[id(request)] = use_of(request, 0, ())
            return known
        gpu_memory_mb = gpu_memory_of(request, ranks, self.device_memory) if self.counts_memory else 0
        return use_of(request, gpu_memory_mb, models_of(ranks, self.device_models) if self.device_models else ())

    def job_key(self, job: Job) -> Key:
        return self.rules.job_key(job, self.policy, self.now)

    def run(self) -> None:
        """Serve the lane that comes first, one bucket or job at a time, until no lane is left."""
        for bucket in self.queue.claiming:
            self._serve_claim(bucket)
        lanes = self._lanes()
        order = [(self._lane_key(lane), lane.number) for lane in lanes]
        heapify(order)
        while order:
            key, number = order[0]
            lane = lanes[number]
            current = self._lane_key(lane)
            if current == key:
                self._serve(lane, lane.buckets[0][1])
                if not lane.buckets:
                    heappop(order)
                    continue
                current = self._lane_key(lane)
            if current != key:
                heapreplace(order, (current, number))

    def _lane_key(self, lane: Lane) -> Key:
        return self.rules.lane_key(self.standings[lane.tenant_id], lane.buckets[0][0], lane.is_promised)

    def _lanes(self) -> list[Lane]:
        """One per tenant; and one for the promised job, unless its tenant has more urgent work by now."""
        buckets = self.queue.buckets
        lanes: list[Lane] = []
        if self.queue.promised is not None:
            tenant_id, bucket = self.queue.promised
            own = buckets.setdefault(tenant_id, [])
            if any(band(other.head.priority) > band(bucket.head.priority) for other in own):
                own.append(bucket)
            else:
                lanes.append(Lane(0, tenant_id, is_promised=True))
                lanes[0].start(self.job_key, [bucket])
        for tenant_id in sorted(buckets):
            if buckets[tenant_id]:
                lanes.append(Lane(len(lanes), tenant_id))
                lanes[-1].start(self.job_key, buckets[tenant_id])
        return lanes

    def _serve(self, lane: Lane, bucket: Bucket) -> None:
        job, group = bucket.head, bucket.group
        least = self.groups.least[group]
        until = ends_at(job.max_runtime_seconds, self.now)
        block = self.accounts.block(job, least, until)
        if block is not None:
            self._refuse_for_limit(lane, bucket, least, block)
            return
        ranks = self._place(group, until)
        if ranks is None:
            self._refuse_for_room(lane, bucket, until)
            return
        ranks, use, block = self._within_limits(job, group, ranks, until)
        if block is not None:
            self._refuse_for_limit(lane, bucket, use, block)
            return
        self._start(job, ranks, until)
        lane.advance(self.job_key)

    def _within_limits(
        self, job: Job, group: int, ranks: tuple[RankPlacement, ...], until: float
    ) -> tuple[tuple[RankPlacement, ...], Use, Block | None]:
        def blocked(ranks: tuple[RankPlacement, ...]) -> tuple[Use, Block | None]:
            use = self._use(job, ranks)
            return use, self.accounts.block(job, use, until)

        return within_limits(
            self._board_for(until), self.groups.shapes[group], ranks, blocked, partial(self._spared, job, group)
        )

    def _is_within(self, job: Job, ranks: tuple[RankPlacement, ...], until: float) -> bool:
        return self.accounts.block(job, self._use(job, ranks), until) is None

    def _spared(self, job: Job, group: int) -> Shape:
        return spared(self.accounts, self.board, self.policy, job, self.groups.shapes[group])

    def _board_for(self, until: float) -> Board:
        return self.board if self.guard is None or until <= self.guard.reservation.at else self.guard.lasting

    def _place(self, group: int, until: float) -> tuple[RankPlacement, ...] | None:
        board = self._board_for(until)
        if (
            self.is_blocked
            or group in self.groups.full
            or (board is not self.board and group in self.groups.full_for_long)
        ):
            return None
        shape = self.groups.shapes[group]
        ranks = place(board, shape)
        if ranks is None:
            self.groups.full_for_long.add(group)
            # Where there is no room at all, no job of the group need be asked whether it is short enough to pass.
            if board is self.board or place(self.board, shape) is None:
                self.groups.full.add(group)
        return ranks

    def _start(self, job: Job, ranks: tuple[RankPlacement, ...], until: float) -> None:
        self.placements.append(Placement(job.id, ranks))
        self.board.take(ranks)
        if self.guard is not None:
            self.guard.take(self.board, ranks, until)
        self.ends.append(End(self._bound(until), job.id, ranks))
        self._count_started(job, ranks, until)

    def _bound(self, until: float) -> float:
        return self.now + self.policy.unlimited_runtime_seconds if until == inf else until

    def _count_started(self, job: Job, ranks: tuple[RankPlacement, ...], until: float) -> None:
        self._count(job, ranks, until, self._bound(until))
        self.victims.started(job)
        self.turn.started(job)

    def _refuse_for_limit(self, lane: Lane, bucket: Bucket, use: Use, block: Block) -> None:
        job = bucket.head
        others = self.accounts.others(job, block)
        if block.promise is not None:
            self._refuse(lane, bucket, block, block.promise.at, others)
            return
        if not self.accounts.is_exceeded_by(job, use):
            if lane.is_promised and self.guard is None:
                # Its tenant's own short jobs passed it and use the limit for now; its place stays promised.
                self._reserve(job, bucket.group, use)
            else:
                self.accounts.keep(job, use, self.now)
        self._refuse(lane, bucket, block, None, others)

    def _serve_claim(self, bucket: Bucket) -> None:
        """Others were stopped for this job: it starts, or what they give back is kept for it until it does."""
        job, group = bucket.head, bucket.group
        shape, least = self.groups.shapes[group], self.groups.least[group]
        until = ends_at(job.max_runtime_seconds, self.now)
        promised = next(claim.ranks for claim in self.snapshot.claims if claim.job_id == job.id)
        if self.accounts.block(job, least, until) is None:
            ranks = claimed(self.board, shape, promised)
            if ranks is not None and self._is_within(job, ranks, until):
                self._start(job, ranks, until)
                return
            # Whatever stops there: a victim that was cancelled meanwhile gives back the same.
            stopping = self._stopping(lambda node_id: any(node_id == rank.node_id for rank in promised))
            ranks = claimed(self.board, shape, promised, stopping) if stopping else None
            if ranks is not None and self._is_within(job, ranks, until):
                self._claim(job, ranks, until, stopping)
                return
        self.queue.put_back(bucket)

    def _stopping(self, is_there: Callable[[int], bool]) -> list[Running]:
        """What has been told to end, whatever for, on such nodes."""
        stopping = [one for one in self.snapshot.running if one.is_stopping]
        return [one for one in stopping if any(is_there(rank.node_id) for rank in one.ranks)]

    def _claim(self, job: Job, ranks: tuple[RankPlacement, ...], until: float, stopping: Sequence[Running]) -> None:
        self.board.withhold(ranks)
        if self.guard is not None:
            self.guard.withhold(self.board, ranks, until)
        self._count_started(job, ranks, until)
        self.claims.append(Claim(job.id, ranks))
        self.told[job.id] = reclaim_pending(stopping, self.now)

    def _preempt(self, job: Job, group: int, until: float) -> bool:
        """Stop others for a job that has no room, if the rules allow it and its delay is over."""
        shape, board = self._spared(job, group), self._board_for(until)
        closed = self.guard.node_ids if self.guard is not None else frozenset[int]()
        if not self._fits_in_service(job):
            return False
        may_at = max(job.queued_at, job.eligible_at) + self.policy.preemption_delay_seconds
        stopping = self._stopping(lambda node_id: node_id not in closed)
        if stopping and claimed(board, shape, None, stopping) is not None:
            return False  # it need only wait for those that end anyway
        found = self.victims.search(board, shape, job, closed=closed)
        if found is not None and not self._is_within(job, found.preemption.ranks, until):
            return False
        if found is not None and may_at <= self.now:
            self.victims.stop(found)
            self._claim(job, found.preemption.ranks, until, found.victims)
            return True
        found = found or self.victims.search(board, shape, job, closed=closed, ready_only=False)
        if found is not None:
            self.told[job.id] = preempt_delay(max(may_at, found.ready_at), len(found.victims))
        return False

    def _refuse_for_room(self, lane: Lane, bucket: Bucket, until: float) -> None:
        if (
            self.rules.is_live
            and self.victims.may_preempt(bucket.head)
            and self._preempt(bucket.head, bucket.group, until)
        ):
            lane.advance(self.job_key)
            return
        guard = self.guard
        if guard is None and self.turn.may_reserve(bucket.head):
            self._reserve(bucket.head, bucket.group, self.groups.least[bucket.group])
        self.is_blocked = self.rules.head_blocks
        is_full = bucket.group in self.groups.full
        at = None if is_full or guard is None else guard.reservation.at
        refused = self._refuse(lane, bucket, None, at)
        self.jobs_ahead += len(refused)
        self.gpus_ahead += len(refused) * self.groups.shapes[bucket.group].request.gpu_count

    def _refuse(
        self,
        lane: Lane,
        bucket: Bucket,
        cause: Block | None,
        at: float | None,
        others: Callable[[Job], bool] | None = None,
    ) -> list[Job]:
        """`at`: jobs that end by then may still pass; `others`: these may, too."""
        may_pass = None if at is None else partial(_ends_by, now=self.now, at=at)
        jobs = lane.refuse(self.job_key, _either(may_pass, others))
        self.refused.append(Refused(jobs, bucket.group, cause, self.jobs_ahead, self.gpus_ahead))
        return jobs

    def _fits_in_service(self, job: Job) -> bool:
        return fits(job.request, matching(job.request, self.scene.in_service), self.policy)

    def _reserve(self, job: Job, group: int, use: Use) -> None:
        """Promise the job its place and its tenant's limits, if what runs now is all that it waits for."""
        shape = self._spared(job, group)
        by_limits = self.accounts.earliest(job, use, self.now)
        if by_limits == inf or not self._fits_in_service(job):
            return
        found = reserve(self.board, shape, job.id, self.ends, self.now, by_limits)
        if found is None:
            return
        reservation, future = found
        self.guard = Guard(reservation, self.board, future)
        self.promised = job
        self.accounts.promise(job, use, reservation.at)


def _waiting(queue: Queue) -> list[tuple[Request, float]]:
    """The mix of what waits: each distinct request and how many jobs make it."""
    counts = [0.0] * len(queue.requests)
    for buckets in queue.buckets.values():
        for bucket in buckets:
            counts[bucket.group] += len(bucket.jobs)
    return list(zip(queue.requests, counts, strict=True))


def _ends_by(job: Job, now: float, at: float) -> bool:
    return ends_at(job.max_runtime_seconds, now) <= at


def _either(one: Callable[[Job], bool] | None, other: Callable[[Job], bool] | None) -> Callable[[Job], bool] | None:
    if one is None or other is None:
        return one or other
    return lambda job: one(job) or other(job)
