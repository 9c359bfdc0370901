"""Gives each job that stays pending its one dominant reason, with the evidence that the sentence names."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache

from scheduling.engine.affinity import untolerated
from scheduling.engine.board.board import Board, kind_of
from scheduling.engine.board.shapes import Shape, is_selected, is_suitable
from scheduling.engine.explain.feasibility import shut_out, too_large, unmatched
from scheduling.engine.explain.inventory import Inventory, eligible, fits, suitable_gpus, survey
from scheduling.engine.limits.accounts import ExceededLimit
from scheduling.engine.limits.online_split import BATCH_GPUS, ONLINE_GPUS
from scheduling.engine.limits.quotas import CPU_CORES, USER_GPUS
from scheduling.engine.model import (
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

# Topologies that are demands, not wishes.
_REQUIRED = frozenset({"nvlink", "numa"})
# Reasons that say what comes first in the queue.
BEHIND = frozenset({"capacity", "priority"})


class ClusterState:
    """The cluster before and after the cycle, and what it would be if nodes were opened, or devices well or cool; those
    are built when asked for. `board`: as the cycle finds it, and then as the cycle fills it."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        board: Board,
        placements: Sequence[Placement],
        claims: Sequence[Nomination],
    ) -> None:
        """`placements`, `claims`: as the cycle finds them so far; both grow with it."""
        self.nodes = snapshot.nodes
        self.policy = policy
        self.board = board
        self.before = board.copy()
        self._running = snapshot.running
        self._placements = placements
        self._claims = claims

    @cached_property
    def placed(self) -> tuple[int, int]:
        """Jobs that this cycle starts, and their devices."""
        ranks = [rank for placement in self._placements for rank in placement.ranks]
        return len(self._placements), sum(len(rank.holds) for rank in ranks)

    @cached_property
    def inventory(self) -> Inventory:
        return survey(self.nodes)

    @cached_property
    def in_service(self) -> Inventory:
        if not (self.has_closed or self.has_unhealthy):
            return self.inventory
        return survey(self.nodes, with_closed=False, with_unhealthy=False)

    @cached_property
    def healthy(self) -> Inventory:
        return survey(self.nodes, with_unhealthy=False)

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
    def opened(self) -> Board:
        return self._filled(Board(self.nodes, with_closed=True, thermal=self.policy.thermal, running=self._running))

    @cached_property
    def well(self) -> Board:
        return self._filled(Board(self.nodes, with_unhealthy=True, thermal=self.policy.thermal, running=self._running))

    @cached_property
    def cool(self) -> Board:
        nodes = [
            replace(node, devices=tuple(replace(device, is_slowed=False) for device in node.devices))
            for node in self.nodes
        ]
        return self._filled(Board(nodes, thermal=self.policy.thermal, running=self._running))

    def _filled(self, board: Board) -> Board:
        for claim in self._claims:
            board.withhold(claim.ranks)
        for placement in self._placements:
            board.take(placement.ranks)
        return board


def blocked(scene: ClusterState, shape: Shape) -> PendingReason:
    """Why the request does not start now. Exactly one reason is dominant: the first of these that holds.

    `constraint`, `never_fits`: no node of the inventory would do. `taint`: none whose taints it tolerates.
    `maintenance`, `health`: closed nodes or sick devices would. `hot`: devices that cool down would. `constraint`
    (apart), `topology`, `cpu_memory`: it fits but for that demand. `fragmented`: enough is free, not together.
    `priority`: it would have fitted before this cycle. `capacity`.
    So what an edit of the job, the end of a maintenance or a repair would cure is said before what only time cures.
    """
    request, policy = shape.request, scene.policy
    inventory = scene.inventory
    verdict = (
        unmatched(request, inventory) or too_large(request, inventory, policy) or shut_out(request, inventory, policy)
    )
    if verdict is not None:
        return verdict
    if not fits(request, eligible(request, scene.in_service), policy):
        cured_by_opening = scene.has_closed and fits(request, eligible(request, scene.healthy), policy)
        return _maintenance(scene, request) if cured_by_opening or not scene.has_unhealthy else _health(scene, request)
    if scene.has_closed and place(scene.opened, shape) is not None:
        return _maintenance(scene, request)
    if scene.has_unhealthy and place(scene.well, shape) is not None:
        return _health(scene, request)
    if scene.has_slowed and place(scene.cool, shape) is not None:
        return PendingReason("hot", {"devices": _devices(scene, request, lambda device: device.is_slowed)})
    return _demanding(scene, shape) or _busy(scene, shape)


def _demanding(scene: ClusterState, shape: Shape) -> PendingReason | None:
    """It fits but for one of its demands."""
    request = shape.request
    if request.apart and _fits_as(scene, replace(request, apart="")):
        # The name is that of the tenant's jobs: "tenant/name".
        name = request.apart.partition("/")[2] or request.apart
        return PendingReason("constraint", {"constraint": f"the request: jobs of {name} run apart from each other"})
    if request.topology in _REQUIRED and _fits_as(scene, replace(request, topology="any")):
        free, per_node = count_in_words(free_gpus(scene.board, shape)), shape.part(shape.splits[-1])[0]
        return PendingReason("topology", {"free": free, "per_node": per_node, "topology": request.topology})
    if _fits_as(scene, replace(request, cpu_milli=0, memory_mb=0)):
        _, cpu_milli, memory_mb = shape.part(shape.splits[0])
        return PendingReason("cpu_memory", {"cpu_cores": CPU_CORES.shown(cpu_milli), "memory_mb": memory_mb})
    return None


def _fits_as(scene: ClusterState, request: Request) -> bool:
    return place(scene.board, Shape(request, scene.board, scene.policy)) is not None


def _busy(scene: ClusterState, shape: Shape) -> PendingReason:
    request = shape.request
    free = free_gpus(scene.board, shape)
    if free >= request.gpu_count:
        per_node = shape.part(shape.splits[-1])[0] if shape.spread else request.gpu_count
        return PendingReason("fragmented", {"free": count_in_words(free), "per_node": per_node})
    types = eligible(request, scene.in_service)
    total = sum(suitable_gpus(request, node_type, scene.policy) * count for node_type, count in types)
    is_late = scene.placed[0] > 0 and place(scene.before, shape) is not None
    evidence = {"requested": request.gpu_count, "free": count_in_words(free), "total": total}
    return PendingReason("priority" if is_late else "capacity", evidence)


def _maintenance(scene: ClusterState, request: Request) -> PendingReason:
    closed = [node for node in scene.nodes if not (node.is_open and node.is_online)]
    helping = [node for node in closed if _could_help(node, request, scene.policy)]
    return PendingReason("maintenance", {"nodes": len(helping), "lost": sum(not node.is_online for node in helping)})


def _health(scene: ClusterState, request: Request) -> PendingReason:
    return PendingReason("health", {"devices": _devices(scene, request, lambda device: not device.is_healthy)})


def _devices(scene: ClusterState, request: Request, is_counted: Callable[[Device], bool]) -> int:
    """How many devices of this sort would suit the request, on nodes in service."""
    return sum(
        is_counted(device) and is_suitable(request, kind_of(device), scene.policy)
        for node in scene.nodes
        if node.is_open and node.is_online and _is_eligible(node, request)
        for device in node.devices
    )


def _could_help(node: Node, request: Request, policy: Policy) -> bool:
    if not _is_eligible(node, request):
        return False
    return not request.gpu_count or any(is_suitable(request, kind_of(device), policy) for device in node.devices)


def _is_eligible(node: Node, request: Request) -> bool:
    if not is_selected(request, tuple(node.labels.items())):
        return False
    return not (node.taints and untolerated(node.taints, request.tolerations, request.gpu_count))


def promised_to_other(board: Board, shape: Shape, reservation: Promise) -> PendingReason:
    """It would fit now, but then another job could not start at its promised time."""
    return PendingReason("reserved", {"free": count_in_words(free_gpus(board, shape)), "at": timestamp(reservation.at)})


def name_promised_job(verdict: PendingReason, job_id: int, *, is_own: bool) -> PendingReason:
    """The same with the job that the promise was made to; one of another tenant is not named."""
    known = public_id(job_id)
    whose: Evidence = {"for_job": known, "holder": f"job {known}"} if is_own else {"holder": "a job of another tenant"}
    return PendingReason(verdict.code, {**verdict.evidence, **whose})


def over_quota(tenant: Tenant, block: ExceededLimit) -> PendingReason:
    """`in_use` counts what is kept free for an earlier job (`promised_to`, if it is the tenant's own), as it is not to
    be had."""
    dimension, promise = block.dimension, block.promise
    evidence: dict[str, str | int | float | bool | None] = {
        "tenant": tenant.name,
        "requested": dimension.shown(block.requested),
        "in_use": dimension.shown(block.in_use),
    }
    if dimension is USER_GPUS:
        evidence["user_limit"] = dimension.shown(block.limit)
    else:
        is_part = dimension in (ONLINE_GPUS, BATCH_GPUS)
        whose = "all tenants together" if is_part else f"tenant {tenant.name}"
        evidence |= {"whose": whose, "dimension": dimension.name, "limit": dimension.shown(block.limit)}
    if promise is not None:
        evidence["promised_to"] = public_id(promise.job_id) if promise.tenant_id == tenant.id else None
    return PendingReason(dimension.code, evidence)


def not_yet(job: Job) -> PendingReason:
    return PendingReason(job.eligible_reason, {"at": timestamp(job.eligible_at)})


def reclaim_pending(stopping: Sequence[RunningJob], rule: str, now: float) -> PendingReason:
    """Others were told to stop for it, by this rule."""
    gpus = sum(one.request.gpu_count for one in stopping)
    at = max(one.ends_by if one.is_stopping and one.ends_by else now + one.grace_seconds for one in stopping)
    return PendingReason("reclaim_pending", {"victims": len(stopping), "gpus": gpus, "rule": rule, "at": timestamp(at)})


def preempt_delay(at: float, victims: int) -> PendingReason:
    """Others may be stopped for it, but not yet."""
    return PendingReason("preempt_delay", {"victims": victims, "at": timestamp(at)})


def free_gpus(board: Board, shape: Shape) -> int:
    """Suitable devices that could take the request's part now, on nodes that may get work."""
    free = 0
    for shelf in board.shelves:
        for positions in shelf.values():
            nodes = len(positions) if shape.allowed is None else sum(one in shape.allowed for one in positions)
            free += nodes and nodes * suitable_free(board.slots[positions[0]], shape)
    return free


@lru_cache(maxsize=10_000)
def count_in_words(count: int) -> int | str:
    """Exact to 10 and where only one digit is not zero, otherwise "more than" such a number: 37 is "more than 30".

    A reason is stored for each job that waits and rewritten only when it changes. With exact counts each start and each
    end would rewrite those of the whole queue; "more than 30" stays true, and stays as it is, from 31 to 39.
    """
    step = 10 ** (len(str(count)) - 1)
    return count if count <= 10 or count % step == 0 else f"more than {count // step * step}"


# 9999-12-31: no date is later, and no job must keep a cycle from saying when the others start.
_LAST = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()


def timestamp(at: float) -> str:
    """RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(min(at, _LAST), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
