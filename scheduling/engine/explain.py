"""Gives each job that stays pending its one dominant reason, with the evidence that the sentence names."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property

from scheduling.engine.board import Board, kind_of
from scheduling.engine.feasibility import (
    Inventory,
    Verdict,
    fits,
    matching,
    suitable_gpus,
    survey,
    too_large,
    unmatched,
)
from scheduling.engine.model import Evidence, Job, Node, Placement, Policy, Request, Reservation, Tenant
from scheduling.engine.placement import place, suitable_free
from scheduling.engine.quotas import DIMENSIONS, Block, Use, in_units
from scheduling.engine.shapes import Shape, is_selected, is_suitable


class Scene:
    """The cluster after the cycle, and what it would be if nodes were opened or devices well; built when asked for."""

    def __init__(self, nodes: Sequence[Node], policy: Policy, board: Board, placements: Sequence[Placement]) -> None:
        self.nodes = nodes
        self.policy = policy
        self.board = board
        self._placements = placements

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
    def opened(self) -> Board:
        return self._with_placements(Board(self.nodes, with_closed=True))

    @cached_property
    def well(self) -> Board:
        return self._with_placements(Board(self.nodes, with_unhealthy=True))

    def _with_placements(self, board: Board) -> Board:
        for placement in self._placements:
            board.take(placement.ranks)
        return board


def blocked(scene: Scene, shape: Shape) -> Verdict:
    """Why the request does not start now, the nearest remedy first: what an edit of the job, the end of a maintenance
    or a repair would cure is said before what only time cures."""
    request, policy = shape.request, scene.policy
    verdict = unmatched(request, scene.inventory) or too_large(request, scene.inventory, policy)
    if verdict is not None:
        return verdict
    if not fits(request, matching(request, scene.in_service), policy):
        cured_by_opening = scene.has_closed and fits(request, matching(request, scene.healthy), policy)
        return _maintenance(scene, request) if cured_by_opening or not scene.has_unhealthy else _health(scene, request)
    if scene.has_closed and place(scene.opened, shape) is not None:
        return _maintenance(scene, request)
    if scene.has_unhealthy and place(scene.well, shape) is not None:
        return _health(scene, request)
    return _busy(scene, shape)


def _busy(scene: Scene, shape: Shape) -> Verdict:
    request = shape.request
    without_cpu = Shape(replace(request, cpu_milli=0, memory_mb=0), scene.board, scene.policy)
    if place(scene.board, without_cpu) is not None:
        _, cpu_milli, memory_mb = shape.part(shape.splits[0])
        return Verdict("cpu_memory", {"cpu_cores": in_units(2, cpu_milli), "memory_mb": memory_mb})
    free = free_gpus(scene.board, shape)
    if free >= request.gpu_count:
        per_node = shape.part(shape.splits[-1])[0] if shape.spread else request.gpu_count
        return Verdict("fragmented", {"free": coarse(free), "per_node": per_node})
    types = matching(request, scene.in_service)
    total = sum(suitable_gpus(request, node_type, scene.policy) * count for node_type, count in types)
    return Verdict("capacity", {"requested": request.gpu_count, "free": coarse(free), "total": total})


def _maintenance(scene: Scene, request: Request) -> Verdict:
    closed = [node for node in scene.nodes if not (node.is_open and node.is_online)]
    return Verdict("maintenance", {"nodes": sum(_could_help(node, request, scene.policy) for node in closed)})


def _health(scene: Scene, request: Request) -> Verdict:
    devices = sum(
        not device.is_healthy and is_suitable(request, kind_of(device), scene.policy)
        for node in scene.nodes
        if node.is_open and node.is_online and is_selected(request, tuple(node.labels.items()))
        for device in node.devices
    )
    return Verdict("health", {"devices": devices})


def _could_help(node: Node, request: Request, policy: Policy) -> bool:
    if not is_selected(request, tuple(node.labels.items())):
        return False
    return not request.gpu_count or any(is_suitable(request, kind_of(device), policy) for device in node.devices)


def reserved(board: Board, shape: Shape, reservation: Reservation) -> Verdict:
    """It would fit now, but then another job could not start at its promised time."""
    return Verdict("reserved", {"free": coarse(free_gpus(board, shape)), "at": timestamp(reservation.at)})


def naming(verdict: Verdict, job_id: int, *, is_own: bool) -> Verdict:
    """The same with the job that the promise was made to; one of another tenant is not named."""
    whose: Evidence = (
        {"for_job": job_id, "holder": f"job {job_id}"} if is_own else {"holder": "a job of another tenant"}
    )
    return Verdict(verdict.code, {**verdict.evidence, **whose})


def over_quota(tenant: Tenant, use: Use, block: Block) -> Verdict:
    """`in_use` counts what is kept free for an earlier job of the tenant (`promised_to`), as it is not to be had."""
    number = block.dimension
    evidence: dict[str, str | int | float | bool | None] = {
        "tenant": tenant.name,
        "dimension": DIMENSIONS[number][0],
        "requested": in_units(number, use[number]),
        "limit": in_units(number, block.limit),
        "in_use": in_units(number, block.in_use),
    }
    if block.promise is not None:
        evidence["promised_to"] = block.promise.job_id
    return Verdict("quota_wait", evidence)


def not_yet(job: Job) -> Verdict:
    return Verdict(job.eligible_reason, {"at": timestamp(job.eligible_at)})


def free_gpus(board: Board, shape: Shape) -> int:
    """Suitable devices that could take the request's part now, on nodes that may get work."""
    return sum(
        suitable_free(slot, shape)
        for slot in board.slots
        if board.usable[slot.position] and (shape.allowed is None or slot.position in shape.allowed)
    )


def coarse(count: int) -> int:
    """Exact to 10, then rounded down to its first digit: evidence is stored for each job whenever it changes."""
    step = 10 ** (len(str(count)) - 1)
    return count if count <= 10 else count // step * step


def timestamp(at: float) -> str:
    """RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
