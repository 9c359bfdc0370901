"""What is told of a placement: the nodes that had room, the best of them, and the chosen one among them."""

from dataclasses import replace

from scheduling.engine.candidates import CandidateSet
from scheduling.engine.model import Plan, Tenant
from scheduling.engine.placement.candidates import MAX_CANDIDATES
from tests.engine.scenario import cluster, decide, gpu, job, node, nodes_of, running_on


def told(made: Plan, id: int) -> CandidateSet | None:
    return next(placement.considered for placement in made.placements if placement.job_id == id)


def test_the_chosen_node_comes_first_and_the_others_cost_more() -> None:
    """Node 2 has room left for two only: the tightest fit."""
    state = running_on(cluster(node(1), node(2), node(3, gpus=1)), job(8, gpus=6))
    made = decide(replace(state, jobs=(job(1, gpus=2),)))
    found = told(made, 1)
    assert found is not None
    assert (found.nodes, found.room) == (3, 2)
    assert [one.node_id for one in found.candidates][:1] == nodes_of(made, 1)
    assert len(found.candidates) == 2
    ratings = [one[1:6] for one in found.candidates]
    assert ratings == sorted(ratings)


def test_a_hot_node_is_told_as_such() -> None:
    hot = node(1, gpus=[gpu(101, is_hot=True), gpu(102, is_hot=True)])
    found = told(decide(cluster(hot, node(2, gpus=2), jobs=[job(1, gpus=2)])), 1)
    assert found is not None
    assert [(one.node_id, one.hot) for one in found.candidates] == [(2, 0), (1, 2)]


def test_nodes_that_are_alike_are_counted_once() -> None:
    found = told(decide(cluster(*[node(id) for id in range(1, 21)], jobs=[job(1)])), 1)
    assert found is not None
    assert (found.nodes, found.room, len(found.candidates)) == (20, 20, 1)
    assert found.candidates[0].alike == 19


def test_of_many_candidates_only_the_best_are_told() -> None:
    nodes = [node(id, gpus=id) for id in range(2, 12)]
    found = told(decide(cluster(*nodes, jobs=[job(1, gpus=2)])), 1)
    assert found is not None
    assert (found.room, len(found.candidates)) == (10, MAX_CANDIDATES)


def test_the_chosen_one_is_told_even_where_a_quota_of_memory_chose_it() -> None:
    """The node that fits tightest would take more memory than the tenant has left."""
    small, large = gpu(101, memory_mb=16_000), gpu(201, memory_mb=80_000)
    state = cluster(node(1, gpus=[small, gpu(102, memory_mb=16_000)]), node(2, gpus=[large]), jobs=[job(1)])
    made = decide(replace(state, tenants=(Tenant(1, "t", max_gpu_memory_mb=20_000),)))
    found = told(made, 1)
    assert found is not None
    assert nodes_of(made, 1)[0] in [one.node_id for one in found.candidates]


def test_a_gang_over_nodes_has_no_alternatives_to_tell() -> None:
    made = decide(cluster(node(1), node(2), jobs=[job(1, gpus=16, gang=True)]))
    assert told(made, 1) is None


def test_it_is_told_of_the_first_placements_only() -> None:
    made = decide(cluster(*[node(id) for id in range(1, 6)], jobs=[job(id) for id in range(1, 41)]))
    assert len(made.placements) == 40
    assert sum(placement.considered is not None for placement in made.placements) == 16
