"""Random small states for the invariants: up to three nodes, a handful of jobs, some running, some limits.

Drawn from one seed rather than field by field: ten times as many states in the same time, and evenly spread.
"""

from dataclasses import replace
from random import Random
from typing import TypeVar

from hypothesis import strategies as st

from scheduling.engine.affinity import Expression, Preference, Taint, Toleration
from scheduling.engine.model import Device, Job, Node, Policy, Request, Snapshot, Tenant
from scheduling.engine.policies import LIVE_POLICIES
from tests.engine.scenario import NOW, advance, decide

T = TypeVar("T")
MODELS = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 PCIe")

TAINTS = (
    Taint("dedicated", "ml", "NoSchedule"),
    Taint("dedicated", "web", "NoSchedule"),
    Taint("spot", "", "NoSchedule"),
    Taint("spot", "", "PreferNoSchedule"),
    Taint("slow", "yes", "PreferNoSchedule"),
    Taint("min-gpus", "2", "NoSchedule"),
    Taint("min-gpus", "3", "PreferNoSchedule"),
)
TOLERATIONS = (
    Toleration("dedicated", "ml", "NoSchedule"),
    Toleration("dedicated"),
    Toleration("spot", "", ""),
    Toleration("", None, "PreferNoSchedule"),
    Toleration(),
)
EXPRESSIONS = (
    Expression("zone", "in", ("a", "b")),
    Expression("zone", "notin", ("a",)),
    Expression("rack", "exists"),
    Expression("rack", "doesnotexist"),
    Expression("rack", "in", ("r1",)),
)

policies = st.builds(
    Policy,
    name=st.sampled_from(LIVE_POLICIES),
    gangs=st.sampled_from([True, True, False]),
    online_percent=st.sampled_from([0, 0, 0, 30, 50]),
    thermal=st.sampled_from([True, True, False]),
    placement=st.sampled_from(["fragmentation", "fragmentation", "best_fit", "packing", "tightest"]),
    dynamic_share_bound=st.sampled_from([0.0, 0.2]),
)


def snapshots() -> st.SearchStrategy[Snapshot]:
    return st.integers(0, 2**40).map(lambda seed: _snapshot(Random(seed)))


def _snapshot(rng: Random) -> Snapshot:
    """Make a state: some jobs run already, placed by the planner itself a while ago; the others wait."""
    is_plain = rng.random() < 0.5
    nodes = tuple(_node(rng, id, is_plain) for id in range(1, 1 + rng.choice([0, 1, 2, 2, 3, 3])))
    earlier = tuple(replace(_job(rng, id, is_plain), eligible_at=0.0) for id in range(11, 11 + rng.randint(0, 3)))
    waiting = tuple(_job(rng, id, is_plain) for id in range(1, 1 + rng.randint(1, 6)))
    earlier_state = Snapshot(earlier, (), nodes, (_tenant(rng, 1), _tenant(rng, 2)))
    after = advance(earlier_state, decide(earlier_state, now=NOW - 30), NOW - 30)
    return replace(after, jobs=waiting, reserved_job_id=rng.choice([None, waiting[0].id]))


def _job(rng: Random, id: int, is_plain: bool) -> Job:
    return Job(
        id,
        rng.choice([1, 2]),
        _request(rng, is_plain),
        priority=rng.choice([300, 500, 500, 1000]),
        queued_at=NOW - rng.randint(0, 3) * 3600,
        eligible_at=rng.choice([0.0] * 9 + [NOW + 60]),
        max_runtime_seconds=rng.choice([None, 60, 600, 6000]),
        predicted_seconds=rng.choice([None, 30.0, 6000.0]),
        user_id=rng.choice([1, 2]),
        is_online=rng.random() < 0.2,
    )


def _request(rng: Random, is_plain: bool) -> Request:
    """Make a valid request: sharing names an amount, and ranks divide the GPUs. Plain ones suit any node."""
    gpu_count = rng.choice([0, 1, 1, 2, 2, 2, 3, 4])
    divisors = [n for n in (1, 2, 3, 4) if gpu_count % n == 0]
    gpu_memory_mb = rng.choice([None, 20, 20, 30]) if is_plain else rng.choice([None, 20, 30, 60])
    return Request(
        gpu_count=gpu_count,
        gpu_memory_mb=gpu_memory_mb,
        gpu_models=() if is_plain else rng.choice([(), (), ("A100",), ("h100",), ("A100", "H100")]),
        shared=gpu_memory_mb is not None and rng.random() < 0.3,
        cpu_milli=rng.choice([0, 1000, 3000]),
        memory_mb=rng.choice([0, 0, 500]),
        gang=rng.random() < 0.5,
        ranks=rng.choice([None, None, *divisors]),
        node_selector=(("zone", "a"),) if not is_plain and rng.random() < 0.2 else (),
        topology=rng.choice(["any"] * 6 + ["nvlink", "numa", "prefer_nvlink", "prefer_numa"]),
        apart=rng.choice(["", "", "", "", "web"]),
        tolerations=_some(rng, TOLERATIONS) if not is_plain else (),
        required=_some(rng, EXPRESSIONS) if not is_plain and rng.random() < 0.3 else (),
        preferred=()
        if is_plain
        else tuple(Preference(rng.choice([1, 50]), entry) for entry in _some(rng, EXPRESSIONS)),
    )


def _some(rng: Random, choices: tuple[T, ...]) -> tuple[T, ...]:
    """Return none, one or two of the choices."""
    return tuple(rng.sample(choices, rng.choice([0, 0, 1, 2])))


def _node(rng: Random, id: int, is_plain: bool) -> Node:
    memories = [80, 80, 40] if is_plain else [40, 40, 80, None]
    devices = tuple(
        Device(
            id * 10 + n,
            rng.choice(MODELS),
            rng.choice(memories),
            is_healthy=rng.random() < 0.9,
            is_hot=rng.random() < 0.1,
            is_slowed=rng.random() < 0.05,
            compute=rng.choice([None, None, 0.3, 0.9]),
            numa=rng.choice([None, 0, 0, 1]),
            island=rng.choice([None, 0, 0, 1]),
        )
        for n in range(rng.choice([0, 1, 2, 3, 3]))
    )
    cpu, memory_mb = rng.choice([3000, 8000]), rng.choice([600, 4000])
    labels = rng.choice([{}, {"zone": "a"}, {"zone": "a", "rack": "r1"}, {"zone": "b"}, {"rack": "r2"}])
    taints = _some(rng, TAINTS) if not is_plain else ()
    return Node(id, f"n{id}", cpu, memory_mb, cpu, memory_mb, devices, labels, rng.random() < 0.9, taints=taints)


def _tenant(rng: Random, id: int) -> Tenant:
    def limit(*values: int) -> int | None:
        return rng.choice([None, None, None, None, None, *values])

    return Tenant(
        id,
        f"t{id}",
        weight=rng.choice([1.0, 3.0]),
        tier=rng.choice([1, 1, 2]),
        guaranteed_gpus=rng.choice([0, 0, 2]),
        max_gpus=limit(2, 3),
        max_gpu_memory_mb=limit(80, 120),
        max_cpu_milli=limit(3000),
        max_memory_mb=limit(500),
        max_concurrent_jobs=limit(1, 2),
        max_gpus_per_user=limit(1, 2),
        max_gpus_by_model=rng.choice([(), (), (), (("A100", 1),), (("A100", 2), ("H100", 0))]),
        usage_gpu_seconds=rng.choice([0.0, 1e6]),
    )
