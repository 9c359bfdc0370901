"""Times plan() on a made-up cluster, `--pending N --nodes M`: empty (all that fits starts), full (nothing starts)."""

import argparse
import json
import random
import resource
import time
from collections.abc import Sequence

from scheduling.engine.model import (
    Device,
    DeviceHold,
    Job,
    Node,
    Plan,
    Policy,
    RankPlacement,
    Request,
    Running,
    Snapshot,
    Tenant,
)
from scheduling.engine.planner import plan

NOW = 1_000_000.0
GPUS_PER_NODE = 8
DEVICE_MB = 81_920
TENANTS = 20


def main() -> None:
    arguments = _arguments()
    results = {}
    for case in ("empty", "full"):
        snapshot = made_up(arguments.pending, arguments.nodes, is_full=case == "full", seed=arguments.seed)
        results[case] = _measure(snapshot, arguments.repeat)
    rss_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    if not arguments.json:
        _print_table(arguments, results, rss_mb)
        return
    times = [seconds for case in results.values() for seconds in case[0]]
    cases = {case: _summary(seconds) | {"started": started} for case, (seconds, started) in results.items()}
    print(json.dumps({"plan_ms": _summary(times), "rss_mb": rss_mb, "cases": cases}))


def made_up(pending: int, nodes: int, *, is_full: bool, seed: int = 1) -> Snapshot:
    """A cluster of 8-GPU nodes, and jobs as labs submit them: mostly 1 to 8 GPUs, some gangs, some time limits."""
    rng = random.Random(seed)
    shapes = [_request(rng) for _ in range(60)]
    jobs = tuple(
        Job(
            id=number,
            tenant_id=rng.randrange(TENANTS),
            request=rng.choice(shapes),
            priority=rng.choice((300, 500, 500, 500, 1000)),
            queued_at=NOW - rng.randrange(86_400),
            max_runtime_seconds=rng.choice((None, 3_600, 14_400, 86_400)),
        )
        for number in range(pending)
    )
    tenants = tuple(
        Tenant(number, f"t{number}", weight=1 + number % 3, max_gpus=nodes * 4) for number in range(TENANTS)
    )
    running = tuple(_running(node, device, rng) for node in range(nodes) for device in range(GPUS_PER_NODE))
    made = tuple(_node(number, is_full) for number in range(nodes))
    return Snapshot(jobs, running if is_full else (), made, tenants)


def _request(rng: random.Random) -> Request:
    gpus = rng.choice((1, 1, 1, 1, 2, 2, 4, 8, 16))
    return Request(
        gpu_count=gpus,
        gpu_memory_mb=rng.choice((None, 20_000, 40_000)),
        cpu_milli=4_000 * gpus,
        memory_mb=16_000 * gpus,
        gang=gpus > GPUS_PER_NODE,
    )


def _node(number: int, is_full: bool) -> Node:
    first = number * GPUS_PER_NODE
    devices = tuple(
        Device(first + device, "NVIDIA A100-SXM4-80GB", DEVICE_MB, exclusive=is_full) for device in range(GPUS_PER_NODE)
    )
    free_cpu, free_mb = (64_000, 512_000) if is_full else (128_000, 1_024_000)
    return Node(number, f"node-{number}", 128_000, 1_024_000, free_cpu, free_mb, devices)


def _running(node: int, device: int, rng: random.Random) -> Running:
    request = Request(gpu_count=1, cpu_milli=8_000, memory_mb=64_000)
    hold = DeviceHold(node * GPUS_PER_NODE + device)
    rank = RankPlacement(0, node, 8_000, 64_000, (hold,))
    started_at = NOW - rng.randrange(3_600)
    job_id = 10_000_000 + hold.device_id
    return Running(job_id, rng.randrange(TENANTS), request, (rank,), started_at, NOW + rng.randrange(1, 86_400))


def _measure(snapshot: Snapshot, repeat: int) -> tuple[list[float], int]:
    seconds = []
    made = Plan()
    for _ in range(repeat):
        started = time.perf_counter()
        made = plan(snapshot, Policy(), NOW)
        seconds.append(time.perf_counter() - started)
    assert len(made.placements) + len(made.reasons) == len(snapshot.jobs)
    return seconds, len(made.placements)


def _summary(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    at = {"p50": len(ordered) // 2, "p95": min(len(ordered) - 1, int(len(ordered) * 0.95))}
    return {name: round(ordered[index] * 1000, 2) for name, index in at.items()}


def _print_table(arguments: argparse.Namespace, results: dict[str, tuple[list[float], int]], rss_mb: float) -> None:
    print(f"{arguments.pending} pending x {arguments.nodes} nodes x {GPUS_PER_NODE} GPUs, {rss_mb} MiB resident")
    print(f"{'cluster':<8} {'started':>8} {'p50 ms':>10} {'p95 ms':>10}")
    for case, (seconds, started) in results.items():
        times = _summary(seconds)
        print(f"{case:<8} {started:>8} {times['p50']:>10.2f} {times['p95']:>10.2f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="the last line is JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
