"""The candidates of a placement: the nodes that could hold the job, the best of them, and the chosen one."""

from dataclasses import replace

from scheduling.engine.candidates import CandidateSet
from scheduling.engine.model import Plan, Tenant
from scheduling.engine.placement.candidates import MAX_CANDIDATES
from tests.engine.scenario import cluster, decide, gpu, job, node, nodes_of, running_on


def candidates_of(new_plan: Plan, id: int) -> CandidateSet | None:
    return next(placement.considered for placement in new_plan.placements if placement.job_id == id)


def test_chosen_node_is_the_first_and_cheapest_candidate() -> None:
    """Node 2 has two GPUs left: the tightest fit."""
    state = running_on(cluster(node(1), node(2), node(3, gpus=1)), job(8, gpus=6))
    new_plan = decide(replace(state, jobs=(job(1, gpus=2),)))
    result = candidates_of(new_plan, 1)
    assert result is not None
    assert (result.nodes, result.room) == (3, 2)
    assert [candidate.node_id for candidate in result.candidates][:1] == nodes_of(new_plan, 1)
    assert len(result.candidates) == 2
    ratings = [candidate[1:6] for candidate in result.candidates]
    assert ratings == sorted(ratings)


def test_candidate_counts_hot_devices() -> None:
    hot = node(1, gpus=[gpu(101, is_hot=True), gpu(102, is_hot=True)])
    result = candidates_of(decide(cluster(hot, node(2, gpus=2), jobs=[job(1, gpus=2)])), 1)
    assert result is not None
    assert [(candidate.node_id, candidate.hot) for candidate in result.candidates] == [(2, 0), (1, 2)]


def test_identical_nodes_are_one_candidate() -> None:
    result = candidates_of(decide(cluster(*[node(id) for id in range(1, 21)], jobs=[job(1)])), 1)
    assert result is not None
    assert (result.nodes, result.room, len(result.candidates)) == (20, 20, 1)
    assert result.candidates[0].alike == 19


def test_candidates_are_only_the_best_of_many() -> None:
    nodes = [node(id, gpus=id) for id in range(2, 12)]
    result = candidates_of(decide(cluster(*nodes, jobs=[job(1, gpus=2)])), 1)
    assert result is not None
    assert (result.room, len(result.candidates)) == (10, MAX_CANDIDATES)


def test_chosen_node_is_a_candidate_when_a_memory_quota_chose_it() -> None:
    """The node that fits tightest would take more memory than the tenant has left."""
    small, large = gpu(101, memory_mb=16_000), gpu(201, memory_mb=80_000)
    state = cluster(node(1, gpus=[small, gpu(102, memory_mb=16_000)]), node(2, gpus=[large]), jobs=[job(1)])
    new_plan = decide(replace(state, tenants=(Tenant(1, "t", max_gpu_memory_mb=20_000),)))
    result = candidates_of(new_plan, 1)
    assert result is not None
    assert nodes_of(new_plan, 1)[0] in [candidate.node_id for candidate in result.candidates]


def test_gang_over_nodes_has_no_candidates() -> None:
    new_plan = decide(cluster(node(1), node(2), jobs=[job(1, gpus=16, gang=True)]))
    assert candidates_of(new_plan, 1) is None


def test_candidates_are_recorded_for_the_first_placements_only() -> None:
    new_plan = decide(cluster(*[node(id) for id in range(1, 6)], jobs=[job(id) for id in range(1, 41)]))
    assert len(new_plan.placements) == 40
    assert sum(placement.considered is not None for placement in new_plan.placements) == 16
