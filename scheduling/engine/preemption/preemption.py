"""Chooses the running jobs to stop for a waiting one: proved on the board, no more than needed, none protected.

Three rules make a running job a possible victim of a waiting one. `priority`: it is of a lower band. `reclaim`: the
waiting job is covered by its tenant's guarantee, and the other tenant borrows. `online`: the waiting job is covered by
the online capacity of the cluster, of which batch jobs borrow. None takes from another tenant GPUs that its guarantee
covers, nor does batch beyond its part take from online. So jobs cannot stop each other in turns: a reclaim raises the
guaranteed GPUs that are in use, which no other tenant's job can lower again, and a preemption by priority raises the
bands that run. A job without GPUs is covered by no guarantee, so it may not push its own tenant's job out of one,
which would then reclaim.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from heapq import heapify, heappop
from math import inf
from typing import NamedTuple

from scheduling.engine.board.board import Board, NodeSlot
from scheduling.engine.board.shapes import Shape
from scheduling.engine.limits.online_split import borrowing_gpus, gpus_in_service, split_of
from scheduling.engine.model import Job, Policy, Preemption, RunningJob, Snapshot
from scheduling.engine.placement.placement import is_offered, place, ranks_that_fit
from scheduling.engine.preemption.rights import PreemptionRights
from scheduling.engine.preemption.victim_pool import NodeVictims, VictimPool
from scheduling.engine.promise.backfill import JobEnd, first_fit
from scheduling.engine.queue.fairshare import TenantUse
from scheduling.engine.queue.ordering import band


def helping(shape: Shape, victims: Iterable[RunningJob], slot: NodeSlot) -> list[RunningJob]:
    """Return those of the victims on the node that hold a device there that suits the request.

    For a request without GPUs, or if CPU or memory is short, anything that they hold there may help.
    """
    _, cpu_milli, memory_mb = shape.part(shape.splits[-1])
    if not shape.request.gpu_count or slot.cpu_milli < cpu_milli or slot.memory_mb < memory_mb:
        return list(victims)
    return [victim for victim in victims if _holds_any(victim, slot, shape.limits_mb)]


def _helping_anywhere(board: Board, shape: Shape, victims: Iterable[RunningJob]) -> Iterator[RunningJob]:
    """Yield those of the victims that help on any of their nodes."""
    slots: dict[int, NodeSlot | None] = {}
    for victim in victims:
        for rank in victim.ranks:
            if rank.node_id not in slots:
                slot = board.slot_of(rank.node_id)
                is_open = slot is not None and is_offered(board, shape, slot.position)
                slots[rank.node_id] = slot if is_open else None
            slot = slots[rank.node_id]
            if slot is not None and helping(shape, (victim,), slot):
                yield victim
                break


def _holds_any(victim: RunningJob, slot: NodeSlot, kinds: Mapping[int, int]) -> bool:
    """Return whether the victim holds a device of one of these kinds on the node."""
    node_id, kind_of = slot.node.id, slot.kind_of
    for rank in victim.ranks:
        if rank.node_id == node_id:
            for hold in rank.holds:
                if kind_of.get(hold.device_id) in kinds:
                    return True
    return False


def fits(shape: Shape, slot: NodeSlot) -> bool:
    return any(ranks_that_fit(slot, shape, split) >= split for split in shape.splits)


def is_needed(shape: Shape, slot: NodeSlot, victim: RunningJob) -> bool:
    """Return whether the slot, after the victim's release, has capacity only because of it; otherwise put it back."""
    ranks = [rank for rank in victim.ranks if rank.node_id == slot.node.id]
    for rank in ranks:
        slot.allocate(rank)
    if fits(shape, slot):
        return False
    for rank in ranks:
        slot.release(rank)
    return True


# One plan preempts for at most this many jobs, and tries at most this many releases: the next cycle continues.
MAX_PREEMPTIONS, MAX_RELEASES = 32, 20_000


class VictimSet(NamedTuple):
    """The victims of one preemption. `ready_at`: when the last of them will have had its minimum run time."""

    victims: tuple[RunningJob, ...]
    preemption: Preemption
    ready_at: float


class VictimSelector:
    """The jobs that may still be stopped in this plan, and how much of each tenant's guarantee is in use."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float, standings: Mapping[int, TenantUse]) -> None:
        self.policy, self.now = policy, now
        self.tenants = {tenant.id: tenant for tenant in snapshot.tenants}
        self.preemptions_left = {tenant.id: tenant.preemptions_left for tenant in snapshot.tenants}
        self.gpus_held = dict.fromkeys(self.tenants, 0)
        self.split = split_of(gpus_in_service(snapshot.nodes), policy) if policy.online_percent else None
        self.by_class = {is_online: 0 for is_online in (False, True)}
        self.preemptions: list[Preemption] = []
        self.releases = 0
        # A job inside a hard booking is stopped for no other.
        hard = {booking.id for booking in snapshot.bookings if booking.is_hard}
        open_tenants = {tenant.id for tenant in snapshot.tenants if tenant.allow_preemption and policy.preemption}
        # Those that are stopping already, for whatever reason.
        self.stopping: list[RunningJob] = []
        # Not sorted yet: most plans need no victim.
        self._unsorted: list[RunningJob] = []
        # Without predictions, nothing is compared by them: most clusters have none.
        self.is_predicted = False
        for running in snapshot.running:
            if running.predicted_end_at is not None:
                self.is_predicted = True
            if running.is_stopping:
                self.stopping.append(running)
                continue
            self.gpus_held[running.tenant_id] += running.request.gpu_count
            self.by_class[running.is_online] += running.request.gpu_count
            if running.preemptible and running.tenant_id in open_tenants and running.booking_id not in hard:
                self._unsorted.append(running)
        # The lowest band of all, which ends most searches early; None: there is no possible victim.
        self.lowest = min([band(job.priority) for job in self._unsorted], default=None)
        self._stopped: set[int] = set()
        self._pools: dict[tuple[object, ...], VictimPool] = {}
        self._shares = {id: standing.share for id, standing in standings.items()}

    @cached_property
    def _are_limited(self) -> bool:
        """Return whether a budget, a guarantee or the online split may keep some possible victim running."""
        tenants = [self.tenants[id] for id in {job.tenant_id for job in self._unsorted}]
        return self.split is not None or any(
            [tenant.preemptions_left is not None or tenant.guaranteed_gpus > 0 for tenant in tenants]
        )

    @cached_property
    def losses(self) -> dict[int, float]:
        return {job.job_id: loss(job, self.now) for job in self._unsorted}

    @cached_property
    def candidates(self) -> list[RunningJob]:
        """Return the possible victims in a fixed order for the whole plan, so that the choice depends on no earlier
        search."""
        return sorted(self._unsorted, key=self._order)

    def started(self, job: Job) -> None:
        self.gpus_held[job.tenant_id] += job.request.gpu_count
        self.by_class[job.is_online] += job.request.gpu_count

    def stop(self, victim_set: VictimSet) -> None:
        """Stop these victims: they cannot be chosen again, and no longer count for their tenants."""
        self.preemptions.append(victim_set.preemption)
        self._stopped |= {victim.job_id for victim in victim_set.victims}
        lowest = next((job for job in self.candidates if job.job_id not in self._stopped), None)
        self.lowest = None if lowest is None else band(lowest.priority)
        for pool in self._pools.values():
            pool.remove(victim_set.victims)
        for victim in victim_set.victims:
            self.gpus_held[victim.tenant_id] -= victim.request.gpu_count
            self.by_class[victim.is_online] -= victim.request.gpu_count
            budget = self.preemptions_left[victim.tenant_id]
            self.preemptions_left[victim.tenant_id] = None if budget is None else budget - 1

    def search(
        self, board: Board, shape: Shape, job: Job, *, closed: Iterable[int] = (), ready_only: bool = True
    ) -> VictimSet | None:
        """Return the victims for one job that does not fit on the board; the board is left unchanged.

        `closed`: nodes where no job may be stopped, because their resources are promised to another job. `ready_only`
        False: also jobs that have not run for the minimum time yet.
        """
        if not self.may_preempt(job):
            return None
        possible = self._possible(job, frozenset(closed), ready_only)
        chosen = self._on_one_node(board, shape, job, possible)
        if chosen is None and shape.spread:
            chosen = self._anywhere(board, shape, job, possible)
        return self._proved(board, shape, job, chosen) if chosen else None

    def may_preempt(self, job: Job) -> bool:
        """Return whether the job may have victims. Cheap: it is called for every request that does not fit."""
        tenant = self.tenants[job.tenant_id]
        has_time = self.releases < MAX_RELEASES and len(self.preemptions) < MAX_PREEMPTIONS
        if self.lowest is None or not (tenant.can_preempt_others and has_time):
            return False
        return self.lowest < band(job.priority) or self._is_covered(job) or self._is_online_covered(job)

    def _possible(self, job: Job, closed: frozenset[int], ready_only: bool) -> VictimPool:
        """Return the jobs that some rule lets stop for the job."""
        rights = self._rights(job)
        # Only a guarantee distinguishes the tenants.
        key = (rights if rights.is_covered else rights._replace(tenant_id=0), closed, ready_only)
        if key not in self._pools:
            latest = self.now - self.policy.min_runtime_seconds if ready_only else inf
            victims = [
                victim
                for victim in self.candidates
                if victim.started_at <= latest
                and victim.job_id not in self._stopped
                and rights.rule(victim)
                and not (closed and any(rank.node_id in closed for rank in victim.ranks))
            ]
            self._pools[key] = VictimPool(victims, self.losses)
        return self._pools[key]

    def _is_covered(self, job: Job) -> bool:
        """Return whether its tenant's guarantee covers the job."""
        available = self.tenants[job.tenant_id].guaranteed_gpus - self.gpus_held[job.tenant_id]
        return 0 < job.request.gpu_count <= available

    def _is_online_covered(self, job: Job) -> bool:
        """Return whether the online capacity of the cluster covers the job."""
        if self.split is None or not job.is_online:
            return False
        return 0 < job.request.gpu_count <= self.split.online - self.by_class[True]

    def _is_beyond_batch(self, job: Job) -> bool:
        """Return whether the batch job would borrow online capacity, so that it may not take from it."""
        if self.split is None or job.is_online:
            return False
        return not job.request.gpu_count or self.by_class[False] + job.request.gpu_count > self.split.batch

    def _rights(self, job: Job) -> PreemptionRights:
        return PreemptionRights(
            job.tenant_id,
            band(job.priority),
            self._is_covered(job),
            self._is_online_covered(job),
            self._is_beyond_batch(job),
        )

    def _ready_at(self, victim: RunningJob) -> float:
        return victim.started_at + self.policy.min_runtime_seconds

    def _order(self, victim: RunningJob) -> tuple[float, ...]:
        """Return the sort key: lowest priority first, then the tenant most over its share, least loss, not about to
        end, youngest, id."""
        share, lost = self._shares[victim.tenant_id], self.losses[victim.job_id]
        ends = -_probable_end(victim) if self.is_predicted else 0.0
        return (victim.priority, -share, lost, ends, -victim.started_at, -victim.job_id)

    def _affordable(self, job: Job, possible: Iterable[RunningJob]) -> Iterable[RunningJob]:
        """Yield as many of these jobs, in order, as budgets and guarantees of their tenants allow together."""
        if not self._are_limited:
            yield from possible
            return
        budgets, gpus_held = dict(self.preemptions_left), dict(self.gpus_held)
        rights = self._rights(job)
        borrowed = borrowing_gpus(self.split, self.by_class[False]) if self.split else 0
        for victim in possible:
            tenant_id, gpus = victim.tenant_id, victim.request.gpu_count
            budget = budgets[tenant_id]
            if budget == 0 or not self._leaves_guarantee(job, victim, gpus_held[tenant_id]):
                continue
            if self.split is not None and rights.rule(victim) == "online":
                if gpus > borrowed:
                    continue
                borrowed -= gpus
            budgets[tenant_id] = None if budget is None else budget - 1
            gpus_held[tenant_id] -= gpus
            yield victim

    def _leaves_guarantee(self, job: Job, victim: RunningJob, gpus_held: int) -> bool:
        """Return whether its tenant, which holds this many GPUs now, keeps its guarantee if the victim ends."""
        guaranteed, gpus = self.tenants[victim.tenant_id].guaranteed_gpus, victim.request.gpu_count
        if victim.tenant_id != job.tenant_id:
            return gpus_held - gpus >= guaranteed
        return job.request.gpu_count > 0 or gpus == 0 or gpus_held > guaranteed

    def _on_one_node(self, board: Board, shape: Shape, job: Job, possible: VictimPool) -> list[RunningJob] | None:
        """Return the cheapest set that makes one node large enough: lowest top priority, least loss, fewest, last
        end."""
        # Nodes in the order of their minimum cost; once that exceeds the best, no other is better.
        bounds = list(_minimum_costs(board, shape, possible.by_node))
        heapify(bounds)
        best: tuple[tuple[float, ...], float, int, list[RunningJob]] | None = None
        while bounds:
            bound, node_id = heappop(bounds)
            if best is not None and bound > best[0]:
                break
            chosen = self._on_node(board, shape, job, node_id, possible.by_node[node_id].jobs)
            if chosen is not None:
                lost = sum(self.losses[victim.job_id] for victim in chosen)
                cost = (max(victim.priority for victim in chosen), lost, len(chosen))
                # Of equal sets, the one whose first job ends last: a job that is about to end is spared.
                ends = -min(map(_probable_end, chosen)) if self.is_predicted else 0.0
                if best is None or (cost, ends, node_id) < best[:3]:
                    best = cost, ends, node_id, chosen
        return best[3] if best else None

    def _on_node(
        self, board: Board, shape: Shape, job: Job, node_id: int, possible: list[RunningJob]
    ) -> list[RunningJob] | None:
        slot = board.slot_of(node_id)
        if slot is None or not is_offered(board, shape, slot.position):
            return None
        chosen = self._greedy(shape, job, possible, slot)
        if chosen is not None or not self._is_protected(possible):
            return chosen
        # Budgets and guarantees may have been spent on victims that release nothing that the job could use.
        helpful = helping(shape, possible, slot)
        return self._greedy(shape, job, helpful, slot) if len(helpful) < len(possible) else None

    def _is_protected(self, possible: Iterable[RunningJob]) -> bool:
        """Return whether budgets or guarantees may forbid stopping all of these together."""
        ids = {victim.tenant_id for victim in possible}
        return self.split is not None or any(
            self.preemptions_left[id] is not None or self.tenants[id].guaranteed_gpus for id in ids
        )

    def _greedy(self, shape: Shape, job: Job, possible: list[RunningJob], slot: NodeSlot) -> list[RunningJob] | None:
        """Return the first jobs in order that make the node large enough, reduced to those that are needed."""
        twin, node_id = slot.copy(), slot.node.id
        chosen: list[RunningJob] = []
        for victim in self._affordable(job, possible):
            self.releases += 1
            chosen.append(victim)
            for rank in victim.ranks:
                if rank.node_id == node_id:
                    twin.release(rank)
            if fits(shape, twin):
                return [victim for victim in reversed(chosen) if is_needed(shape, twin, victim)]
        return None

    def _anywhere(self, board: Board, shape: Shape, job: Job, possible: VictimPool) -> list[RunningJob] | None:
        """Return the first jobs in order that suffice for a gang over several nodes."""
        chosen: list[RunningJob] = []

        def ends() -> Iterator[JobEnd]:
            for victim in self._affordable(job, _helping_anywhere(board, shape, possible.jobs())):
                self.releases += 1
                chosen.append(victim)
                yield JobEnd(float(len(chosen)), victim.job_id, victim.ranks)

        return chosen if first_fit(board.overlay(), shape, ends()) is not None else None

    def _proved(self, board: Board, shape: Shape, job: Job, chosen: list[RunningJob]) -> VictimSet | None:
        """Return the victims with the job's placement, after sparing every job that can be spared."""
        for victim in chosen:
            board.release(victim.ranks)
        needed: list[RunningJob] = []
        for victim in reversed(chosen):
            board.allocate(victim.ranks)
            if place(board, shape) is None:
                board.release(victim.ranks)
                needed.append(victim)
        ranks = place(board, shape)
        for victim in needed:
            board.allocate(victim.ranks)
        if ranks is None or not needed:
            return None
        needed.sort(key=self._order)
        rights = self._rights(job)
        rules = {rights.rule(victim) for victim in needed}
        ids = tuple(victim.job_id for victim in needed)
        lost = sum(loss(victim, self.now) for victim in needed)
        # The strongest right that was needed: for victims of a lower band no other is.
        rule = next(rule for rule in ("reclaim", "online", "priority") if rule in rules)
        preemption = Preemption(job.id, ids, rule, ranks, lost)
        return VictimSet(tuple(needed), preemption, max(map(self._ready_at, needed)))


def _minimum_costs(
    board: Board, shape: Shape, by_node: Mapping[int, NodeVictims]
) -> Iterator[tuple[tuple[float, ...], int]]:
    """Yield (lower bound of the cost, node) of the nodes on which the victims hold enough GPUs."""
    gpus = shape.request.gpu_count if shape.share_mb is None else 0
    for slot in board.slots:
        victims = by_node.get(slot.node.id)
        if victims is not None and (short := gpus - slot.free_count) <= victims.gpus:
            yield victims.costs.get(short) or victims.minimum_cost(short), slot.node.id


def _probable_end(victim: RunningJob) -> float:
    """Return the predicted end; without a prediction inf, as nothing shows that it is about to end."""
    return inf if victim.predicted_end_at is None else victim.predicted_end_at


def loss(victim: RunningJob, now: float) -> float:
    """Return the GPU-seconds of work that its end would lose: GPUs x time since its last checkpoint, or its start."""
    since = victim.started_at if victim.saved_at is None else victim.saved_at
    return victim.request.gpu_count * max(now - since, 0.0)
