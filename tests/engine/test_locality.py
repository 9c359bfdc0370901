"""Topology, heat and anti-affinity: required and preferred places."""

from dataclasses import replace

from scheduling.engine.model import Node, Policy
from tests.engine.scenario import (
    advance,
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


def test_the_load_of_a_shared_device_counts_its_processors_where_they_are_known() -> None:
    """A18: 0.7 x memory + 0.3 x compute stays under 0.85: at full compute 62,857 of 80,000 MiB, not 68,000."""
    busy = gpu(1, shared_mb=40_000, compute=1.0)
    for placed_on, starts in ((22_857, {1}), (22_858, set[int]())):
        new_plan = decide(cluster(node(1, gpus=[busy]), jobs=[job(1, shared=True, gpu_memory_mb=placed_on)]))
        assert started(new_plan) == starts
    for unknown in (None, 0.0):
        state = cluster(
            node(1, gpus=[replace(busy, compute=unknown)]), jobs=[job(1, shared=True, gpu_memory_mb=28_000)]
        )
        assert started(decide(state)) == {1}


def test_hot_devices_are_used_last() -> None:
    """A19"""
    hot = node(1, gpus=[gpu(1, is_hot=True), gpu(2)])
    new_plan = decide(cluster(hot, node(2), jobs=[job(1), job(2, gpus=2)]))
    assert devices_of(new_plan, 1) == [2] and nodes_of(new_plan, 2) == [2]
    mixed = node(1, gpus=[gpu(1, 40_000, is_hot=True), gpu(2, 80_000)])
    assert devices_of(decide(cluster(mixed, jobs=[job(1)])), 1) == [2]
    assert started(decide(cluster(hot, jobs=[job(1, gpus=2)]))) == {1}


def test_slowed_device_gets_no_new_work_and_keeps_its_jobs() -> None:
    """A19"""
    state = running_on(cluster(node(1, gpus=1)), job(9, minutes=10))
    slowed = replace(state.nodes[0], devices=(replace(state.nodes[0].devices[0], is_slowed=True),))
    new_plan = decide(replace(state, nodes=(slowed,), jobs=(job(1),)))
    assert started(new_plan) == set() and not new_plan.preemptions
    free = node(1, gpus=[gpu(1, is_slowed=True)])
    assert started(decide(cluster(free, jobs=[job(1)]))) == set()
    assert started(decide(cluster(free, jobs=[job(1)]), Policy(thermal=False))) == {1}


def test_heat_is_ignored_when_thermal_is_off() -> None:
    """A19"""
    new_plan = decide(cluster(node(1, gpus=[gpu(1, is_hot=True), gpu(2)]), jobs=[job(1)]), Policy(thermal=False))
    assert devices_of(new_plan, 1) == [1]


def islands(*numbers: int | None, **placed_on: bool) -> Node:
    """Make a node with one device in each of these NVLink islands; `d2=True`: device 2 is held."""
    devices = [gpu(id, island=island, exclusive=f"d{id}" in placed_on) for id, island in enumerate(numbers, start=1)]
    return node(1, gpus=devices)


def test_gpus_that_must_be_linked_are_in_one_island() -> None:
    apart = islands(0, 0, 1, 1, None, None, d1=True, d3=True)
    assert started(decide(cluster(apart, jobs=[job(1, gpus=2, topology="nvlink")]))) == set()
    near = islands(0, 0, 1, 1, None, None, d1=True)
    assert devices_of(decide(cluster(near, jobs=[job(1, gpus=2, topology="nvlink")])), 1) == [3, 4]
    assert started(decide(cluster(apart, jobs=[job(1, gpus=1, topology="nvlink")]))) == {1}


def test_each_rank_of_a_gang_is_linked_separately() -> None:
    new_plan = decide(cluster(islands(0, 1, 0, 1), jobs=[job(1, gpus=4, gang=True, ranks=2, topology="nvlink")]))
    ids = devices_of(new_plan, 1)
    assert [set(ids[:2]), set(ids[2:])] == [{1, 3}, {2, 4}]


def test_preferred_links_are_used_if_possible() -> None:
    far, near = islands(0, 1, 2), replace(islands(0, 0, 1), id=2, name="n2")
    near = replace(near, devices=tuple(replace(device, id=device.id + 10) for device in near.devices))
    new_plan = decide(cluster(far, near, jobs=[job(1, gpus=2, topology="prefer_nvlink")]))
    assert devices_of(new_plan, 1) == [11, 12]
    assert started(decide(cluster(far, jobs=[job(1, gpus=2, topology="prefer_nvlink")]))) == {1}


def test_a_small_job_takes_from_the_island_that_is_broken_already() -> None:
    assert devices_of(decide(cluster(islands(0, 0, 1, 1, d3=True), jobs=[job(1)])), 1) == [4]


def test_gpus_of_one_numa_node() -> None:
    seats = node(1, gpus=[gpu(1, numa=0), gpu(2, numa=1), gpu(3, numa=0), gpu(4, numa=1, exclusive=True)])
    assert devices_of(decide(cluster(seats, jobs=[job(1, gpus=2, topology="numa")])), 1) == [1, 3]


def test_jobs_with_one_anti_affinity_key_never_share_a_node() -> None:
    state = cluster(node(1), node(2), jobs=[job(id, apart="web") for id in (1, 2, 3)])
    new_plan = decide(state)
    assert sorted([nodes_of(new_plan, 1), nodes_of(new_plan, 2)]) == [[1], [2]]
    assert reason(new_plan, 3).code == "constraint"
    after = advance(state, new_plan)
    assert started(decide(after)) == set()
    other_jobs = replace(after, jobs=(job(4), job(5, apart="db")))
    assert started(decide(other_jobs)) == {4, 5}


def test_ranks_of_one_job_with_anti_affinity_may_share_a_node() -> None:
    new_plan = decide(cluster(node(1), jobs=[job(1, gpus=4, gang=True, ranks=2, apart="web")]))
    assert nodes_of(new_plan, 1) == [1, 1]
