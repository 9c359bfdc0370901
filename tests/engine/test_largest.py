"""A60: the same check accepts the largest possible request that a refusal names, and refuses one more."""

import os
import re
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.engine.board.shapes import rank_counts
from scheduling.engine.explain.feasibility import bounds_of, why_never_fits
from scheduling.engine.explain.inventory import inventory_of, matching
from scheduling.engine.explain.largest import Largest, largest
from scheduling.engine.model import Device, Node, Policy, Request, Tenant
from tests.engine.scenario import ask, gpu, node

TENANT = Tenant(1, "nlp")
in_many_fleets = settings(
    max_examples=int(os.environ.get("ENGINE_EXAMPLES", "400")),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)
H100 = "NVIDIA H100 PCIe"


def named(request: Request, nodes: list[Node], tenant: Tenant = TENANT, policy: Policy = Policy()) -> str:
    verdict = why_never_fits(request, tenant, nodes, policy)
    assert verdict is not None and verdict.code == "never_fits", verdict
    return str(verdict.evidence["largest"])


def test_a_gang_counts_the_gpus_of_all_models() -> None:
    """A60"""
    nodes = [node(1), node(2), node(3, gpus=[gpu(n, 40_000, model=H100) for n in range(4)])]
    text = named(ask(30, gang=True), nodes)
    assert text.startswith("20 GPUs of 40000 MiB with ") and text.endswith(" over 3 nodes")
    assert why_never_fits(ask(20, gang=True), TENANT, nodes) is None
    assert why_never_fits(ask(21, gang=True), TENANT, nodes) is not None


def test_cpu_and_memory_of_all_types_of_nodes_count() -> None:
    """A60: more memory stands beside fewer cores, on another type of node."""
    nodes = [node(1, gpus=0, cpu=64, memory_mb=256_000), node(2, gpus=0, cpu=8, memory_mb=900_000)]
    cpu = "64 CPU cores and 256000 MiB of memory on one node"
    memory = "8 CPU cores and 900000 MiB of memory on one node"
    assert named(ask(0, cpu_milli=100_000), nodes) == cpu
    assert named(ask(0, memory_mb=1_000_000), nodes) == memory


def test_shared_memory_stays_under_the_load_ceiling() -> None:
    """A60"""
    assert "GPUs of 68000 MiB with" in named(ask(1, gpu_memory_mb=70_000, shared=True), [node(1)])


def test_the_limits_of_the_tenant_and_the_online_part_bound_the_largest() -> None:
    """A60: capacity beyond the tenant's limits is not possible."""
    limited = replace(TENANT, max_gpus=12, max_cpu_milli=20_000)
    text = named(ask(12), [node(1)], limited)
    assert text == "8 GPUs of 80000 MiB with 20 CPU cores and 256000 MiB of memory on one node"
    half = Policy(online_percent=50)
    verdict = why_never_fits(ask(99, gang=True), TENANT, [node(1), node(2)], half, is_online=True)
    assert verdict is not None and str(verdict.evidence["largest"]).startswith("8 GPUs of ")


def test_more_cpu_for_few_gpus_of_a_gang_names_no_number_of_gpus() -> None:
    """A60: with more GPUs it would have more ranks, and more CPU in all."""
    nodes = [node(1), node(2)]
    text = named(ask(1, gang=True, cpu_milli=100_000), nodes)
    assert text == "its GPUs of 80000 MiB with 64 CPU cores and 256000 MiB of memory on one node"


def test_more_ranks_than_gpus_names_the_most_ranks() -> None:
    """A60"""
    text = named(ask(20, gang=True, ranks=20), [node(1), node(2)])
    assert text.startswith("16 ranks with 16 GPUs of ")


def test_sentence_of_a_job_on_one_node_does_not_name_all_nodes() -> None:
    verdict = why_never_fits(ask(0, gang=True, cpu_milli=65_000), TENANT, [node(1)])
    assert verdict is not None and str(verdict.evidence["what"]).endswith(" on one node")


@in_many_fleets
@given(st.integers(0, 2**40))
def test_the_largest_is_accepted_and_one_more_is_refused(seed: int) -> None:
    """A60: over random fleets, requests, limits and policies; by the check that admission makes."""
    rng = Random(seed)
    nodes, request, tenant, policy, is_online = _state(rng)
    verdict = why_never_fits(request, tenant, nodes, policy, is_online=is_online)
    if verdict is None or verdict.code != "never_fits":
        return

    def accepts(one: Request) -> bool:
        return why_never_fits(one, tenant, nodes, policy, is_online=is_online) is None

    types = matching(request, inventory_of(nodes))
    if not types:
        return
    bounds = bounds_of(tenant, inventory_of(nodes), policy, is_online=is_online)
    result = largest(request, types, policy, bounds)
    if result is None:
        smallest = replace(request, gpu_count=min(request.gpu_count, 1), gpu_memory_mb=None, cpu_milli=0, memory_mb=0)
        assert not accepts(replace(smallest, ranks=None))
        assert verdict.evidence["largest"] == "0 GPUs"
        return
    assert accepts(result.request), (verdict, result)
    for name in ("gpu_memory_mb", "cpu_milli", "memory_mb"):
        one_more = replace(result.request, **{name: (getattr(result.request, name) or 0) + 1})  # type: ignore[arg-type]
        assert not accepts(one_more) or (name == "gpu_memory_mb" and not request.gpu_count), (name, verdict)
    if request.gpu_count and not result.more_gpus:
        for more in (1, 2, 3, 4):
            wider = replace(result.request, gpu_count=result.request.gpu_count + more * (result.request.ranks or 1))
            assert not accepts(wider), (verdict, result)
    _one_amount_alone(request, result, policy, accepts)


@in_many_fleets
@given(st.integers(0, 2**40))
def test_the_numbers_of_the_sentence_are_those_of_a_request_that_is_accepted(seed: int) -> None:
    """A60: read from the text alone, as a person does."""
    rng = Random(seed)
    nodes, request, tenant, policy, is_online = _state(rng)
    verdict = why_never_fits(request, tenant, nodes, policy, is_online=is_online)
    if verdict is None or verdict.code != "never_fits":
        return
    text = str(verdict.evidence["largest"])
    numbers = {
        "gpu_count": r"(\d+) GPUs",
        "gpu_memory_mb": r"GPUs of (\d+) MiB",
        "memory_mb": r"(\d+) MiB of memory",
        "ranks": r"(\d+) ranks?",
    }
    sentence: dict[str, int | None] = {
        name: int(match[1]) for name, pattern in numbers.items() if (match := re.search(pattern, text))
    }
    if cores := re.search(r"([\d.]+) CPU cores", text):
        sentence["cpu_milli"] = round(float(cores[1]) * 1000)
    if "of unknown memory" in text:
        sentence["gpu_memory_mb"] = None
    if sentence.get("gpu_count") == 0:
        return
    submitted = replace(request, **sentence)  # type: ignore[arg-type]
    assert why_never_fits(submitted, tenant, nodes, policy, is_online=is_online) is None, (text, submitted)


def _one_amount_alone(request: Request, result: Largest, policy: Policy, accepts) -> None:
    """Assert that a request with only one amount too large keeps its other amounts."""
    names = ("gpu_count", "gpu_memory_mb", "cpu_milli", "memory_mb")
    short = [name for name in names if (getattr(result.request, name) or 0) < (getattr(request, name) or 0)]
    if len(short) != 1 or not rank_counts(request, policy):
        return
    if result.request.ranks != request.ranks:
        return
    [name] = short
    amount = getattr(result.request, name)
    if amount:
        assert accepts(replace(request, **{name: amount}))
        step = (request.ranks or 1) if name == "gpu_count" else 1
        assert not accepts(replace(request, **{name: amount + step}))


def _state(rng: Random) -> tuple[list[Node], Request, Tenant, Policy, bool]:
    kinds = [_type(rng) for _ in range(rng.randint(1, 3))]
    nodes = []
    for number in range(1, rng.randint(2, 6)):
        cpu, memory_mb, devices = rng.choice(kinds)
        labels = {"zone": rng.choice("ab")}
        seated = tuple(replace(device, id=number * 100 + device.id) for device in devices)
        nodes.append(Node(number, f"n{number}", cpu, memory_mb, cpu, memory_mb, seated, labels))
    gpus = rng.choice([0, 0, 1, 2, 3, 5, 9, 16, 30])
    request = Request(
        gpu_count=gpus,
        gpu_memory_mb=rng.choice([None, None, 20, 35, 60, 79, 200]) if gpus else None,
        gpu_models=rng.choice([(), (), ("A100",), ("H100",)]) if gpus else (),
        shared=gpus > 0 and rng.random() < 0.3,
        cpu_milli=rng.choice([0, 1000, 7000, 20_000, 100_000]),
        memory_mb=rng.choice([0, 100, 999, 5000, 100_000]),
        gang=rng.random() < 0.6,
        ranks=rng.choice([None, None, None, 1, 2, 3, 7]),
        node_selector=rng.choice([(), (), (("zone", "a"),)]),
        topology=rng.choice(["any", "any", "nvlink", "numa", "prefer_nvlink"]),
    )
    tenant = replace(
        TENANT,
        max_gpus=rng.choice([None, None, gpus, gpus + 4]),
        max_gpu_memory_mb=rng.choice([None, None, 300, 3000]),
        max_cpu_milli=rng.choice([None, None, 8000, 120_000]),
        max_gpus_by_model=rng.choice([(), (), (("A100", 0), ("H100", 3)), (("A100", 2),)]),
    )
    policy = Policy(gangs=rng.random() < 0.8, online_percent=rng.choice([0, 0, 30, 60]))
    return nodes, request, tenant, policy, rng.random() < 0.4


def _type(rng: Random) -> tuple[int, int, tuple[Device, ...]]:
    memory_mb = rng.choice([None, 40, 80])
    devices = tuple(
        gpu(
            n,
            rng.choice([memory_mb, memory_mb, 40]),
            model=rng.choice(["NVIDIA A100-SXM4-80GB", H100]),
            island=rng.choice([None, n // 2]),
            numa=n // 4,
        )
        for n in range(rng.choice([0, 1, 3, 4, 8]))
    )
    return rng.choice([1500, 4000, 16_000]), rng.choice([0, 700, 4096]), devices


@pytest.mark.parametrize(
    ("limits", "accepted"),
    [
        ((("A100", 0), ("H100", 0)), 0),
        ((("A100", 0),), 4),
        ((("A100", 3), ("H100", 2)), 5),
    ],
)
def test_limits_per_model_count_together(limits: tuple[tuple[str, int], ...], accepted: int) -> None:
    """A60: none of them alone refuses the request, as another model would suffice; together they leave too few GPUs."""
    nodes = [node(1), node(2, gpus=[gpu(200 + n, model=H100) for n in range(4)])]
    tenant = replace(TENANT, max_gpus_by_model=limits)
    verdict = why_never_fits(ask(accepted + 1, gang=True), tenant, nodes)
    assert verdict is not None and verdict.code == "tenant_limit"
    assert (verdict.evidence["requested"], verdict.evidence["limit"]) == (accepted + 1, accepted)
    assert not accepted or why_never_fits(ask(accepted, gang=True), tenant, nodes) is None
