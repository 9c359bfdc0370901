"""A21: one snapshot gives one plan, byte for byte, in any process and any order of input."""

import os
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random

from scheduling.engine.model import Snapshot, Tenant
from tests.engine.scenario import cluster, decide, gpu, job, node, running_on

ROOT = Path(__file__).parents[2]
PROGRAM = "from tests.engine.test_determinism import digest; print(digest({seed}))"


def state() -> Snapshot:
    """Shares with fractions, mixed devices, shared ones, gangs, labels, a reservation and every kind of wait."""
    rng = Random(7)
    mixed = [
        gpu(900 + n, (40_000, 80_000)[n % 2], ("NVIDIA H100 PCIe", "NVIDIA A100-SXM4-80GB")[n % 2]) for n in range(8)
    ]
    nodes = [node(id, labels={"rack": str(id % 3), "zone": "ab"[id % 2]}) for id in range(1, 6)]
    tenants = [Tenant(id, f"t{id}", weight=0.1 * id, usage_gpu_seconds=1e5 / id, max_gpus=20) for id in range(1, 8)]
    jobs = [
        job(
            id,
            gpus=rng.choice([0, 1, 1, 2, 4, 16]),
            tenant=1 + id % 7,
            age=rng.randrange(5) * 100,
            minutes=rng.choice([None, 10, 100]),
            gang=id % 3 == 0,
            cpu_milli=rng.choice([333, 1000]),
            node_selector=(("zone", "a"),) if id % 5 == 0 else (),
        )
        for id in range(1, 120)
    ]
    sharing = [job(id, tenant=1 + id % 7, shared=True, gpu_memory_mb=20_000) for id in range(200, 220)]
    before = cluster(*nodes, node(9, gpus=mixed), tenants=tenants)
    earlier = [job(300 + n, tenant=1 + n % 7, gpus=n % 3, cpu_milli=777, minutes=10 * n + 1) for n in range(12)]
    return replace(running_on(before, *earlier), jobs=(*jobs, *sharing), reserved_job_id=3)


def digest(seed: int) -> str:
    """Of the plan for the state in an order that the seed gives."""
    rng, one = Random(seed), state()
    if seed:
        one = Snapshot(
            tuple(rng.sample(one.jobs, len(one.jobs))),
            tuple(rng.sample(one.running, len(one.running))),
            tuple(rng.sample(one.nodes, len(one.nodes))),
            tuple(rng.sample(one.tenants, len(one.tenants))),
            one.reserved_job_id,
        )
    return sha256(repr(decide(one)).encode()).hexdigest()


def test_plan_is_the_same_in_other_processes_and_input_orders() -> None:
    """A21"""
    local = digest(0)
    for seed in (1, 2, 3):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", PROGRAM.format(seed=seed)]
        remote = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
        assert remote.stdout.strip() == local


def test_state_of_the_test_has_all_kinds_of_decisions() -> None:
    new_plan = decide(state())
    assert new_plan.reservation is not None
    assert len(new_plan.placements) > 20
    assert {entry.code for entry in new_plan.reasons} >= {"priority", "quota_wait"}
