"""Reruns a recorded cycle, and explains why its jobs went to their nodes and not to others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduling.engine.affinity import PREFER_NO_SCHEDULE, is_met, untolerated
from scheduling.engine.board.board import Board, NodeSlot, kind_of
from scheduling.engine.board.node_index import taints_and_weight
from scheduling.engine.board.shapes import Shape, is_selected, is_suitable
from scheduling.engine.limits.quotas import CPU_CORES
from scheduling.engine.model import Node, Placement, Plan, Policy, RankPlacement, Request, Snapshot
from scheduling.engine.placement.devices import rank_capacity, ranks_that_fit, suitable_free
from scheduling.engine.placement.placement import place
from scheduling.engine.placement.scorers import scorer_of
from scheduling.engine.planner import plan
from scheduling.engine.whatif.counterfactual import Step, obstacles
from scheduling.engine.whatif.questions import Present


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded cycle: the input of the engine, and its plan."""

    now: float
    policy: Policy
    snapshot: Snapshot
    plan: Plan


class Obstacle(NamedTuple):
    """A check that a node failed for a job: `name`, and the result as a clause."""

    name: str
    sentence: str


def record(snapshot: Snapshot, policy: Policy, now: float) -> Recording:
    return Recording(now, policy, snapshot, plan(snapshot, policy, now))


def rerun(recording: Recording) -> Plan:
    """Return the plan that this engine makes of a recorded cycle."""
    return plan(recording.snapshot, recording.policy, recording.now)


def placement_of(recorded_plan: Plan, job_id: int) -> Placement | None:
    return next((placement for placement in recorded_plan.placements if placement.job_id == job_id), None)


@dataclass(frozen=True)
class Replayed:
    """A recorded cycle planned again. For the requested job: `steps`, why it waits and which changes would start it;
    `obstacles`, why it does not go to the requested node."""

    plan: Plan
    steps: Sequence[Step] = ()
    obstacles: Sequence[Obstacle] = ()


def replay(present: Present, job_id: int | None = None, node_id: int | None = None) -> Replayed:
    """Plan a recorded cycle again, by the policy of `present`. Raise KeyError as `why_not` does."""
    new_plan = plan(present.snapshot, present.policy, present.now)
    if job_id is None:
        return Replayed(new_plan)
    steps = obstacles(present.snapshot, present.policy, present.now, job_id, new_plan)
    if node_id is None:
        return Replayed(new_plan, steps)
    recording = Recording(present.now, present.policy, present.snapshot, new_plan)
    return Replayed(new_plan, steps, why_not(recording, job_id, node_id))


def why_not(recording: Recording, job_id: int, node_id: int) -> list[Obstacle]:
    """Return all checks that the node fails for the job, at the moment when the job was decided on; for a node that
    fails none, the deciding difference. Empty: the job did go there.

    Raises KeyError for a job that was not waiting, or an unknown node.
    """
    request = next((job.request for job in recording.snapshot.jobs if job.id == job_id), None)
    node = next((node for node in recording.snapshot.nodes if node.id == node_id), None)
    if request is None or node is None:
        raise KeyError(job_id if request is None else node_id)
    placed = placement_of(recording.plan, job_id)
    if placed is not None and any(rank.node_id == node_id for rank in placed.ranks):
        return []
    board = _board(recording, job_id)
    slot = board.slot_of(node_id)
    assert slot is not None  # every node of the snapshot has its slot
    shape = Shape(request, board, recording.policy)
    split = len(placed.ranks) if placed else (shape.splits[-1] if shape.splits else 1)
    failed = [*_failed_of_node(node, request), *_failed_of_devices(node, slot, shape, split, recording.policy)]
    failed += _failed_of_rest(slot, shape, split)
    return failed or [_decided(recording, board, slot, shape, job_id, placed)]


def _board(recording: Recording, job_id: int) -> Board:
    """Return the board when the job was decided on; for a job that was not placed, at the end of the cycle."""
    snapshot, policy = recording.snapshot, recording.policy
    board = Board(snapshot.nodes, thermal=policy.thermal, running=snapshot.running)
    for placement in recording.plan.placements:
        if placement.job_id == job_id:
            break
        board.allocate(placement.ranks)
    return board


def _failed_of_node(node: Node, request: Request) -> list[Obstacle]:
    obstacles = []
    if not node.is_online:
        obstacles.append(Obstacle("closed", "it does not report"))
    elif not node.is_open:
        obstacles.append(Obstacle("closed", "it is cordoned or draining"))
    for name, value in request.node_selector:
        if not is_selected(Request(node_selector=((name, value),)), tuple(node.labels.items())):
            obstacles.append(
                Obstacle("labels", f"it has no {name}" if " " in name else f"it has no label {name}={value}")
            )
    for expression in request.required:
        if not is_met(expression, node.labels):
            obstacles.append(Obstacle("labels", f"its labels do not meet {expression}"))
    for taint in untolerated(node.taints, request.tolerations, request.gpu_count):
        obstacles.append(Obstacle("taints", f"the job does not tolerate its taint {taint}"))
    return obstacles


def _failed_of_devices(node: Node, slot: NodeSlot, shape: Shape, split: int, policy: Policy) -> list[Obstacle]:
    request = shape.request
    each = request.gpu_count // max(split, 1)
    if not each:
        return []
    named = Request(gpu_count=1, gpu_models=request.gpu_models)
    of_model = [device for device in node.devices if is_suitable(named, kind_of(device), Policy())]
    if len(of_model) < each:
        models = " or ".join(request.gpu_models)
        return [Obstacle("model", f"{len(of_model)} of its GPUs are {models or 'there'}; a rank needs {each}")]
    suitable = [device for device in of_model if is_suitable(request, kind_of(device), policy)]
    if len(suitable) < each:
        memory = f"{request.gpu_memory_mb} MiB under the load ceiling"
        return [Obstacle("memory", f"{len(suitable)} of its GPUs have {memory}; a rank needs {each}")]
    well = [device for device in suitable if device.is_healthy]
    if len(well) < each:
        return [
            Obstacle("health", f"{len(suitable) - len(well)} suitable GPUs are out of service; a rank needs {each}")
        ]
    cool = [device for device in well if not (policy.thermal and device.is_slowed)]
    if len(cool) < each:
        return [Obstacle("hot", f"{len(well) - len(cool)} suitable GPUs are slowed down by heat; a rank needs {each}")]
    free = suitable_free(slot, shape)
    if free < each:
        return [Obstacle("free", f"{free} of {len(cool)} suitable GPUs are free; a rank needs {each}")]
    return []


def _failed_of_rest(slot: NodeSlot, shape: Shape, split: int) -> list[Obstacle]:
    failed = []
    gpus, cpu_milli, memory_mb = shape.part(max(split, 1))
    if cpu_milli > 0 and slot.cpu_milli < cpu_milli:
        cores, free = CPU_CORES.to_unit(cpu_milli), CPU_CORES.to_unit(max(slot.cpu_milli, 0))
        failed.append(Obstacle("cpu", f"{free} CPU cores are free; a rank needs {cores}"))
    if memory_mb > 0 and slot.memory_mb < memory_mb:
        failed.append(
            Obstacle("node_memory", f"{max(slot.memory_mb, 0)} MiB of memory are free; a rank needs {memory_mb}")
        )
    if not failed and suitable_free(slot, shape) >= gpus > 1 and not rank_capacity(slot, shape, max(split, 1)):
        failed.append(Obstacle("topology", f"no {gpus} free GPUs are joined as topology {shape.request.topology} asks"))
    if not ranks_that_fit(slot, shape, max(split, 1)) and rank_capacity(slot, shape, max(split, 1)):
        failed.append(Obstacle("apart", "a job runs there that this one keeps apart from"))
    return failed


def _decided(
    recording: Recording, board: Board, slot: NodeSlot, shape: Shape, job_id: int, placed: Placement | None
) -> Obstacle:
    """Return the deciding difference between nodes that could hold the job; or why else the job waits."""
    if placed is None:
        reason = recording.plan.reason_of(job_id)
        needs_more = shape.request.gpu_count and ranks_that_fit(slot, shape, 1) < 1
        if needs_more:
            return Obstacle("free", "a rank would fit, not the whole gang")
        return Obstacle(reason.code if reason else "starts", "it has room; the job waits for another reason")
    if len({rank.node_id for rank in placed.ranks}) > 1:
        return Obstacle("score", "it has room for a rank; the gang took the widest nodes, so as to span the fewest")
    if welcome := _less_welcome(board, slot, shape, placed):
        return welcome
    policy = recording.policy
    # As in the planner: without a recorded mix, the waiting jobs are the mix.
    waiting = [(job.request, 1.0) for job in recording.snapshot.jobs if job.eligible_at <= recording.now]
    board.scorer = scorer_of(recording.snapshot.mix or waiting, board, policy)
    chosen = board.slot_of(placed.ranks[0].node_id)
    ranks = _alone(recording, slot.node, placed)
    if board.scorer is None or chosen is None or ranks is None:
        return Obstacle("score", "it has room; the other node fits more tightly")
    score, best = _score(board, slot, ranks), _score(board, chosen, placed.ranks)
    tie = "; of equal ones the tighter fit, then the lower number" if score == best else ""
    return Obstacle("score", f"its score is {score}, that of {chosen.node.name} is {best}; the higher wins{tie}")


def _less_welcome(board: Board, slot: NodeSlot, shape: Shape, placed: Placement) -> Obstacle | None:
    """Return the obstacle if the chosen node is more welcome by its taints, or by the job's preferences."""
    chosen = board.slot_of(placed.ranks[0].node_id)
    if chosen is None or not shape.penalties or shape.penalties[slot.position] <= shape.penalties[chosen.position]:
        return None
    (taints, weight), (_, best) = (taints_and_weight(shape.penalties[other.position]) for other in (slot, chosen))
    if taints:
        avoided = ", ".join(
            map(
                str,
                untolerated(slot.node.taints, shape.request.tolerations, shape.request.gpu_count, PREFER_NO_SCHEDULE),
            )
        )
        return Obstacle("taints", f"it has room, but the job avoids its taint {avoided}")
    name = chosen.node.name
    return Obstacle("preference", f"it meets preferences of weight {weight}, {name} of weight {best}; the higher wins")


def _alone(recording: Recording, node: Node, placed: Placement) -> tuple[RankPlacement, ...] | None:
    """Return where the job would have gone if this node were the only one."""
    only = Board((node,), thermal=recording.policy.thermal, running=recording.snapshot.running)
    for placement in recording.plan.placements:
        if placement is placed:
            break
        only.allocate(placement.ranks)
    request = next(job.request for job in recording.snapshot.jobs if job.id == placed.job_id)
    return place(only, Shape(request, only, recording.policy))


def _score(board: Board, slot: NodeSlot, ranks: tuple[RankPlacement, ...]) -> int:
    after = slot.copy()
    for rank in ranks:
        after.allocate(rank)
    states = [
        board.state(state.node_class, state.cpu_milli, state.memory_mb, *state.counted()) for state in (slot, after)
    ]
    return board.scorer.score(*states) if board.scorer else 0
