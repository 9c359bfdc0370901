"""A04: what can never start is known at submit, from the empty cluster alone."""

from dataclasses import replace

from scheduling.engine.explain.feasibility import why_never_fits
from scheduling.engine.model import Tenant
from tests.engine.scenario import ask, cluster, gpu, job, node, running_on

TENANT = Tenant(1, "nlp")


def test_request_that_fits_the_empty_cluster_is_possible() -> None:
    """A04"""
    state = running_on(cluster(node(1)), job(9, gpus=8))
    assert why_never_fits(ask(8), TENANT, state.nodes) is None


def test_closed_lost_and_unhealthy_hardware_counts_for_feasibility() -> None:
    """A04"""
    away = [node(1, is_open=False), node(2, is_online=False)]
    sick = node(3, gpus=[gpu(n, is_healthy=False) for n in range(12)])
    assert why_never_fits(ask(16, gang=True), TENANT, away) is None
    assert why_never_fits(ask(12), TENANT, [*away, sick]) is None


def test_too_large_request_is_refused_with_the_largest_possible() -> None:
    """A04"""
    one = why_never_fits(ask(9), TENANT, [node(1), node(2, gpus=4)])
    assert one is not None and one.code == "never_fits"
    assert one.evidence["largest"] == "8 GPUs of 80000 MiB with 64 CPU cores and 256000 MiB of memory on one node"
    assert why_never_fits(ask(12, gang=True), TENANT, [node(1), node(2, gpus=4)]) is None
    assert why_never_fits(ask(13, gang=True), TENANT, [node(1), node(2, gpus=4)]) is not None


def test_ranks_need_whole_shares_of_a_node() -> None:
    """A04: twelve GPUs in two nodes, but six and six do not fit on eight and four."""
    assert why_never_fits(ask(12, gang=True, ranks=2), TENANT, [node(1), node(2, gpus=4)]) is not None
    assert why_never_fits(ask(12, gang=True, ranks=3), TENANT, [node(1), node(2, gpus=4)]) is None


def test_the_ceilings_of_the_policy_count() -> None:
    assert why_never_fits(ask(gpu_memory_mb=68_000, shared=True), TENANT, [node(1)]) is None
    assert why_never_fits(ask(gpu_memory_mb=68_001, shared=True), TENANT, [node(1)]) is not None
    assert why_never_fits(ask(gpu_memory_mb=80_000), TENANT, [node(1)]) is None


def test_more_than_the_quota_can_ever_hold_is_refused() -> None:
    """A04"""
    result = why_never_fits(ask(4, cpu_milli=9500), replace(TENANT, max_cpu_milli=9000), [node(1)])
    assert result is not None and result.code == "tenant_limit"
    assert result.evidence == {"requested": 9.5, "dimension": "CPU cores", "limit": 9, "tenant": "nlp"}


def test_a_device_held_whole_counts_with_all_its_memory() -> None:
    limited = replace(TENANT, max_gpu_memory_mb=100_000)
    assert why_never_fits(ask(1, gpu_memory_mb=10), limited, [node(1)]) is None
    assert why_never_fits(ask(2, gpu_memory_mb=10), limited, [node(1)]) is not None
    assert why_never_fits(ask(2, gpu_memory_mb=10, shared=True), limited, [node(1)]) is None


def test_without_nodes_only_the_limits_are_judged() -> None:
    """A04: a fresh install takes jobs before the first agent joins."""
    assert why_never_fits(ask(1000), TENANT, []) is None
    assert why_never_fits(ask(2), replace(TENANT, max_gpus=1), []) is not None


def test_unknown_label_or_model_is_possible() -> None:
    assert why_never_fits(ask(gpu_models=("H100",)), TENANT, [node(1)]) is None
    assert why_never_fits(ask(node_selector=(("zone", "b"),)), TENANT, [node(1)]) is None
