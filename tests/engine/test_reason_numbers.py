"""A20: the numbers of reasons against counts by hand, in random small states."""

from dataclasses import replace
from math import floor

import pytest
from hypothesis import given

from scheduling.engine.explain.explain import count_in_words
from scheduling.engine.model import Device, DeviceHold, Node, Policy, Request, Snapshot
from tests.engine import oracle, states
from tests.engine.scenario import advance, ask, cluster, decide, gpu, job, node, reason, running_on
from tests.engine.test_invariants import in_small_states


def suits(device: Device, request: Request, policy: Policy) -> bool:
    if request.gpu_models and not any(word.lower() in device.model.lower() for word in request.gpu_models):
        return False
    if request.gpu_memory_mb is None:
        return True
    ceiling = policy.load_ceiling_shared if request.shared else policy.load_ceiling
    return device.memory_mb is not None and request.gpu_memory_mb <= floor(device.memory_mb * ceiling)


def may_take(node: Node, request: Request) -> bool:
    if any(node.labels.get(name) != value for name, value in request.node_selector):
        return False
    return oracle.meets_affinity(request, node) and oracle.tolerates(request, node, "NoSchedule")


def is_in_service(node: Node) -> bool:
    return node.is_open and node.is_online


def counted(code: str, request: Request, nodes: tuple[Node, ...], policy: Policy) -> dict[str, int | str]:
    """Return the numbers of a reason with this code, counted on the nodes after the cycle."""
    matching = [entry for entry in nodes if may_take(entry, request)]
    devices = [
        device
        for entry in matching
        if is_in_service(entry)
        for device in entry.devices
        if suits(device, request, policy)
    ]
    if code == "health":
        return {"devices": sum(not device.is_healthy for device in devices)}
    if code == "hot":
        return {"devices": sum(device.is_slowed and device.is_healthy for device in devices)}
    if code == "maintenance":
        closed = [entry for entry in matching if not is_in_service(entry)]
        helping = [
            entry
            for entry in closed
            if not request.gpu_count
            or any(device.is_healthy and suits(device, request, policy) for device in entry.devices)
        ]
        return {"nodes": len(helping), "lost": sum(not entry.is_online for entry in helping)}
    if code not in ("capacity", "priority", "fragmented"):
        return {}
    part_mb = request.gpu_memory_mb if request.shared else None
    free = sum(oracle._takes(device, request, DeviceHold(device.id, part_mb), policy) for device in devices)
    numbers: dict[str, int | str] = {"free": count_in_words(free)}
    return numbers if code == "fragmented" else {**numbers, "total": sum(device.is_healthy for device in devices)}


@in_small_states
@given(states.snapshots(), states.policies)
def test_numbers_of_reasons_are_counts_of_the_cluster(snapshot: Snapshot, policy: Policy) -> None:
    policy = replace(policy, preemption=False)
    new_plan = decide(snapshot, policy)
    after = advance(snapshot, new_plan)
    requests = {waiting_job.id: waiting_job.request for waiting_job in snapshot.jobs}
    for entry in new_plan.reasons:
        request = requests[entry.job_id]
        expected = counted(entry.code, request, after.nodes, policy)
        assert {name: entry.evidence[name] for name in expected} == expected, entry
        assert entry.code != "fragmented" or request.gpu_count > 1, entry


def test_maintenance_counts_only_nodes_with_gpus_that_would_help() -> None:
    nodes = [node(1, 1, is_open=False), node(2, [gpu(1, is_healthy=False)], is_open=False)]
    assert reason(decide(cluster(*nodes, jobs=[job(1)])), 1).evidence == {"nodes": 1, "lost": 0}


def test_hot_counts_only_gpus_that_would_help() -> None:
    hot = [gpu(1, is_slowed=True), gpu(2, is_slowed=True, is_healthy=False)]
    waiting = reason(decide(cluster(node(1, hot), jobs=[job(1)])), 1)
    assert (waiting.code, waiting.evidence) == ("hot", {"devices": 1})


@pytest.mark.parametrize(
    ("demand", "code"),
    [({"apart": "1/web"}, "constraint"), ({"topology": "nvlink", "gpu_count": 2}, "topology")],
)
def test_two_demands_that_stop_a_job_together_are_not_fragmentation(demand: dict[str, object], code: str) -> None:
    """Enough GPUs are free on the node; neither less memory alone nor the other demand alone would do."""
    gpus = [gpu(id, island=id // 2, exclusive=id % 2 == 1) for id in range(2, 6)]
    state = running_on(cluster(node(1, [*gpus, gpu(9)], memory_mb=1000)), job(9, memory_mb=900, apart="1/web"))
    waiting = replace(job(1), request=replace(ask(1, memory_mb=200), **demand))  # type: ignore[arg-type]
    assert reason(decide(replace(state, jobs=(waiting,))), 1).code == code
