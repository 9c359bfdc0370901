"""Allocates the cluster's resources job by job in a cycle: places, starts, nominations, promises."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import inf

from scheduling.engine.board.board import Board
from scheduling.engine.board.shapes import Shape
from scheduling.engine.bookings.booked_promise import promise_beside
from scheduling.engine.bookings.bookings import Bookings, avoided_devices
from scheduling.engine.bookings.own_bookings import OwnBookings
from scheduling.engine.explain.explain import ClusterState, preempt_delay, reclaim_pending
from scheduling.engine.explain.feasibility import minimum_use_in, over_model_limits
from scheduling.engine.explain.inventory import eligible, fits
from scheduling.engine.limits.accounts import Accounts, ExceededLimit
from scheduling.engine.limits.online_split import limits_now
from scheduling.engine.limits.quotas import Use
from scheduling.engine.limits.use_counter import UseCounter
from scheduling.engine.model import (
    Booking,
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
from scheduling.engine.placement.candidates import candidate_set
from scheduling.engine.placement.fit_to_limits import avoid_exhausted_models, fit_to_limits
from scheduling.engine.placement.placement import can_place, place
from scheduling.engine.placement.scorers import scorer_of
from scheduling.engine.preemption.preemption import VictimSelector
from scheduling.engine.preemption.sparing import is_better_to_wait
from scheduling.engine.promise.backfill import JobEnd, PromiseGuard, ends_at, ends_of, promise
from scheduling.engine.promise.nominations import nominated_placement, on_such_nodes, will_end
from scheduling.engine.promise.promise_policy import PromisePolicy
from scheduling.engine.queue.fairshare import standings
from scheduling.engine.request_groups import RequestGroups

# The candidates of this many placements of a plan are recorded: thousands at once would be of no use to a reader.
_MAX_CONSIDERED = 16


class Allocator:
    """The allocations of a cycle so far. `number`: the number of a job's request in `requests`."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        now: float,
        promise_policy: PromisePolicy,
        waiting: Sequence[tuple[Request, float]],
    ) -> None:
        """`waiting`: the distinct requests and the number of jobs of each."""
        self.snapshot, self.policy, self.now, self.promise_policy = snapshot, policy, now, promise_policy
        avoided = avoided_devices(snapshot, now)
        self.board = Board(snapshot.nodes, thermal=policy.thermal, running=snapshot.running, avoided=avoided)
        self.board.scorer = scorer_of(snapshot.mix or waiting, self.board, policy)
        self.bookings: Bookings | None = None
        if snapshot.bookings:
            self.bookings = Bookings(snapshot, now, self.board)
            self.own_bookings = OwnBookings(self.bookings)
            self.board = self.bookings.present
        self.placements: list[Placement] = []
        self.nominations: list[Nomination] = []
        now_placed = self.placements, self.nominations
        self.cluster = ClusterState(snapshot, policy, self.board, *now_placed, self.bookings, avoided)
        shapes = [Shape(request, self.board, policy) for request, _ in waiting]
        minimum_uses = [minimum_use_in(request, self.cluster.inventory, policy) for request, _ in waiting]
        self.requests = RequestGroups(shapes, minimum_uses)
        self.cluster_cpu_milli = sum(node.cpu_milli for node in snapshot.nodes)
        self.standings = standings(snapshot.tenants, policy)
        self.counter = UseCounter(snapshot)
        self.use = self.counter.use
        parts = limits_now(snapshot, policy, now, self._fits_in_service, self._least_use)
        self.accounts = Accounts(snapshot.tenants, parts)
        self.ends = ends_of(snapshot.running, policy, now, snapshot.bookings)
        self._count_running()
        self.guard: PromiseGuard | None = None
        self.promised: Job | None = None  # the job of the guard's promise
        self.victims = VictimSelector(snapshot, policy, now, self.standings)
        # Reasons of single jobs: they wait for jobs that are being stopped for them, or may preempt later.
        self.job_reasons: dict[int, PendingReason] = {}

    @property
    def promise(self) -> Promise | None:
        return None if self.guard is None else self.guard.promise

    def within_limits(
        self, job: Job, number: int, ranks: tuple[RankPlacement, ...], until: float
    ) -> tuple[tuple[RankPlacement, ...], Use, ExceededLimit | None]:
        return self._within_limits(self._board_for(job, until), job, number, ranks, until)

    def _within_limits(
        self, board: Board, job: Job, number: int, ranks: tuple[RankPlacement, ...], until: float
    ) -> tuple[tuple[RankPlacement, ...], Use, ExceededLimit | None]:
        def blocked(ranks: tuple[RankPlacement, ...]) -> tuple[Use, ExceededLimit | None]:
            use = self.use(job, ranks)
            return use, self.accounts.block(job, use, until)

        exhausted = partial(self._without_exhausted_models, job, number)
        return fit_to_limits(board, self.requests.shapes[number], ranks, blocked, exhausted)

    def place(self, job: Job, number: int, until: float) -> tuple[RankPlacement, ...] | None:
        if self.bookings is not None:
            return self._place_beside(self.bookings, job, number, until)
        board = self._base_for(until)
        if number in self.requests.full or (board is not self.board and number in self.requests.full_for_long):
            return None
        shape = self.requests.shapes[number]
        ranks = place(board, shape)
        if ranks is None:
            self.requests.full_for_long.add(number)
            # If it does not fit at all, no job with this request can pass, however short it is.
            if board is self.board or not can_place(self.board, shape):
                self.requests.full.add(number)
        return ranks

    def start(
        self, job: Job, number: int, ranks: tuple[RankPlacement, ...], until: float, booking_id: int | None = None
    ) -> None:
        candidates = None
        if len(self.placements) < _MAX_CONSIDERED:
            candidates = candidate_set(self._board_for(job, until), self.requests.shapes[number], ranks)
        self.placements.append(Placement(job.id, ranks, candidates, booking_id))
        self._allocate(ranks, until, until + job.grace_seconds)
        self.ends.append(JobEnd(self._bound(until), job.id, ranks))
        self._count_started(job, ranks, until)

    def start_in_booking(self, job: Job, number: int) -> bool:
        """Start the job in an active booking of its tenant; return False if there is none with room for it."""
        if self.bookings is None:
            return False
        for booking in self.own_bookings.usable_by(job, number):
            until = ends_at(job.max_runtime_seconds, self.now)
            if booking.is_hard:
                until = min(until, booking.ends_at)
                beside = self._base_for(booking.ends_at)
            else:
                beside = self._board_for(job, until)
            board = self.own_bookings.board(booking, beside)
            ranks, block = place(board, self.requests.shapes[number]), None
            if ranks is not None:
                ranks, _, block = self._within_limits(board, job, number, ranks, until)
            if ranks is None or block is not None:
                self.own_bookings.mark_full(booking, number)
                continue
            if booking.is_hard:
                self._start_inside(booking, job, ranks, until)
            else:
                self.start(job, number, ranks, until, booking.id)
            return True
        return False

    def may_start_beside(self, booking_id: int) -> bool:
        """Return whether a job that insists on the booking may start elsewhere: an active soft one is a preference."""
        booking = None if self.bookings is None else self.bookings.by_id.get(booking_id)
        return booking is not None and not booking.is_hard and booking.starts_at <= self.now

    def is_full_for_all(self, number: int) -> bool:
        """Return whether the request fits for no waiting job beside the bookings, however short it is."""
        if number in self.requests.full or self.bookings is None:
            return True
        level = self.requests.full_levels.get((number, False))
        return level is not None and level <= self._shortest_level

    def may_fit(self, job: Job, number: int) -> bool:
        """Return whether the job may still start in this cycle, in a booking of its tenant or beside all bookings."""
        if not self._is_known_full(job, number, ends_at(job.max_runtime_seconds, self.now)):
            return True
        return self.can_use_booking(job, number)

    def can_use_booking(self, job: Job, number: int) -> bool:
        """Return whether a booking of its tenant may still have room for the job."""
        return self.bookings is not None and bool(self.own_bookings.usable_by(job, number))

    def place_nominated(self, job: Job, number: int, *, has_promise: bool) -> bool:
        """Start a job for which others were preempted, or keep their resources for it until it can start. Return False
        if its nomination no longer holds. `has_promise`: another job may be promised what is free elsewhere, so this
        one waits for its own place.
        """
        shape, minimum_use = self.requests.shapes[number], self.requests.minimum_uses[number]
        until = ends_at(job.max_runtime_seconds, self.now)
        nomination = next(entry for entry in self.snapshot.claims if entry.job_id == job.id)
        promised = nomination.ranks
        if self.accounts.block(job, minimum_use, until) is None:
            board = self._board_for(job, until)
            # Count every job that is stopping there: a victim that was cancelled meanwhile releases the same resources.
            node_ids = {rank.node_id for rank in promised}
            stopping = on_such_nodes(self.victims.stopping, node_ids.__contains__)
            ranks = nominated_placement(board, shape, promised)
            stays = has_promise and ranks is not promised and any(will_end(victim, self.now) for victim in stopping)
            if ranks is not None and not stays and self._is_within(job, ranks, until):
                self.start(job, number, ranks, until)
                return True
            ranks = nominated_placement(board, shape, promised, stopping) if stopping else None
            if ranks is not None and self._is_allowed(job, ranks, until, stopping):
                self._nominate(job, replace(nomination, ranks=ranks), until, stopping)
                return True
        return False

    def preempt(self, job: Job, number: int, until: float) -> bool:
        """Preempt others for a job that does not fit, if the rules allow it and its delay is over."""
        shape, board = self._without_exhausted_models(job, number), self._board_for(job, until)
        closed = self._closed()
        if not self._fits_in_service(job):
            return False
        may_at = max(job.queued_at, job.eligible_at) + self.policy.preemption_delay_seconds
        stopping = on_such_nodes(self.victims.stopping, lambda node_id: node_id not in closed)
        stopping = [victim for victim in stopping if will_end(victim, self.now)]
        if stopping and nominated_placement(board, shape, None, stopping) is not None:
            return False  # jobs that end anyway suffice
        victim_set = self.victims.search(board, shape, job, closed=closed)
        if victim_set is not None and not self._is_allowed(job, victim_set.preemption.ranks, until, victim_set.victims):
            return False
        if victim_set is not None and self.victims.is_predicted:
            lost = victim_set.preemption.lost_gpu_seconds
            if is_better_to_wait(board, shape, job, self.snapshot.running, closed, lost, self.now):
                return False
        if victim_set is not None and may_at <= self.now:
            self.victims.stop(victim_set)
            self._nominate(
                job,
                Nomination(job.id, victim_set.preemption.ranks, victim_set.preemption.rule),
                until,
                victim_set.victims,
            )
            return True
        victim_set = victim_set or self.victims.search(board, shape, job, closed=closed, ready_only=False)
        if victim_set is not None:
            self.job_reasons[job.id] = preempt_delay(max(may_at, victim_set.ready_at), len(victim_set.victims))
        return False

    def has_victims(self, job: Job, number: int) -> bool:
        """Return whether the job fits, or others may be stopped for it, now or later."""
        if not (self.victims.may_preempt(job) and self._fits_in_service(job)):
            return False
        board = self._board_for(job, ends_at(job.max_runtime_seconds, self.now))
        shape, closed = self._without_exhausted_models(job, number), self._closed()
        return can_place(board, shape) or bool(self.victims.search(board, shape, job, closed=closed, ready_only=False))

    def promise_place(self, job: Job, number: int, use: Use) -> None:
        """Promise the job its place and its tenant's limits, if it waits only for running jobs."""
        shape = self._without_exhausted_models(job, number)
        by_limits = self.accounts.earliest(job, use, self.now)
        if by_limits == inf or not self._fits_in_service(job) or self._is_over_limit(job):
            return
        seconds = ends_at(job.max_runtime_seconds, 0.0) + job.grace_seconds
        if self.bookings is None:
            promised = promise(self.board, shape, job.id, self.ends, self.now, by_limits)
        else:
            unbooked, first = self.cluster.present_unbooked(), max(self.now, by_limits)
            promised = promise_beside(self.bookings, unbooked, shape, job.id, seconds, self.ends, first)
        if promised is None:
            return
        job_promise, later = promised
        self.guard = PromiseGuard(job_promise, self.board, later)
        if self.bookings is not None:
            self.bookings.boards.set_lasting(self.guard.lasting, self.guard.node_ids)
            self.bookings.count(job_promise.ranks, job_promise.at, job_promise.at + seconds)
        self.promised = job
        self.accounts.promise(job, use, job_promise.at)

    @cached_property
    def _shortest_level(self) -> int:
        """Return the level of the shortest waiting job among the bookings."""
        limits = {(job.max_runtime_seconds, job.grace_seconds) for job in self.snapshot.jobs}
        lasts = [ends_at(limit, self.now) + grace for limit, grace in limits]
        return 0 if self.bookings is None else self.bookings.level(min(lasts, default=inf))

    def _count_running(self) -> None:
        """Count identical jobs at once, in a fixed order, as the shares are sums of floats."""
        numbers: dict[Request, int] = {}
        number_by_id: dict[int, int] = {}  # by identity: a hash of a request costs more than the rest
        identical: dict[tuple[int, int, bool, int, Use | None], tuple[RunningJob, list[float]]] = {}
        by_ranks = self.counter.depends_on_place
        ends = zip(self.snapshot.running, self.ends, strict=True)
        for _, job, at in sorted([(job.job_id, job, end.at) for job, end in ends]):
            number = number_by_id.get(id(job.request))
            if number is None:
                number = number_by_id[id(job.request)] = numbers.setdefault(job.request, len(numbers))
            use = self.use(job, job.ranks) if by_ranks else None
            key = job.tenant_id, job.user_id, job.is_online, number, use
            group = identical.get(key)
            if group is None:
                identical[key] = job, [at]
            else:
                group[1].append(at)
        for job, bounds in identical.values():
            self.standings[job.tenant_id].add(job.request, self.cluster_cpu_milli, len(bounds))
            self.accounts.add_running(job, self.use(job, job.ranks), bounds)

    def _count(self, job: Job | RunningJob, ranks: tuple[RankPlacement, ...], until: float, bound: float) -> None:
        self.standings[job.tenant_id].add(job.request, self.cluster_cpu_milli)
        self.accounts.add_started(job, self.use(job, ranks), until, bound)

    def _count_started(self, job: Job, ranks: tuple[RankPlacement, ...], until: float) -> None:
        self._count(job, ranks, until, self._bound(until))
        self.victims.started(job)
        self.promise_policy.started(job)

    def _is_over_limit(self, job: Job) -> bool:
        """Return whether the job exceeds its tenant's limits per model together, by itself."""
        tenant = self.accounts.tenants[job.tenant_id]
        return over_model_limits(job.request, tenant, self.cluster.inventory, self.policy) is not None

    def _least_use(self, job: Job | RunningJob) -> Use:
        """Return what a running job takes of the limits, or a waiting one takes at least."""
        if isinstance(job, RunningJob):
            return self.use(job, job.ranks)
        return minimum_use_in(job.request, self.cluster.inventory, self.policy)

    def _is_within(self, job: Job, ranks: tuple[RankPlacement, ...], until: float) -> bool:
        return self.accounts.block(job, self.use(job, ranks), until) is None

    def _without_exhausted_models(self, job: Job, number: int) -> Shape:
        return avoid_exhausted_models(self.accounts, self.board, self.policy, job, self.requests.shapes[number])

    def _is_allowed(
        self, job: Job, ranks: tuple[RankPlacement, ...], until: float, ending: Sequence[RunningJob]
    ) -> bool:
        """Return whether limits and bookings allow these ranks once some running jobs have ended."""
        if not self._is_within(job, ranks, until):
            return False
        return self.bookings is None or self.bookings.allows(ranks, until + job.grace_seconds, ending)

    def _base_for(self, until: float) -> Board:
        return self.board if self.guard is None or until <= self.guard.promise.at else self.guard.lasting

    def _board_for(self, job: Job, until: float) -> Board:
        base = self._base_for(until)
        return base if self.bookings is None else self.bookings.board(base, until + job.grace_seconds)

    def _place_beside(
        self, bookings: Bookings, job: Job, number: int, until: float
    ) -> tuple[RankPlacement, ...] | None:
        requests, shape, base = self.requests, self.requests.shapes[number], self._base_for(until)
        if number not in requests.tried and not bookings.boards.are_built:
            # If it does not fit at all, no job with this request can pass, however short it is, and needs no board.
            requests.tried.add(number)
            if not can_place(self.board, shape):
                requests.full.add(number)
        if self._is_known_full(job, number, until):
            return None
        ranks = place(bookings.board(base, until + job.grace_seconds), shape)
        if ranks is None:
            requests.full_levels[number, base is not self.board] = bookings.level(until + job.grace_seconds)
            if not can_place(self.board, shape):
                requests.full.add(number)
        return ranks

    def _is_known_full(self, job: Job, number: int, until: float) -> bool:
        """Return whether the request fitted for no job that lasts as long as this one."""
        if self.bookings is None:
            return number in self.requests.full
        is_lasting = self._base_for(until) is not self.board
        return self.requests.is_full(number, self.bookings.level(until + job.grace_seconds), is_lasting)

    def _allocate(self, ranks: tuple[RankPlacement, ...], until: float, latest_end: float) -> None:
        self.board.allocate(ranks)
        if self.guard is not None:
            self.guard.allocate(self.board, ranks, until)
        if self.bookings is not None:
            self.bookings.count(ranks, self.now, latest_end)

    def _start_inside(self, booking: Booking, job: Job, ranks: tuple[RankPlacement, ...], until: float) -> None:
        self.own_bookings.bookings.inside[job.id] = booking.id
        self.placements.append(Placement(job.id, ranks, None, booking.id))
        beside = self.own_bookings.start(booking, ranks)
        self._allocate(beside, booking.ends_at, booking.ends_at)
        self.ends.append(JobEnd(self._bound(until), job.id, ranks))
        self._count_started(job, ranks, until)

    def _bound(self, until: float) -> float:
        return self.now + self.policy.unlimited_runtime_seconds if until == inf else until

    def _nominate(self, job: Job, nomination: Nomination, until: float, stopping: Sequence[RunningJob]) -> None:
        self.board.withhold(nomination.ranks)
        if self.guard is not None:
            self.guard.withhold(self.board, nomination.ranks, until)
        if self.bookings is not None:
            self.bookings.end(stopping)
            self.bookings.count(nomination.ranks, self.now, until + job.grace_seconds)
        self._count_started(job, nomination.ranks, until)
        self.nominations.append(nomination)
        self.job_reasons[job.id] = reclaim_pending(stopping, nomination.rule, self.now)

    def _closed(self) -> frozenset[int]:
        """Return the nodes where no job may be stopped, because their resources are promised."""
        return frozenset() if self.guard is None else self.guard.node_ids

    def _fits_in_service(self, job: Job) -> bool:
        return fits(job.request, eligible(job.request, self.cluster.in_service), self.policy)
