"""Deals out what the cluster has, one job at a time, and keeps count: places, starts, claims, promises."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from scheduling.engine.board.board import Board
from scheduling.engine.board.shapes import Shape
from scheduling.engine.explain.explain import ClusterState, preempt_delay, reclaim_pending
from scheduling.engine.explain.feasibility import least_use
from scheduling.engine.explain.inventory import eligible, fits
from scheduling.engine.limits.accounts import Accounts, ExceededLimit
from scheduling.engine.limits.online_split import limits_now
from scheduling.engine.limits.quotas import Use, gpu_memory_of, models_of, use_of
from scheduling.engine.model import (
    Job,
    Nomination,
    PendingReason,
    Placement,
    Policy,
    Promise,
    RankPlacement,
    Request,
    RunningJob,
    Snapshot,
)
from scheduling.engine.placement.candidates import considered
from scheduling.engine.placement.fit_to_limits import fit_to_limits, spared
from scheduling.engine.placement.placement import place
from scheduling.engine.placement.scorers import scorer_of
from scheduling.engine.preemption.preemption import VictimSelector
from scheduling.engine.promise.backfill import JobEnd, PromiseGuard, ends_at, ends_of, promise
from scheduling.engine.promise.nominations import nominated_placement
from scheduling.engine.promise.promise_policy import PromisePolicy
from scheduling.engine.queue.fairshare import standings

# What was told to stop and has not so long after its grace is not counted on any more.
_HANGING_SECONDS = 30.0
# What was considered is told of so many placements of a plan: with thousands at once nobody looks at each.
_MAX_CONSIDERED = 16


@dataclass(slots=True)
class RequestGroups:
    """What is known of each distinct request in this cycle. The board only fills up, so a failure is final."""

    shapes: list[Shape]
    least: list[Use]
    full: set[int] = field(default_factory=set)
    full_for_long: set[int] = field(default_factory=set)


class Allocator:
    """What has been dealt out in a cycle so far. Jobs come with the number of their group in `requests`."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        now: float,
        turn: PromisePolicy,
        waiting: Sequence[tuple[Request, float]],
    ) -> None:
        """`waiting`: the distinct requests and how many jobs make each."""
        self.snapshot, self.policy, self.now, self.turn = snapshot, policy, now, turn
        self.board = Board(snapshot.nodes, thermal=policy.thermal, running=snapshot.running)
        self.board.scorer = scorer_of(snapshot.mix or waiting, self.board, policy)
        self.placements: list[Placement] = []
        self.claims: list[Nomination] = []
        self.scene = ClusterState(snapshot, policy, self.board, self.placements, self.claims)
        shapes = [Shape(request, self.board, policy) for request, _ in waiting]
        least = [least_use(request, self.scene.inventory, policy) for request, _ in waiting]
        self.groups = RequestGroups(shapes, least)
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
        self.guard: PromiseGuard | None = None
        self.promised: Job | None = None  # the job of the guard's reservation
        self.victims = VictimSelector(snapshot, policy, now, self.standings)
        # What is known of single jobs: they wait for those that were stopped for them, or may stop somebody later.
        self.told: dict[int, PendingReason] = {}

    @property
    def reservation(self) -> Promise | None:
        return None if self.guard is None else self.guard.reservation

    def use(self, job: Job | RunningJob, ranks: tuple[RankPlacement, ...]) -> Use:
        request = job.request
        if not (self.counts_memory or self.device_models):
            # It depends on the request alone, and jobs share theirs.
            known = self.uses.get(id(request))
            if known is None:
                known = self.uses[id(request)] = use_of(request, 0, ())
            return known
        gpu_memory_mb = gpu_memory_of(request, ranks, self.device_memory) if self.counts_memory else 0
        return use_of(request, gpu_memory_mb, models_of(ranks, self.device_models) if self.device_models else ())

    def within_limits(
        self, job: Job, group: int, ranks: tuple[RankPlacement, ...], until: float
    ) -> tuple[tuple[RankPlacement, ...], Use, ExceededLimit | None]:
        def blocked(ranks: tuple[RankPlacement, ...]) -> tuple[Use, ExceededLimit | None]:
            use = self.use(job, ranks)
            return use, self.accounts.block(job, use, until)

        return fit_to_limits(
            self._board_for(until), self.groups.shapes[group], ranks, blocked, partial(self._spared, job, group)
        )

    def place(self, group: int, until: float) -> tuple[RankPlacement, ...] | None:
        board = self._board_for(until)
        if group in self.groups.full or (board is not self.board and group in self.groups.full_for_long):
            return None
        shape = self.groups.shapes[group]
        ranks = place(board, shape)
        if ranks is None:
            self.groups.full_for_long.add(group)
            # Where there is no room at all, no job of the group need be asked whether it is short enough to pass.
            if board is self.board or place(self.board, shape) is None:
                self.groups.full.add(group)
        return ranks

    def start(self, job: Job, group: int, ranks: tuple[RankPlacement, ...], until: float) -> None:
        told = None
        if len(self.placements) < _MAX_CONSIDERED:
            told = considered(self._board_for(until), self.groups.shapes[group], ranks)
        self.placements.append(Placement(job.id, ranks, told))
        self.board.take(ranks)
        if self.guard is not None:
            self.guard.take(self.board, ranks, until)
        self.ends.append(JobEnd(self._bound(until), job.id, ranks))
        self._count_started(job, ranks, until)

    def redeem(self, job: Job, group: int) -> bool:
        """Others were stopped for this job: it starts, or what they give back is kept for it until it does. False: its
        claim has come to nothing."""
        shape, least = self.groups.shapes[group], self.groups.least[group]
        until = ends_at(job.max_runtime_seconds, self.now)
        claim = next(claim for claim in self.snapshot.claims if claim.job_id == job.id)
        promised = claim.ranks
        if self.accounts.block(job, least, until) is None:
            ranks = nominated_placement(self.board, shape, promised)
            if ranks is not None and self._is_within(job, ranks, until):
                self.start(job, group, ranks, until)
                return True
            # Whatever stops there: a victim that was cancelled meanwhile gives back the same.
            stopping = self._stopping(lambda node_id: any(node_id == rank.node_id for rank in promised))
            ranks = nominated_placement(self.board, shape, promised, stopping) if stopping else None
            if ranks is not None and self._is_within(job, ranks, until):
                self._claim(job, replace(claim, ranks=ranks), until, stopping)
                return True
        return False

    def preempt(self, job: Job, group: int, until: float) -> bool:
        """Stop others for a job that has no room, if the rules allow it and its delay is over."""
        shape, board = self._spared(job, group), self._board_for(until)
        closed = self.guard.node_ids if self.guard is not None else frozenset[int]()
        if not self._fits_in_service(job):
            return False
        may_at = max(job.queued_at, job.eligible_at) + self.policy.preemption_delay_seconds
        stopping = [one for one in self._stopping(lambda node_id: node_id not in closed) if self._will_end(one)]
        if stopping and nominated_placement(board, shape, None, stopping) is not None:
            return False  # it need only wait for those that end anyway
        found = self.victims.search(board, shape, job, closed=closed)
        if found is not None and not self._is_within(job, found.preemption.ranks, until):
            return False
        if found is not None and may_at <= self.now:
            self.victims.stop(found)
            self._claim(job, Nomination(job.id, found.preemption.ranks, found.preemption.rule), until, found.victims)
            return True
        found = found or self.victims.search(board, shape, job, closed=closed, ready_only=False)
        if found is not None:
            self.told[job.id] = preempt_delay(max(may_at, found.ready_at), len(found.victims))
        return False

    def reserve(self, job: Job, group: int, use: Use) -> None:
        """Promise the job its place and its tenant's limits, if what runs now is all that it waits for."""
        shape = self._spared(job, group)
        by_limits = self.accounts.earliest(job, use, self.now)
        if by_limits == inf or not self._fits_in_service(job):
            return
        found = promise(self.board, shape, job.id, self.ends, self.now, by_limits)
        if found is None:
            return
        reservation, future = found
        self.guard = PromiseGuard(reservation, self.board, future)
        self.promised = job
        self.accounts.promise(job, use, reservation.at)

    def _count_running(self) -> None:
        """Alike jobs at once, in a fixed order, as the shares are sums of floats."""
        numbers: dict[Request, int] = {}
        known: dict[int, int] = {}  # by identity: hashing a request costs more than all else here
        alike: dict[tuple[int, int, bool, int, Use | None], tuple[RunningJob, list[float]]] = {}
        by_ranks = self.counts_memory or self.device_models
        ends = zip(self.snapshot.running, self.ends, strict=True)
        for _, job, at in sorted([(job.job_id, job, end.at) for job, end in ends]):
            number = known.get(id(job.request))
            if number is None:
                number = known[id(job.request)] = numbers.setdefault(job.request, len(numbers))
            use = self.use(job, job.ranks) if by_ranks else None
            key = job.tenant_id, job.user_id, job.is_online, number, use
            found = alike.get(key)
            if found is None:
                alike[key] = job, [at]
            else:
                found[1].append(at)
        for job, bounds in alike.values():
            self.standings[job.tenant_id].add(job.request, self.cluster_cpu_milli, len(bounds))
            self.accounts.hold(job, self.use(job, job.ranks), bounds)

    def _count(self, job: Job | RunningJob, ranks: tuple[RankPlacement, ...], until: float, bound: float) -> None:
        self.standings[job.tenant_id].add(job.request, self.cluster_cpu_milli)
        self.accounts.take(job, self.use(job, ranks), until, bound)

    def _count_started(self, job: Job, ranks: tuple[RankPlacement, ...], until: float) -> None:
        self._count(job, ranks, until, self._bound(until))
        self.victims.started(job)
        self.turn.started(job)

    def _is_within(self, job: Job, ranks: tuple[RankPlacement, ...], until: float) -> bool:
        return self.accounts.block(job, self.use(job, ranks), until) is None

    def _spared(self, job: Job, group: int) -> Shape:
        return spared(self.accounts, self.board, self.policy, job, self.groups.shapes[group])

    def _board_for(self, until: float) -> Board:
        return self.board if self.guard is None or until <= self.guard.reservation.at else self.guard.lasting

    def _bound(self, until: float) -> float:
        return self.now + self.policy.unlimited_runtime_seconds if until == inf else until

    def _will_end(self, stopping: RunningJob) -> bool:
        """One whose grace is long over hangs: nobody should wait for it instead of stopping somebody else."""
        return stopping.ends_by is None or stopping.ends_by + _HANGING_SECONDS > self.now

    def _stopping(self, is_there: Callable[[int], bool]) -> list[RunningJob]:
        """What has been told to end, whatever for, on such nodes."""
        stopping = [one for one in self.snapshot.running if one.is_stopping]
        return [one for one in stopping if any(is_there(rank.node_id) for rank in one.ranks)]

    def _claim(self, job: Job, claim: Nomination, until: float, stopping: Sequence[RunningJob]) -> None:
        self.board.withhold(claim.ranks)
        if self.guard is not None:
            self.guard.withhold(self.board, claim.ranks, until)
        self._count_started(job, claim.ranks, until)
        self.claims.append(claim)
        self.told[job.id] = reclaim_pending(stopping, claim.rule, self.now)

    def _fits_in_service(self, job: Job) -> bool:
        return fits(job.request, eligible(job.request, self.scene.in_service), self.policy)
