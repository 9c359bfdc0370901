"""Determines the one dominant reason of each job that stays pending, with the evidence for its sentence."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache

from scheduling.engine.affinity import untolerated
from scheduling.engine.board.board import Board, kind_of
from scheduling.engine.board.shapes import Shape, is_selected, is_suitable
from scheduling.engine.bookings.bookings import Bookings, free_kinds
from scheduling.engine.explain.feasibility import blocked_by_taints, too_large, unmatched
from scheduling.engine.explain.inventory import Inventory, eligible, fits, inventory_of, suitable_gpus
from scheduling.engine.limits.accounts import ExceededLimit
from scheduling.engine.limits.online_split import BATCH_GPUS, ONLINE_GPUS
from scheduling.engine.limits.quotas import CPU_CORES, USER_GPUS
from scheduling.engine.model import (
    Booking,
    Device,
    Evidence,
    Job,
    Node,
    Nomination,
    PendingReason,
    Placement,
    Policy,
    Promise,
    Request,
    RunningJob,
    Snapshot,
    Tenant,
    public_id,
)
from scheduling.engine.placement.placement import place, suitable_free

# Topologies that are requirements, not preferences.
_REQUIRED = frozenset({"nvlink", "numa"})
# Reasons whose sentence counts the jobs ahead in the queue.
QUEUE_REASONS = frozenset({"capacity", "priority"})


class ClusterState:
    """The cluster before and after the cycle, and as if nodes were opened, or devices were healthy or cool.

    Those boards are built on first use. `board`: the cycle's own, which it fills.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        board: Board,
        placements: Sequence[Placement],
        nominations: Sequence[Nomination],
        bookings: Bookings | None = None,
        avoided: Collection[int] = (),
    ) -> None:
        """`placements`, `nominations`: those of the cycle so far; both lists grow with it. `avoided`: as of `board`,
        whose shapes suit only boards with the same kinds of devices."""
        self.nodes = snapshot.nodes
        self.policy = policy
        self.board = board
        self.initial_board = board.copy()
        self._running = snapshot.running
        self._placements = placements
        self._nominations = nominations
        self.bookings = bookings
        self._avoided = avoided

    @cached_property
    def placed(self) -> tuple[int, int]:
        """Return how many jobs this cycle starts, and how many devices they hold."""
        ranks = [rank for placement in self._placements for rank in placement.ranks]
        return len(self._placements), sum(len(rank.holds) for rank in ranks)

    @cached_property
    def inventory(self) -> Inventory:
        return inventory_of(self.nodes)

    @cached_property
    def in_service(self) -> Inventory:
        if not (self.has_closed or self.has_unhealthy):
            return self.inventory
        return inventory_of(self.nodes, with_closed=False, with_unhealthy=False)

    @cached_property
    def healthy(self) -> Inventory:
        return inventory_of(self.nodes, with_unhealthy=False)

    @cached_property
    def has_closed(self) -> bool:
        return not all(node.is_open and node.is_online for node in self.nodes)

    @cached_property
    def has_unhealthy(self) -> bool:
        return not all(device.is_healthy for node in self.nodes for device in node.devices)

    @cached_property
    def has_slowed(self) -> bool:
        return self.policy.thermal and any(device.is_slowed for node in self.nodes for device in node.devices)

    @cached_property
    def opened_board(self) -> Board:
        return self._board(self.nodes, with_closed=True)

    @cached_property
    def healthy_board(self) -> Board:
        return self._board(self.nodes, with_unhealthy=True)

    @cached_property
    def cool_board(self) -> Board:
        nodes = [
            replace(node, devices=tuple(replace(device, is_slowed=False) for device in node.devices))
            for node in self.nodes
        ]
        return self._board(nodes)

    @cached_property
    def unbooked_board(self) -> Board:
        return self.present_unbooked()

    @cached_property
    def booked_kinds(self) -> list[tuple[Booking, frozenset[int]]]:
        """Return the active hard bookings, each with the kinds of its devices that would be free if it were not."""
        active = [] if self.bookings is None else self.bookings.active
        return [(booking, free_kinds(booking, self.unbooked_board)) for booking in active if booking.is_hard]

    def present_unbooked(self) -> Board:
        """Return the present board as if nothing were booked. It shares the nodes without an active booking, so it is
        right until the present board changes."""
        if self.bookings is None:
            return self.board
        board = self.board.overlay()
        slots = self.bookings.active_slots()
        for nomination in self._nominations:
            for rank in nomination.ranks:
                if (slot := slots.get(rank.node_id)) is not None:
                    slot.withhold(rank)
        for placement in self._placements:
            for rank in placement.ranks:
                if (slot := slots.get(rank.node_id)) is not None:
                    slot.allocate(rank)
        for slot in slots.values():
            board.put(slot)
        return board

    def _board(self, nodes: Sequence[Node], *, with_closed: bool = False, with_unhealthy: bool = False) -> Board:
        """Return a board of these nodes with everything on it that this cycle has placed or withheld."""
        board = Board(
            nodes, with_closed=with_closed, with_unhealthy=with_unhealthy, thermal=self.policy.thermal,
            running=self._running, avoided=self._avoided,
        )  # fmt: skip
        if self.bookings is not None:
            self.bookings.withhold_active(board)
        return self._allocated(board)

    def _allocated(self, board: Board) -> Board:
        for nomination in self._nominations:
            board.withhold(nomination.ranks)
        for placement in self._placements:
            board.allocate(placement.ranks)
        return board


def blocked(cluster: ClusterState, shape: Shape) -> PendingReason:
    """Return why the request does not start now: the first of these reasons that holds.

    `constraint`, `never_fits`: no node of the inventory could hold it. `taint`: only nodes with taints that it does not
    tolerate could. `maintenance`, `health`: closed nodes or unhealthy devices could. `hot`: devices that cool down
    could. `constraint` (anti-affinity), `topology`, `cpu_memory`: it fits but for that demand. `fragmented`: enough is
    free, not together. `priority`: it would have fitted before this cycle. `capacity`: too little is free.

    Causes that an edit of the job, the end of a maintenance or a repair would cure come before those that only time
    cures.
    """
    request, policy = shape.request, cluster.policy
    inventory = cluster.inventory
    verdict = (
        unmatched(request, inventory)
        or too_large(request, inventory, policy)
        or blocked_by_taints(request, inventory, policy)
    )
    if verdict is not None:
        return verdict
    if not fits(request, eligible(request, cluster.in_service), policy):
        cured_by_opening = cluster.has_closed and fits(request, eligible(request, cluster.healthy), policy)
        health = _health(cluster, request)
        # All faulty devices may be on closed nodes: those must be opened first.
        return _maintenance(cluster, request) if cured_by_opening or not health.evidence["devices"] else health
    if cluster.has_closed and place(cluster.opened_board, shape) is not None:
        return _maintenance(cluster, request)
    if cluster.has_unhealthy and place(cluster.healthy_board, shape) is not None:
        return _health(cluster, request)
    if cluster.has_slowed and place(cluster.cool_board, shape) is not None:
        return PendingReason("hot", {"devices": _devices(cluster, request, _is_only_slowed)})
    return _demanding(cluster, shape) or _busy(cluster, shape)


def _demanding(cluster: ClusterState, shape: Shape) -> PendingReason | None:
    """Return the reason if the request fits but for its demands: the first one without which it fits, or, if it takes
    several, the first one that alone is too much."""
    request = shape.request
    topology = "any" if request.topology in _REQUIRED else request.topology
    plain = replace(request, apart="", topology=topology, cpu_milli=0, memory_mb=0)
    if plain == request or not _fits_as(cluster, plain):
        return None
    demands: list[tuple[Request, Request]] = [  # without it, and with nothing else
        (replace(request, apart=""), replace(plain, apart=request.apart)),
        (replace(request, topology=topology), replace(plain, topology=request.topology)),
        (
            replace(request, cpu_milli=0, memory_mb=0),
            replace(plain, cpu_milli=request.cpu_milli, memory_mb=request.memory_mb),
        ),
    ]
    reasons = (_apart, _topology, _cpu_memory)
    for (without, _), reason in zip(demands, reasons, strict=True):
        if without != request and _fits_as(cluster, without):
            return reason(cluster, shape)
    for (_, alone), reason in zip(demands, reasons, strict=True):
        if alone != plain and not _fits_as(cluster, alone):
            return reason(cluster, shape)
    return _cpu_memory(cluster, shape)


def _apart(cluster: ClusterState, shape: Shape) -> PendingReason:
    # The key is "tenant/name"; the sentence shows the name.
    name = shape.request.apart.partition("/")[2] or shape.request.apart
    constraint = f"the request: jobs of {name} run apart from each other"
    return PendingReason("constraint", {"constraint": constraint, "apart": name})


def _topology(cluster: ClusterState, shape: Shape) -> PendingReason:
    free, per_node = count_in_words(free_gpus(cluster.board, shape)), shape.part(shape.splits[-1])[0]
    return PendingReason("topology", {"free": free, "per_node": per_node, "topology": shape.request.topology})


def _cpu_memory(cluster: ClusterState, shape: Shape) -> PendingReason:
    _, cpu_milli, memory_mb = shape.part(shape.splits[0])
    return PendingReason("cpu_memory", {"cpu_cores": CPU_CORES.to_unit(cpu_milli), "memory_mb": memory_mb})


def _fits_as(cluster: ClusterState, request: Request) -> bool:
    return place(cluster.board, Shape(request, cluster.board, cluster.policy)) is not None


def _busy(cluster: ClusterState, shape: Shape) -> PendingReason:
    request = shape.request
    free = free_gpus(cluster.board, shape)
    if free >= request.gpu_count:
        per_node = shape.part(shape.splits[-1])[0] if shape.spread else request.gpu_count
        return PendingReason("fragmented", {"free": count_in_words(free), "per_node": per_node})
    types = eligible(request, cluster.in_service)
    total = sum(suitable_gpus(request, node_type, cluster.policy) * count for node_type, count in types)
    is_late = cluster.placed[0] > 0 and place(cluster.initial_board, shape) is not None
    evidence = {"requested": request.gpu_count, "free": count_in_words(free), "total": total}
    return PendingReason("priority" if is_late else "capacity", evidence)


def _maintenance(cluster: ClusterState, request: Request) -> PendingReason:
    closed = [node for node in cluster.nodes if not (node.is_open and node.is_online)]
    helping = [node for node in closed if _could_help(node, request, cluster.policy)]
    return PendingReason("maintenance", {"nodes": len(helping), "lost": sum(not node.is_online for node in helping)})


def _health(cluster: ClusterState, request: Request) -> PendingReason:
    return PendingReason("health", {"devices": _devices(cluster, request, lambda device: not device.is_healthy)})


def _devices(cluster: ClusterState, request: Request, is_counted: Callable[[Device], bool]) -> int:
    """Count the devices on nodes in service that would suit the request and are counted."""
    return sum(
        is_counted(device) and is_suitable(request, kind_of(device), cluster.policy)
        for node in cluster.nodes
        if node.is_open and node.is_online and _is_eligible(node, request)
        for device in node.devices
    )


def _is_only_slowed(device: Device) -> bool:
    return device.is_slowed and device.is_healthy


def _could_help(node: Node, request: Request, policy: Policy) -> bool:
    if not _is_eligible(node, request):
        return False
    suitable = (device for device in node.devices if is_suitable(request, kind_of(device), policy))
    return not request.gpu_count or any(device.is_healthy for device in suitable)


def _is_eligible(node: Node, request: Request) -> bool:
    if not is_selected(request, tuple(node.labels.items())):
        return False
    return not (node.taints and untolerated(node.taints, request.tolerations, request.gpu_count))


def promised_to_other(board: Board, shape: Shape, promise: Promise) -> PendingReason:
    """Return that the request fits now, but would delay the start promised to another job."""
    return PendingReason("reserved", {"free": count_in_words(free_gpus(board, shape)), "at": timestamp(promise.at)})


def name_promised_job(verdict: PendingReason, job_id: int, *, is_own: bool) -> PendingReason:
    """Return the reason with the job that holds the promise; a job of another tenant is not named."""
    job = public_id(job_id)
    whose: Evidence = {"for_job": job, "holder": f"job {job}"} if is_own else {"holder": "a job of another tenant"}
    return PendingReason(verdict.code, {**verdict.evidence, **whose})


def over_quota(tenant: Tenant, block: ExceededLimit) -> PendingReason:
    """Return the reason of a job that an exceeded limit stops.

    `in_use` includes the amount kept free for an earlier job (`promised_to`, if it is the tenant's own).
    """
    dimension, promise = block.dimension, block.promise
    evidence: dict[str, str | int | float | bool | None] = {
        "tenant": tenant.name,
        "requested": dimension.to_unit(block.requested),
        "in_use": dimension.to_unit(block.in_use),
    }
    if dimension is USER_GPUS:
        evidence["user_limit"] = dimension.to_unit(block.limit)
    else:
        is_part = dimension in (ONLINE_GPUS, BATCH_GPUS)
        whose = "all tenants together" if is_part else f"tenant {tenant.name}"
        evidence |= {"whose": whose, "dimension": dimension.name, "limit": dimension.to_unit(block.limit)}
    if promise is not None:
        evidence["promised_to"] = public_id(promise.job_id) if promise.tenant_id == tenant.id else None
    return PendingReason(dimension.code, evidence)


def not_yet(job: Job) -> PendingReason:
    return PendingReason(job.eligible_reason, {"at": timestamp(job.eligible_at)})


def reclaim_pending(stopping: Sequence[RunningJob], rule: str, now: float) -> PendingReason:
    """Return that running jobs are being stopped for the job, by this rule."""
    gpus = sum(victim.request.gpu_count for victim in stopping)
    at = max(
        victim.ends_by if victim.is_stopping and victim.ends_by else now + victim.grace_seconds for victim in stopping
    )
    return PendingReason("reclaim_pending", {"victims": len(stopping), "gpus": gpus, "rule": rule, "at": timestamp(at)})


def preempt_delay(at: float, victims: int) -> PendingReason:
    """Return that running jobs may be stopped for the job, but not yet."""
    return PendingReason("preempt_delay", {"victims": victims, "at": timestamp(at)})


def free_gpus(board: Board, shape: Shape) -> int:
    """Count the suitable devices that are free for the request now, on nodes that may get work; none for a request
    without GPUs."""
    free = 0
    if not shape.request.gpu_count:
        return free
    for shelf in board.shelves:
        for positions in shelf.values():
            nodes = len(positions) if shape.allowed is None else sum(at in shape.allowed for at in positions)
            free += nodes and nodes * suitable_free(board.slots[positions[0]], shape)
    return free


@lru_cache(maxsize=10_000)
def count_in_words(count: int) -> int | str:
    """Return a count, exact to 10 and if only one digit is not zero; otherwise "more than" such a number: 37 is "more
    than 30".

    A reason is stored for each waiting job and rewritten only when it changes. With exact counts each start and each
    end would rewrite those of the whole queue; "more than 30" stays true from 31 to 39.
    """
    step = 10 ** (len(str(count)) - 1)
    return count if count <= 10 or count % step == 0 else f"more than {count // step * step}"


# 9999-12-31, the last date that Python can format: a job with a later time must not fail the cycle.
_MAX_TIMESTAMP = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()


def timestamp(at: float) -> str:
    """Return a time as RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(min(at, _MAX_TIMESTAMP), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
