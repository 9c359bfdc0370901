"""A20: each change is tried, and starts the job or leaves it with another reason."""

import os
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusched.protocol import reasons
from scheduling.engine.model import Device, Policy, Request, Snapshot, Tenant
from scheduling.engine.whatif.changes import CHANGES, Change, apply
from scheduling.engine.whatif.counterfactual import JOB_CHANGES, alternatives, obstacles
from scheduling.engine.whatif.remedies import BY_CODE
from tests.engine import states
from tests.engine.scenario import NOW, ask, cluster, decide, gpu, job, node, running_on, started
from tests.engine.test_reasons import CASES

in_small_states = settings(
    max_examples=int(os.environ.get("ENGINE_EXAMPLES", "60")),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)


@in_small_states
@given(states.snapshots(), states.policies)
def test_cured_reason_starts_the_job_or_leaves_another(snapshot: Snapshot, policy: Policy) -> None:
    """A20: for each waiting job of each state; applied by itself and planned again."""
    new_plan = decide(snapshot, policy)
    for reason in new_plan.reasons:
        steps = obstacles(snapshot, policy, NOW, reason.job_id)
        assert steps[0].reason == reason
        assert len({step.reason.code for step in steps}) == len(steps)
        change = steps[0].change
        assert change is not None, reason
        second_plan = decide(apply(snapshot, reason.job_id, change), policy)
        remaining = second_plan.reason_of(reason.job_id)
        assert (remaining is None) == (reason.job_id in started(second_plan))
        assert remaining is None or (remaining.code, remaining.evidence) != (reason.code, reason.evidence)
        assert "?" not in reasons.change_sentence(change.change, change.to, change.dimension)


@in_small_states
@given(states.snapshots(), st.sampled_from([0.0, 3600.0]))
def test_cured_reason_of_preemption_starts_the_job_or_leaves_another(snapshot: Snapshot, delay: float) -> None:
    """A20: when jobs may preempt at once, or after a while."""
    policy = Policy(min_runtime_seconds=0.0, preemption_delay_seconds=delay)
    # Everybody waits a little, high and low, so that some may preempt at once and others not yet.
    jobs = tuple(
        replace(waiting_job, queued_at=NOW - 60, priority=(300, 2000)[waiting_job.id % 2])
        for waiting_job in snapshot.jobs
    )
    snapshot = replace(snapshot, jobs=jobs)
    for reason in decide(snapshot, policy).reasons:
        [first, *_] = obstacles(snapshot, policy, NOW, reason.job_id)
        assert first.change is not None, reason
        remaining = decide(apply(snapshot, reason.job_id, first.change), policy).reason_of(reason.job_id)
        assert remaining is None or (remaining.code, remaining.evidence) != (reason.code, reason.evidence)


@in_small_states
@given(states.snapshots(), states.policies, st.randoms(use_true_random=False))
def test_cured_topology_and_heat_starts_the_job_or_leaves_another(
    snapshot: Snapshot, policy: Policy, rng: Random
) -> None:
    """A20: with islands, NUMA nodes, slowed devices, and anti-affinity."""
    snapshot = replace(
        snapshot,
        nodes=tuple(
            replace(each_node, devices=tuple(_seated(device, rng) for device in each_node.devices))
            for each_node in snapshot.nodes
        ),
        jobs=tuple(replace(waiting_job, request=_demanding(waiting_job.request, rng)) for waiting_job in snapshot.jobs),
    )
    for reason in decide(snapshot, policy).reasons:
        [first, *_] = obstacles(snapshot, policy, NOW, reason.job_id)
        assert first.change is not None, reason
        remaining = decide(apply(snapshot, reason.job_id, first.change), policy).reason_of(reason.job_id)
        assert remaining is None or (remaining.code, remaining.evidence) != (reason.code, reason.evidence)


def _seated(device: Device, rng: Random) -> Device:
    heat = replace(device, is_slowed=rng.random() < 0.2, is_hot=rng.random() < 0.2)
    return replace(heat, island=rng.choice([None, 0, 0, 1]), numa=rng.choice([None, 0, 1]))


def _demanding(request: Request, rng: Random) -> Request:
    topology = rng.choice(["any", "nvlink", "numa", "prefer_nvlink"])
    return replace(request, topology=topology, apart=rng.choice(["", "", "web"]))


@pytest.mark.parametrize("name", CASES)
def test_each_cause_has_a_change_that_cures_it(name: str) -> None:
    """A20"""
    snapshot, _, _ = CASES[name]
    steps = obstacles(snapshot, Policy(), NOW, 1)
    assert steps[0].change is not None
    assert steps[-1].starts, steps


def test_obstacles_follow_each_other_in_order() -> None:
    tenant = Tenant(1, "nlp", max_gpus=2)
    waiting = job(1, gpus=4, gpu_models=("A100",), node_selector=(("zone", "b"),))
    steps = obstacles(cluster(node(1, gpus=4), jobs=[waiting], tenants=[tenant]), Policy(), NOW, 1)
    assert [(step.reason.code, step.change.change if step.change else "") for step in steps] == [
        ("tenant_limit", "gpu_count"),
        ("constraint", "node_selector"),
    ]
    assert [step.starts for step in steps] == [False, True]


def test_job_that_starts_has_no_obstacles() -> None:
    assert obstacles(cluster(node(1), jobs=[job(1)]), Policy(), NOW, 1) == []


def test_alternatives_start_the_job_now_and_are_changes_of_the_owner() -> None:
    state = running_on(cluster(node(1), node(2)), job(8, gpus=5), job(9, gpus=6))
    state = replace(state, jobs=(job(1, gpus=4),))
    result = alternatives(state, Policy(), NOW, 1)
    assert result == [Change("gang_scheduling", True), Change("gpu_count", 3)]
    assert {change.change for change in result} <= JOB_CHANGES <= set(CHANGES)
    for change in result:
        assert 1 in started(decide(apply(state, 1, change)))


def test_shorter_time_limit_passes_the_promise() -> None:
    state = running_on(cluster(node(1)), job(9, gpus=4, minutes=60))
    state = replace(state, jobs=(job(2, gpus=8, age=9999), job(1, gpus=2)))
    [change] = alternatives(state, Policy(), NOW, 1)
    assert (change.change, change.to) == ("max_runtime_seconds", 3600)


def test_obstacles_leave_the_snapshot_unchanged() -> None:
    state = running_on(cluster(node(1, gpus=[gpu(1)])), job(9))
    state = replace(state, jobs=(job(1, request=ask(1)),))
    before = repr(state)
    obstacles(state, Policy(), NOW, 1)
    assert repr(state) == before


def test_every_change_has_its_sentence_and_every_code_its_remedies() -> None:
    assert set(reasons.CHANGES) == set(CHANGES)
    assert set(BY_CODE) == set(reasons.Pending) - {"dependency", "max_parallel", "starting", "scheduler_behind"}


def test_limits_per_model_that_leave_no_gpus_together_are_cured_by_larger_ones() -> None:
    """A60"""
    tenant = Tenant(1, "nlp", max_gpus_by_model=(("A100", 0), ("H100", 0)))
    nodes = [node(1, gpus=[gpu(1), gpu(2, model="NVIDIA H100 PCIe")])]
    steps = obstacles(cluster(*nodes, jobs=[job(1)], tenants=[tenant]), Policy(), NOW, 1)
    assert [(step.reason.code, step.starts) for step in steps] == [("tenant_limit", True)]
    assert steps[0].change == Change("limit", 1, "GPUs of each limited model")
