"""Finds whom to stop so that a waiting job fits: proved on the board, nobody more than needed, nobody protected.

Three rules make a running job a possible victim of a waiting one. `priority`: it is of a lower band. `reclaim`: the
waiting job is covered by its tenant's guarantee, and the other tenant borrows. `online`: the waiting job is covered by
the online part of the cluster, of which batch jobs borrow. None takes from another tenant what that tenant's guarantee
covers, nor does batch beyond its part take from online. So jobs cannot stop each other in turns: a reclaim raises the
guaranteed GPUs that are in use, which no other tenant's job can lower again, and a preemption by priority raises the
bands that run. A job without GPUs is covered by no guarantee, so it may not push its own tenant's job out of one,
which would then reclaim.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from math import inf
from typing import NamedTuple

from scheduling.engine.board.board import Board, NodeSlot
from scheduling.engine.board.shapes import Shape
from scheduling.engine.limits.online_split import borrowing_gpus, gpus_in_service, parts_of
from scheduling.engine.model import Job, Policy, Preemption, RunningJob, Snapshot
from scheduling.engine.placement.placement import is_offered, place, room
from scheduling.engine.preemption.rights import PreemptionRights
from scheduling.engine.promise.backfill import JobEnd, first_fit
from scheduling.engine.queue.fairshare import TenantUse
from scheduling.engine.queue.ordering import band


def helps(shape: Shape, victim: RunningJob, slot: NodeSlot) -> bool:
    """Whether it holds a device on the node that suits the request; without GPUs, or where CPU or memory is short,
    anything that it holds there may help."""
    _, cpu_milli, memory_mb = shape.part(shape.splits[-1])
    ranks = [rank for rank in victim.ranks if rank.node_id == slot.node.id]
    if not shape.request.gpu_count or slot.cpu_milli < cpu_milli or slot.memory_mb < memory_mb:
        return bool(ranks)
    return any(slot.kind_of.get(hold.device_id) in shape.limits_mb for rank in ranks for hold in rank.holds)


def fits(shape: Shape, slot: NodeSlot) -> bool:
    return any(room(slot, shape, split) >= split for split in shape.splits)


def is_needed(shape: Shape, slot: NodeSlot, victim: RunningJob) -> bool:
    """Whether the slot, where the victim is gone, has room only for that; otherwise the victim is back on it."""
    ranks = [rank for rank in victim.ranks if rank.node_id == slot.node.id]
    for rank in ranks:
        slot.take(rank)
    if fits(shape, slot):
        return False
    for rank in ranks:
        slot.release(rank)
    return True


# One plan stops jobs for at most so many others, and tries at most so many releases: the next cycle goes on.
MAX_PREEMPTIONS, MAX_RELEASES = 32, 20_000


class VictimSet(NamedTuple):
    """`ready_at`: when the last of the victims will have had its minimum run time."""

    victims: tuple[RunningJob, ...]
    preemption: Preemption
    ready_at: float


class VictimSelector:
    """Who may still be stopped in this plan, and how much of each tenant's guarantee is in use."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float, standings: Mapping[int, TenantUse]) -> None:
        self.policy, self.now = policy, now
        self.tenants = {tenant.id: tenant for tenant in snapshot.tenants}
        self.left = {tenant.id: tenant.preemptions_left for tenant in snapshot.tenants}
        self.held = dict.fromkeys(self.tenants, 0)
        self.parts = parts_of(gpus_in_service(snapshot.nodes), policy) if policy.online_percent else None
        self.by_class = {is_online: 0 for is_online in (False, True)}
        self.preemptions: list[Preemption] = []
        self.releases = 0
        open_tenants = {tenant.id for tenant in snapshot.tenants if tenant.allow_preemption and policy.preemption}
        # In no order yet: most plans look for nobody.
        self._unsorted: list[RunningJob] = []
        for running in snapshot.running:
            if not running.is_stopping:
                self.held[running.tenant_id] += running.request.gpu_count
                self.by_class[running.is_online] += running.request.gpu_count
                if running.preemptible and running.tenant_id in open_tenants:
                    self._unsorted.append(running)
        # The lowest band of all, so most jobs need not look any further; None: there is nobody.
        self.lowest = min([band(one.priority) for one in self._unsorted], default=None)
        self._shares = {id: standing.share for id, standing in standings.items()}

    @cached_property
    def losses(self) -> dict[int, float]:
        return {one.job_id: loss(one, self.now) for one in self._unsorted}

    @cached_property
    def candidates(self) -> list[RunningJob]:
        """A fixed order for the whole plan, so that the choice does not depend on who asks first."""
        return sorted(self._unsorted, key=self._order)

    def started(self, job: Job) -> None:
        self.held[job.tenant_id] += job.request.gpu_count
        self.by_class[job.is_online] += job.request.gpu_count

    def stop(self, found: VictimSet) -> None:
        """These are to be stopped: nobody's victims again, and no longer counted for their tenants."""
        self.preemptions.append(found.preemption)
        gone = {victim.job_id for victim in found.victims}
        self.candidates = [one for one in self.candidates if one.job_id not in gone]
        self.lowest = band(self.candidates[0].priority) if self.candidates else None
        for victim in found.victims:
            self.held[victim.tenant_id] -= victim.request.gpu_count
            self.by_class[victim.is_online] -= victim.request.gpu_count
            left = self.left[victim.tenant_id]
            self.left[victim.tenant_id] = None if left is None else left - 1

    def search(
        self, board: Board, shape: Shape, job: Job, *, closed: Iterable[int] = (), ready_only: bool = True
    ) -> VictimSet | None:
        """The victims for one job that does not fit on the board; the board is left as it was.

        `closed`: nodes where nobody may be stopped, as what they give back is promised to somebody else.
        `ready_only` False: also those that have not run for the minimum time yet.
        """
        if not self.may_preempt(job):
            return None
        possible = self._possible(job, frozenset(closed), ready_only)
        chosen = self._on_one_node(board, shape, job, possible)
        if chosen is None and shape.spread:
            chosen = self._anywhere(board, shape, job, possible)
        return self._proved(board, shape, job, chosen) if chosen else None

    def may_preempt(self, job: Job) -> bool:
        """Whether there is anybody to look for. Cheap: it is asked for every request that has no room."""
        tenant = self.tenants[job.tenant_id]
        has_time = self.releases < MAX_RELEASES and len(self.preemptions) < MAX_PREEMPTIONS
        if self.lowest is None or not (tenant.can_preempt_others and has_time):
            return False
        return self.lowest < band(job.priority) or self._is_covered(job) or self._is_online_covered(job)

    def _possible(self, job: Job, closed: frozenset[int], ready_only: bool) -> list[RunningJob]:
        """Whom some rule lets stop for the job, in order."""
        rights = self._rights(job)
        latest = self.now - self.policy.min_runtime_seconds if ready_only else inf
        return [
            one
            for one in self.candidates
            if one.started_at <= latest
            and rights.rule(one)
            and not (closed and any(rank.node_id in closed for rank in one.ranks))
        ]

    def _is_covered(self, job: Job) -> bool:
        """By its tenant's guarantee."""
        left = self.tenants[job.tenant_id].guaranteed_gpus - self.held[job.tenant_id]
        return 0 < job.request.gpu_count <= left

    def _is_online_covered(self, job: Job) -> bool:
        """By the online part of the cluster."""
        if self.parts is None or not job.is_online:
            return False
        return 0 < job.request.gpu_count <= self.parts.online - self.by_class[True]

    def _is_beyond_batch(self, job: Job) -> bool:
        """Would the batch job borrow of the online part, so that it may not take from that?"""
        if self.parts is None or job.is_online:
            return False
        return not job.request.gpu_count or self.by_class[False] + job.request.gpu_count > self.parts.batch

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
        """Lowest priority first, then the tenant most over its share, least loss, youngest, id."""
        share = self._shares[victim.tenant_id]
        return (victim.priority, -share, self.losses[victim.job_id], -victim.started_at, -victim.job_id)

    def _affordable(self, job: Job, possible: Iterable[RunningJob]) -> Iterable[RunningJob]:
        """Of these, in order, as many as budgets and guarantees of their tenants allow together."""
        left, held = dict(self.left), dict(self.held)
        rights = self._rights(job)
        borrowed = borrowing_gpus(self.parts, self.by_class[False]) if self.parts else 0
        for victim in possible:
            tenant_id, gpus = victim.tenant_id, victim.request.gpu_count
            budget = left[tenant_id]
            if budget == 0 or not self._leaves_guarantee(job, victim, held[tenant_id]):
                continue
            if rights.rule(victim) == "online":
                if gpus > borrowed:
                    continue
                borrowed -= gpus
            left[tenant_id] = None if budget is None else budget - 1
            held[tenant_id] -= gpus
            yield victim

    def _leaves_guarantee(self, job: Job, victim: RunningJob, held: int) -> bool:
        """Whether this end leaves its tenant, which holds so many GPUs now, what its guarantee covers."""
        guaranteed, gpus = self.tenants[victim.tenant_id].guaranteed_gpus, victim.request.gpu_count
        if victim.tenant_id != job.tenant_id:
            return held - gpus >= guaranteed
        return job.request.gpu_count > 0 or gpus == 0 or held > guaranteed

    def _on_one_node(self, board: Board, shape: Shape, job: Job, possible: list[RunningJob]) -> list[RunningJob] | None:
        """The cheapest set whose end lets the whole job onto one node: lowest top priority, least loss, fewest."""
        by_node: dict[int, list[RunningJob]] = {}
        for victim in possible:
            ranks = victim.ranks
            for node_id in {rank.node_id for rank in ranks} if len(ranks) != 1 else (ranks[0].node_id,):
                by_node.setdefault(node_id, []).append(victim)
        # Nodes in the order of what they would cost at least; once that is more than the best, no other is better.
        bounds = sorted((self._least_cost(board, shape, node_id, found), node_id) for node_id, found in by_node.items())
        best: tuple[tuple[float, ...], int, list[RunningJob]] | None = None
        for bound, node_id in bounds:
            if best is not None and bound > best[0]:
                break
            chosen = self._on_node(board, shape, job, node_id, by_node[node_id])
            if chosen is not None:
                lost = sum(self.losses[one.job_id] for one in chosen)
                cost = (max(one.priority for one in chosen), lost, len(chosen))
                if best is None or (cost, node_id) < best[:2]:
                    best = cost, node_id, chosen
        return best[2] if best else None

    def _least_cost(self, board: Board, shape: Shape, node_id: int, possible: list[RunningJob]) -> tuple[float, ...]:
        """No set of these, in order, whose end lets the job onto the node costs less: counting only its GPUs, and as if
        all were as large as the largest and all GPUs of each on this node."""
        slot = board.slot_of(node_id)
        short = shape.request.gpu_count - slot.free_count if slot is not None and shape.share_mb is None else 0
        if short <= 0:
            return (0.0, 0.0, 0.0)
        fewest = min(-(-short // max(max(one.request.gpu_count for one in possible), 1)), len(possible))
        losses = sorted([self.losses[one.job_id] for one in possible])
        return (possible[fewest - 1].priority, sum(losses[:fewest]), fewest)

    def _on_node(
        self, board: Board, shape: Shape, job: Job, node_id: int, possible: list[RunningJob]
    ) -> list[RunningJob] | None:
        slot = board.slot_of(node_id)
        if slot is None or not is_offered(board, shape, slot.position):
            return None
        gpus = sum(len(rank.holds) for one in possible for rank in one.ranks if rank.node_id == node_id)
        if shape.share_mb is None and slot.free_count + gpus < shape.request.gpu_count:
            return None
        chosen = self._greedy(shape, job, possible, slot)
        if chosen is not None or not self._is_protected(possible):
            return chosen
        # Budgets and guarantees may have been spent on who gives nothing back that the job could use.
        helping = [one for one in possible if helps(shape, one, slot)]
        return self._greedy(shape, job, helping, slot) if len(helping) < len(possible) else None

    def _is_protected(self, possible: Iterable[RunningJob]) -> bool:
        """Whether not all of these may be stopped together."""
        ids = {one.tenant_id for one in possible}
        return self.parts is not None or any(
            self.left[id] is not None or self.tenants[id].guaranteed_gpus for id in ids
        )

    def _greedy(self, shape: Shape, job: Job, possible: list[RunningJob], slot: NodeSlot) -> list[RunningJob] | None:
        """As many in order as it takes on one node, and of these only who is needed."""
        twin, node_id = slot.copy(), slot.node.id
        chosen: list[RunningJob] = []
        for victim in self._affordable(job, possible):
            self.releases += 1
            chosen.append(victim)
            for rank in victim.ranks:
                if rank.node_id == node_id:
                    twin.release(rank)
            if fits(shape, twin):
                return [one for one in reversed(chosen) if is_needed(shape, twin, one)]
        return None

    def _anywhere(self, board: Board, shape: Shape, job: Job, possible: list[RunningJob]) -> list[RunningJob] | None:
        """For gangs over several nodes: as many in order as it takes."""
        slots = {rank.node_id: board.slot_of(rank.node_id) for one in possible for rank in one.ranks}
        offered = {id: slot for id, slot in slots.items() if slot and is_offered(board, shape, slot.position)}
        helping = [
            one
            for one in possible
            if any(helps(shape, one, offered[rank.node_id]) for rank in one.ranks if rank.node_id in offered)
        ]
        affordable = list(self._affordable(job, helping))
        self.releases += len(affordable)
        ends = [JobEnd(float(number), victim.job_id, victim.ranks) for number, victim in enumerate(affordable)]
        last = first_fit(board.copy(), shape, ends)
        return None if last is None else affordable[: int(last) + 1]

    def _proved(self, board: Board, shape: Shape, job: Job, chosen: list[RunningJob]) -> VictimSet | None:
        """The job placed where these end, after everybody was spared that can be."""
        for victim in chosen:
            board.release(victim.ranks)
        needed: list[RunningJob] = []
        for victim in reversed(chosen):
            board.take(victim.ranks)
            if place(board, shape) is None:
                board.release(victim.ranks)
                needed.append(victim)
        ranks = place(board, shape)
        for victim in needed:
            board.take(victim.ranks)
        if ranks is None or not needed:
            return None
        needed.sort(key=self._order)
        rights = self._rights(job)
        rules = {rights.rule(victim) for victim in needed}
        ids = tuple(victim.job_id for victim in needed)
        lost = sum(loss(victim, self.now) for victim in needed)
        # The strongest right that was needed: for victims of a lower band no other is.
        rule = next(rule for rule in ("reclaim", "online", "priority") if rule in rules)
        made = Preemption(job.id, ids, rule, ranks, lost)
        return VictimSet(tuple(needed), made, max(map(self._ready_at, needed)))


def loss(victim: RunningJob, now: float) -> float:
    """GPU-seconds of work that its end would lose: GPUs x time since its last checkpoint, or its start."""
    since = victim.started_at if victim.saved_at is None else victim.saved_at
    return victim.request.gpu_count * max(now - since, 0.0)
