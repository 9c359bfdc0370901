"""The place of a job: complete or none, on suitable devices, tightest first."""

from dataclasses import replace

import pytest

from scheduling.engine.board.shapes import is_model
from scheduling.engine.model import DeviceHold, Node, Policy, Tenant
from tests.engine.scenario import (
    advance,
    ask,
    cluster,
    decide,
    devices_of,
    gpu,
    job,
    node,
    nodes_of,
    reason,
    running_on,
    started,
)


def test_two_gangs_of_all_nodes_one_runs_and_one_waits_whole() -> None:
    """A11"""
    gangs = [job(id, gpus=24, gang=True, ranks=3) for id in (1, 2)]
    new_plan = decide(cluster(node(1), node(2), node(3), jobs=gangs))
    assert nodes_of(new_plan, 1) == [1, 2, 3]
    assert reason(new_plan, 2).code == "priority"


def test_a_gang_that_lacks_one_gpu_takes_none() -> None:
    """A11"""
    state = running_on(cluster(node(1), node(2), jobs=[job(1, gpus=16, gang=True)]), job(9))
    assert started(decide(state)) == set()


def test_a_job_stays_on_one_node_unless_it_is_a_gang() -> None:
    state = running_on(cluster(node(1), node(2)), job(8, gpus=4), job(9, gpus=6))
    assert started(decide(replace(state, jobs=(job(1, gpus=5),)))) == set()
    new_plan = decide(replace(state, jobs=(job(1, gpus=5, gang=True),)))
    assert len(devices_of(new_plan, 1)) == 5 and len(nodes_of(new_plan, 1)) == 5


def test_a_gang_takes_as_few_ranks_as_fit() -> None:
    new_plan = decide(cluster(node(1), node(2), node(3), jobs=[job(1, gpus=8, gang=True), job(2, gpus=16, gang=True)]))
    assert nodes_of(new_plan, 1) == [1]
    assert nodes_of(new_plan, 2) == [2, 3]


def test_ranks_are_packed_on_the_fewest_nodes_and_end_on_the_tightest() -> None:
    """Eight ranks of two GPUs: two widest nodes take four each; of the rest the fullest that fits."""
    new_plan = decide(
        cluster(node(1, gpus=4), node(2), node(3), node(4, gpus=4), jobs=[job(1, gpus=20, gang=True, ranks=10)])
    )
    assert sorted(nodes_of(new_plan, 1)) == [1] * 2 + [2] * 4 + [3] * 4


def test_the_widest_node_is_the_one_that_takes_most_ranks_with_their_cpu_and_memory() -> None:
    """Each node has eight GPUs free; the first has CPU for one rank of two GPUs, the second memory for one."""
    nodes = [node(1, cpu=4), node(2, memory_mb=1000), node(3), node(4)]
    new_plan = decide(cluster(*nodes, jobs=[job(1, gpus=16, gang=True, ranks=8, cpu_milli=32_000, memory_mb=8000)]))
    assert nodes_of(new_plan, 1) == [3] * 4 + [4] * 4


def test_without_gang_scheduling_a_gang_needs_one_node() -> None:
    jobs = [job(1, gpus=16, gang=True), job(2, gpus=8, gang=True, ranks=2)]
    new_plan = decide(cluster(node(1), node(2), jobs=jobs), Policy(gangs=False))
    assert reason(new_plan, 1).code == "never_fits"
    assert nodes_of(new_plan, 2) == [1, 1]


def test_cpu_and_memory_are_divided_over_ranks_and_rounded_up() -> None:
    new_plan = decide(cluster(node(1), jobs=[job(1, gpus=3, gang=True, ranks=3, cpu_milli=1000, memory_mb=100)]))
    assert [(rank.cpu_milli, rank.memory_mb) for rank in new_plan.placements[0].ranks] == [(334, 34)] * 3


def test_large_devices_are_kept_for_jobs_that_need_them() -> None:
    small, big = node(1, gpus=[gpu(1, 80_000)]), node(2, gpus=[gpu(2, 40_000)])
    new_plan = decide(cluster(small, big, jobs=[job(1, gpu_memory_mb=30_000), job(2, gpu_memory_mb=60_000)]))
    assert devices_of(new_plan, 1) == [2] and devices_of(new_plan, 2) == [1]


def test_on_a_mixed_node_the_small_devices_go_first() -> None:
    mixed = node(1, gpus=[gpu(1, 80_000), gpu(2, 40_000), gpu(3, 80_000)])
    assert devices_of(decide(cluster(mixed, jobs=[job(1, gpus=2)])), 1) == [2, 1]


def test_a_mixed_node_whose_small_devices_are_taken_counts_for_what_is_left() -> None:
    mixed, middle = node(1, gpus=[gpu(1, 40_000, exclusive=True), gpu(2, 80_000)]), node(2, gpus=[gpu(3, 60_000)])
    assert devices_of(decide(cluster(mixed, middle, jobs=[job(1)])), 1) == [3]


def test_the_fullest_node_that_fits_goes_first() -> None:
    state = running_on(cluster(node(1), node(2)), job(8, gpus=6), job(9, gpus=4))
    new_plan = decide(replace(state, jobs=(job(1, gpus=2), job(2, gpus=3))))
    assert nodes_of(new_plan, 1) == [1] and nodes_of(new_plan, 2) == [2]


def test_a_job_without_gpus_prefers_nodes_without_them_then_full_ones() -> None:
    state = running_on(cluster(node(1), node(2), node(3, gpus=0, cpu=2)), job(9, gpus=8))
    new_plan = decide(replace(state, jobs=(job(1, gpus=0, cpu_milli=2000), job(2, gpus=0, cpu_milli=2000))))
    assert nodes_of(new_plan, 1) == [3] and nodes_of(new_plan, 2) == [1]


def test_a_gpu_job_needs_cpu_and_memory_beside_its_gpus() -> None:
    new_plan = decide(
        cluster(node(1, cpu=1), node(2, memory_mb=10), node(3), jobs=[job(1, cpu_milli=2000, memory_mb=20)])
    )
    assert nodes_of(new_plan, 1) == [3]


def test_the_ceiling_of_a_shared_device_is_hard() -> None:
    """A18: 85 % of 80,000 MiB take three jobs of 20,000 and not a fourth, nor one MiB more than is left."""
    jobs = [job(id, shared=True, gpu_memory_mb=20_000) for id in (1, 2, 3, 4)]
    state = cluster(node(1, gpus=1), jobs=jobs)
    new_plan = decide(state)
    assert started(new_plan) == {1, 2, 3}
    after = advance(state, new_plan)
    assert started(decide(replace(after, jobs=(job(5, shared=True, gpu_memory_mb=8_001),)))) == set()
    assert started(decide(replace(after, jobs=(job(5, shared=True, gpu_memory_mb=8_000),)))) == {5}


def test_the_ceiling_of_a_whole_device_is_hard() -> None:
    """A18"""
    at_most = Policy(load_ceiling=0.5)
    assert started(decide(cluster(node(1, gpus=1), jobs=[job(1, gpu_memory_mb=40_000)]), at_most)) == {1}
    assert started(decide(cluster(node(1, gpus=1), jobs=[job(1, gpu_memory_mb=40_001)]), at_most)) == set()


def test_device_is_never_both_shared_and_exclusive() -> None:
    """A18"""
    sharing = running_on(cluster(node(1, gpus=1)), job(9, shared=True, gpu_memory_mb=10))
    assert started(decide(replace(sharing, jobs=(job(1),)))) == set()
    whole = running_on(cluster(node(1, gpus=1)), job(9))
    assert started(decide(replace(whole, jobs=(job(1, shared=True, gpu_memory_mb=10),)))) == set()


def test_shared_devices_are_packed_before_another_is_opened() -> None:
    state = running_on(cluster(node(1), node(2, gpus=2)), job(9, shared=True, gpu_memory_mb=30_000))
    placed_on = state.running[0].ranks[0].holds[0].device_id
    new_plan = decide(
        replace(state, jobs=(job(1, shared=True, gpu_memory_mb=30_000), job(2, shared=True, gpu_memory_mb=30_000)))
    )
    assert devices_of(new_plan, 1) == [placed_on] and devices_of(new_plan, 2) != [placed_on]
    assert new_plan.placements[0].ranks[0].holds == (DeviceHold(placed_on, 30_000),)


def test_of_two_shared_devices_the_fuller_one_is_filled_up() -> None:
    half = node(1, gpus=[gpu(1, shared_mb=10_000), gpu(2, shared_mb=40_000), gpu(3)])
    assert devices_of(decide(cluster(half, jobs=[job(1, shared=True, gpu_memory_mb=20_000)])), 1) == [2]


def test_sharing_without_an_amount_gets_the_device_whole() -> None:
    new_plan = decide(cluster(node(1), jobs=[job(1, shared=True)]))
    assert new_plan.placements[0].ranks[0].holds[0].memory_mb is None


def test_unknown_memory_is_only_for_jobs_that_ask_for_none() -> None:
    unknown = node(1, gpus=[gpu(1, None)])
    assert started(decide(cluster(unknown, jobs=[job(1)]))) == {1}
    assert started(decide(cluster(unknown, jobs=[job(1, gpu_memory_mb=1)]))) == set()
    assert started(decide(cluster(unknown, jobs=[job(1, gpu_memory_mb=1, shared=True)]))) == set()


@pytest.mark.parametrize(
    ("word", "is_named"),
    [("A100", True), ("a100", True), ("A100-SXM4-80GB", True), ("NVIDIA A100-SXM4-80GB", True)]
    + [("A10", False), ("100", False), ("H100", False), ("A100-SXM", False)],
)
def test_a_model_is_named_by_a_whole_word_in_any_case(word: str, is_named: bool) -> None:
    assert is_model(word, "NVIDIA A100-SXM4-80GB") == is_named


def test_any_of_the_named_models_and_all_of_the_labels() -> None:
    nodes = [node(1, labels={"zone": "a"}), node(2, labels={"zone": "a", "net": "ib"})]
    selector = (("zone", "a"), ("net", "ib"))
    new_plan = decide(cluster(*nodes, jobs=[job(1, gpu_models=("H100", "A100"), node_selector=selector)]))
    assert nodes_of(new_plan, 1) == [2]


@pytest.mark.parametrize("away", [node(1, is_open=False), node(1, is_online=False)])
def test_closed_or_offline_node_gets_no_job(away: Node) -> None:
    assert started(decide(cluster(away, jobs=[job(1), job(2, gpus=0)]))) == set()


def test_unhealthy_device_gets_no_job() -> None:
    sick = node(1, gpus=[gpu(1, is_healthy=False), gpu(2)])
    assert devices_of(decide(cluster(sick, jobs=[job(1)])), 1) == [2]


def test_equal_requests_that_are_not_the_same_object_are_one_group() -> None:
    jobs = [job(id, request=ask(8)) for id in (1, 2, 3)]
    assert started(decide(cluster(node(1), node(2), jobs=jobs))) == {1, 2}


def test_under_a_memory_quota_the_smaller_device_goes_first_however_hot() -> None:
    """The best place would exceed the tenant's GPU memory; the cheapest does not."""
    small, large = node(1, gpus=[gpu(1, 40_000, is_hot=True)]), node(2, gpus=[gpu(2, 80_000)])
    limited = Tenant(1, "t1", max_gpu_memory_mb=40_000)
    assert devices_of(decide(cluster(small, large, jobs=[job(1)])), 1) == [2]
    assert devices_of(decide(cluster(small, large, jobs=[job(1)], tenants=[limited])), 1) == [1]
    both = node(1, gpus=[gpu(1, 40_000, is_hot=True), gpu(2, 80_000)])
    assert devices_of(decide(cluster(both, jobs=[job(1)], tenants=[limited])), 1) == [1]


def test_promised_node_takes_no_job_with_the_same_anti_affinity_key() -> None:
    """A GPU is free for the second job now and beside the first one later, but the two may not share a node."""
    state = running_on(cluster(node(1, gpus=3)), job(9, gpus=2, minutes=10))
    new_plan = decide(replace(state, jobs=(job(1, gpus=2, apart="web"), job(2, apart="web"))))
    assert started(new_plan) == set() and new_plan.reservation is not None
    assert started(decide(replace(state, jobs=(job(1, gpus=2, apart="web"), job(2, apart="db"))))) == {2}
