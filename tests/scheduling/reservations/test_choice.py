"""The choice of devices against trying everything, in random small states (A72)."""

import os
from itertools import combinations
from math import inf
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.reservations.choice import Chosen, Holding, OfferedDevice, OfferedNode, Shape, choose, next_slot

in_small_states = settings(
    max_examples=int(os.environ.get("ENGINE_EXAMPLES", "200")), deadline=None, derandomize=True, database=None
)


def nodes_with_holdings() -> st.SearchStrategy[tuple[OfferedNode, ...]]:
    """Make nodes of one to three GPUs with reservations that touch or overlap, and jobs that may take more than their
    part of the CPU, or none."""
    return st.integers(0, 2**40).map(lambda seed: tuple(_node(Random(seed + id), id) for id in (1, 2)))


def _node(rng: Random, id: int) -> OfferedNode:
    count = rng.choice([1, 2, 3])
    of_device: list[list[Holding]] = [[] for _ in range(count)]
    of_node: list[Holding] = []
    for number in range(rng.choice([0, 1, 2, 3, 4])):
        since = rng.choice([-inf, 0.0, 2.0, 4.0, 6.0])
        until = inf if rng.random() < 0.1 else max(since, 0.0) + rng.choice([2.0, 4.0])
        holding = Holding(since, until, "job", number, 1, rng.choice([0, 1000, 1000, 2000]), rng.choice([0, 10]))
        device = rng.randrange(count)
        if any(_overlap(other, since, until) for other in of_device[device]):
            continue
        of_node.append(holding)
        if rng.random() < 0.8:
            of_device[device].append(holding)
    devices = tuple(
        OfferedDevice(10 * id + n, "A100", 80, rng.choice([None, 0, 1]), tuple(held))
        for n, held in enumerate(of_device)
    )
    return OfferedNode(id, f"n{id}", 1000 * count, 10 * count, count, devices, holdings=tuple(of_node))


def _overlap(holding: Holding, since: float, until: float) -> bool:
    return holding.since < until and holding.until > since


def is_free(nodes: tuple[OfferedNode, ...], device_ids: tuple[int, ...], start: float, end: float) -> bool:
    """Return whether at each moment no other has one of the devices, and each node has their part of CPU and memory."""
    for node in nodes:
        chosen = [device for device in node.devices if device.id in device_ids]
        if any(_overlap(holding, start, end) for device in chosen for holding in device.holdings):
            return False
        for half in range(int(2 * start), int(2 * end)):
            held = [entry for entry in node.holdings if entry.since <= half / 2 < entry.until]
            if chosen and (
                sum(entry.cpu_milli for entry in held) + 1000 * len(chosen) > node.cpu_milli
                or sum(entry.memory_mb for entry in held) + 10 * len(chosen) > node.memory_mb
            ):
                return False
    return True


def has_place(nodes: tuple[OfferedNode, ...], shape: Shape, start: float, end: float) -> bool:
    ids = {device.id: node.id for node in nodes for device in node.devices}
    return any(
        is_free(nodes, chosen, start, end)
        for chosen in combinations(sorted(ids), shape.gpus)
        if not shape.one_node or len({ids[id] for id in chosen}) == 1
    )


def assert_free(
    nodes: tuple[OfferedNode, ...], shape: Shape, chosen: tuple[Chosen, ...], start: float, end: float
) -> None:
    ids = tuple(device.device_id for device in chosen)
    assert len(set(ids)) == shape.gpus and is_free(nodes, ids, start, end)
    assert not shape.one_node or len({device.node_id for device in chosen}) == 1


@in_small_states
@given(nodes_with_holdings(), st.integers(1, 4), st.booleans())
def test_devices_are_chosen_exactly_when_some_are_free_all_the_time(
    nodes: tuple[OfferedNode, ...], gpus: int, one_node: bool
) -> None:
    """Holdings that follow each other take no more CPU than the largest of them."""
    shape = Shape(gpus, one_node=one_node)
    chosen = choose(nodes, shape, 1.0, 7.0)
    assert (chosen is not None) == has_place(nodes, shape, 1.0, 7.0)
    if chosen is not None:
        assert_free(nodes, shape, chosen, 1.0, 7.0)


@in_small_states
@given(nodes_with_holdings(), st.integers(1, 4), st.booleans())
def test_next_slot_is_the_first_at_which_devices_are_free(
    nodes: tuple[OfferedNode, ...], gpus: int, one_node: bool
) -> None:
    shape = Shape(gpus, one_node=one_node)
    slot = next_slot(nodes, shape, 1.0, 3.0)
    first = next((half / 2 for half in range(2, 40) if has_place(nodes, shape, half / 2, half / 2 + 3)), None)
    assert (slot and slot.starts_at) == first
    if slot is not None:
        assert_free(nodes, shape, slot.devices, slot.starts_at, slot.starts_at + 3)
