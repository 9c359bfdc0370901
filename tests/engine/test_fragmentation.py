"""Which node spoils the least: the score of a placement, term by term and against a slow second opinion."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from scheduling.engine.board.board import Board
from scheduling.engine.board.shapes import is_model
from scheduling.engine.model import Device, Node, Policy, Request
from scheduling.engine.placement.fragmentation import Fragmentation
from scheduling.engine.placement.scorers import PLACEMENTS, scorer_of
from tests.engine.scenario import ask, cluster, decide, gpu, job, node, nodes_of

Mix = Sequence[tuple[Request, float]]
MODELS = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 PCIe")


@pytest.mark.parametrize("seed", range(40))
def test_lost_gpus_agree_with_the_definition(seed: int) -> None:
    """On random nodes and mixes, computed from the docstring of Fragmentation alone."""
    rng = Random(seed)
    nodes = [_node(rng, id) for id in (1, 2, 3)]
    request_mix = [(_request(rng), float(rng.randint(1, 9))) for _ in range(8)]
    board = Board(nodes)
    scorer = Fragmentation(request_mix, board, Policy())
    for slot, entry in zip(board.slots, nodes, strict=True):
        state = board.shelved_state(slot.position)
        assert state is not None
        assert scorer.lost(state) == pytest.approx(_lost(entry, nodes, request_mix), abs=1e-9)


def test_a_node_that_fits_a_wanted_request_is_not_broken_up() -> None:
    """One GPU: the node with three left can spare one; the other would no longer take the two-GPU jobs of the mix."""
    nodes = [node(1, gpus=[gpu(1), gpu(2)]), node(2, gpus=[gpu(3), gpu(4), gpu(5)])]
    request_mix = ((ask(2), 9.0), (ask(1), 1.0))
    assert nodes_of(decide(replace(cluster(*nodes, jobs=[job(1)]), mix=request_mix)), 1) == [2]
    assert nodes_of(decide(cluster(*nodes, jobs=[job(1)]), Policy(placement="tightest")), 1) == [1]


def test_queue_is_the_request_mix_without_a_recorded_one() -> None:
    nodes = [node(1, gpus=[gpu(1), gpu(2)]), node(2, gpus=[gpu(3), gpu(4), gpu(5)])]
    late = [job(id, gpus=2, priority=300) for id in range(2, 9)]
    assert nodes_of(decide(cluster(*nodes, jobs=[job(1), *late])), 1) == [2]


def test_jobs_without_gpus_take_cpu_that_no_gpu_needs() -> None:
    """Both nodes have a GPU for ten cores; the first has just these, the second more."""
    nodes = [node(1, gpus=1, cpu=10), node(2, gpus=1, cpu=30)]
    request_mix = ((ask(1, cpu_milli=10_000), 1.0),)
    new_plan = decide(replace(cluster(*nodes, jobs=[job(1, gpus=0, cpu_milli=5_000)]), mix=request_mix))
    assert nodes_of(new_plan, 1) == [2]


def test_cpu_hungry_jobs_do_not_strand_gpus() -> None:
    """Eight GPUs with eight cores each: a job of one GPU and 30 cores goes where GPUs are gone already."""
    nodes = [
        node(1, cpu=64),
        replace(node(2, cpu=64, gpus=[gpu(200 + n, exclusive=n > 0) for n in range(8)]), cpu_milli_free=36_000),
    ]
    request_mix = ((ask(1, cpu_milli=8_000), 9.0), (ask(1, cpu_milli=30_000), 1.0))
    assert nodes_of(decide(replace(cluster(*nodes, jobs=[job(1, cpu_milli=30_000)]), mix=request_mix)), 1) == [2]


def test_models_that_some_requests_require_are_used_last() -> None:
    """Any GPU will do; half of the mix needs an H100."""
    nodes = [node(1, gpus=[gpu(1, model="NVIDIA H100 PCIe")]), node(2, gpus=[gpu(2)])]
    request_mix = ((ask(1), 1.0), (ask(1, gpu_models=("H100",)), 1.0))
    assert nodes_of(decide(replace(cluster(*nodes, jobs=[job(1)]), mix=request_mix)), 1) == [2]


def test_a_mix_of_few_requests_does_not_decide_alone() -> None:
    """Only halves are requested, but they are packed: whole devices may be requested next."""
    halves = [job(id, shared=True, gpu_memory_mb=30_000) for id in range(1, 5)]
    new_plan = decide(cluster(node(1, gpus=4), jobs=halves))
    gpus_held = [hold.device_id for placement in new_plan.placements for rank in placement.ranks for hold in rank.holds]
    assert len(set(gpus_held)) == 2


def test_scores_that_are_nearly_equal_are_equal_and_the_first_node_fills_up() -> None:
    """A job takes 100 millicores more than a GPU comes with: an 80th of a GPU is lost on the first node, less on the
    others. A difference of less than a 25th is none."""
    nodes = [replace(node(id), cpu_milli_free=64_000 + 50 * (id - 1)) for id in (1, 2, 3)]
    new_plan = decide(replace(cluster(*nodes, jobs=[job(1, cpu_milli=8_100)]), mix=((ask(1, cpu_milli=8_000), 1.0),)))
    assert nodes_of(new_plan, 1) == [1]


def test_the_order_of_the_mix_does_not_matter_to_the_last_bit() -> None:
    """A21: sums of floats depend on their order."""
    rng = Random(5)
    board = Board([_node(rng, id) for id in range(1, 7)])
    states = [state for slot in board.slots if (state := board.shelved_state(slot.position)) is not None]
    for _ in range(20):
        request_mix = [(_request(rng), rng.random()) for _ in range(20)]
        lost = []
        for order in (request_mix, rng.sample(request_mix, len(request_mix))):
            for state in states:
                state.fragments = None
            lost.append([Fragmentation(order, board, Policy()).lost(state) for state in states])
        assert lost[0] == lost[1]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_scorer_finds_the_only_suitable_node(placement: str) -> None:
    nodes = [node(1, gpus=1), node(2, cpu=1), node(3)]
    new_plan = decide(cluster(*nodes, jobs=[job(1, gpus=2, cpu_milli=2_000)]), Policy(placement=placement))
    assert nodes_of(new_plan, 1) == [3]


def test_an_unknown_placement_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no placement is named 'worst'"):
        scorer_of((), Board([node(1)]), Policy(placement="worst"))


def _node(rng: Random, id: int) -> Node:
    devices = tuple(
        Device(id * 10 + n, rng.choice(MODELS), rng.choice([40_000, 80_000]), shared_mb=rng.choice([0, 0, 0, 9_000]))
        for n in range(rng.choice([1, 2, 4]))
    )
    cpu, memory_mb = rng.choice([16_000, 64_000]), rng.choice([60_000, 256_000])
    return Node(id, f"n{id}", cpu, memory_mb, rng.randint(0, cpu), rng.randint(0, memory_mb), devices)


def _request(rng: Random) -> Request:
    shared = rng.random() < 0.4
    return Request(
        gpu_count=1 if shared else rng.choice([1, 2, 4]),
        gpu_memory_mb=rng.choice([5_000, 20_000, 30_000]) if shared else None,
        gpu_models=rng.choice([(), (), ("A100",), ("H100",)]),
        shared=shared,
        cpu_milli=rng.choice([1_000, 8_000, 20_000]),
        memory_mb=rng.choice([0, 30_000]),
    )


def _lost(one: Node, nodes: Sequence[Node], request_mix: Mix) -> float:
    jobs_by_id = [
        (request, weight)
        for request, weight in request_mix
        if _suitable(request, [d for n in nodes for d in n.devices])
    ]
    smallest = min(_limit(device) for each in nodes for device in each.devices)
    powers = [2**power for power in range(3) if 2**power <= max(len(each.devices) for each in nodes)]
    imagined = [Request(power, cpu_milli=0) for power in powers]
    imagined.append(Request(1, smallest // 2, shared=True, cpu_milli=0))
    everybody = [*jobs_by_id, *((request, 1.0) for request in imagined)]
    total = sum(weight for _, weight in everybody)
    free = sum(_part(device) for device in one.devices)
    lost = sum(weight / total * (free - _usable(request, one)) for request, weight in everybody)
    gpus = sum(weight * _size(request, nodes) for request, weight in jobs_by_id)
    for had, has, requested in (
        (one.cpu_milli, one.cpu_milli_free, sum(weight * request.cpu_milli for request, weight in jobs_by_id)),
        (one.memory_mb, one.memory_mb_free, sum(weight * request.memory_mb for request, weight in jobs_by_id)),
    ):
        each_gpu = min(requested / gpus, had / len(one.devices)) if gpus else 0.0
        lost += max(free - has / each_gpu, 0.0) if each_gpu else 0.0
    return (
        lost - sum(_part(device) * (_pressure(device, nodes, jobs_by_id) - 1) for device in one.devices)
        if gpus
        else lost
    )


def _usable(request: Request, one: Node) -> float:
    if request.cpu_milli > one.cpu_milli_free or request.memory_mb > one.memory_mb_free:
        return 0.0
    suitable = _suitable(request, one.devices)
    if request.shared:
        return sum(_part(device) for device in suitable if _limit(device) - device.shared_mb >= _share(request))
    whole = [device for device in suitable if not device.shared_mb]
    return float(len(whole)) if len(whole) >= request.gpu_count else 0.0


def _suitable(request: Request, devices: Sequence[Device]) -> list[Device]:
    return [
        device
        for device in devices
        if (not request.gpu_models or any(is_model(word, device.model) for word in request.gpu_models))
        and (not request.shared or _share(request) <= _limit(device))
    ]


def _pressure(device: Device, nodes: Sequence[Node], request_mix: Mix) -> float:
    """Demand per device of a kind over the mean demand per device, each request spread evenly over what suits it."""
    devices = [device for each in nodes for device in each.devices]

    def demand(one: Device) -> float:
        return sum(
            weight * _size(request, nodes) / len(_suitable(request, devices))
            for request, weight in request_mix
            if one in _suitable(request, devices)
        )

    return demand(device) / (sum(map(demand, devices)) / len(devices))


def _size(request: Request, nodes: Sequence[Node]) -> float:
    if not request.shared:
        return request.gpu_count
    suitable = _suitable(request, [device for each in nodes for device in each.devices])
    return _share(request) / min(map(_limit, suitable))


def _share(request: Request) -> int:
    return request.gpu_memory_mb or 0


def _part(device: Device) -> float:
    return (_limit(device) - device.shared_mb) / _limit(device)


def _limit(device: Device) -> int:
    return int((device.memory_mb or 0) * 0.85)
