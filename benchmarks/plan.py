"""Times plan() on a made-up cluster, `--pending N --nodes M`: empty (what fits starts), full (nothing can start), and
full of jobs that may be stopped for others (`preempting`, at most 32 in one cycle; beside `plan_ms`, not in it).

The garbage collector is disabled meanwhile, as it is in the worker's cycles. `--curve`: how the times grow.
`--case` measures one of them alone, so that its memory is its own; `--processor-time` is for a machine that others use,
too. `--shapes S`: the jobs ask for S different things, instead of for 18.
`--affinity P`: P % of the shapes have expressions, preferences or tolerations, and a tenth of the nodes a taint.
"""

import argparse
import gc
import json
import random
import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scheduling.engine.affinity import Expression, Preference, Taint, Toleration
from scheduling.engine.model import (
    Booking,
    Device,
    DeviceHold,
    Job,
    Node,
    Plan,
    Policy,
    RankPlacement,
    Request,
    RunningJob,
    Snapshot,
    Tenant,
)
from scheduling.engine.planner import plan

NOW = 1_000_000.0
GPUS_PER_NODE = 8
DEVICE_MB = 81_920
TENANTS = 20
# Of the jobs that run, by case.
_PRIORITIES = {"empty": 1000, "full": 1000, "preempting": 500}


def main() -> None:
    arguments = _arguments()
    if arguments.curve:
        _print_curve(arguments)
        return
    if arguments.bookings:
        _print_bookings(arguments)
        return
    results = _results(arguments.pending, arguments.nodes, arguments)
    rss_mb = _peak_mb()
    if not arguments.json:
        _print_table(arguments, results, rss_mb)
        return
    times = [seconds for case, (measured, _) in results.items() if case != "preempting" for seconds in measured]
    cases = {case: _summary(seconds) | {"started": started} for case, (seconds, started) in results.items()}
    answer = {"plan_ms": _summary(times)} if times else {}
    print(json.dumps({**answer, "rss_mb": rss_mb, "cases": cases}))


def _peak_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def made_up(
    pending: int, nodes: int, *, is_full: bool, seed: int = 1, priority: int = 1000, affinity: int = 0, various: int = 0
) -> Snapshot:
    """A cluster of 8-GPU nodes, and jobs as labs submit them: mostly 1 to 8 GPUs, some gangs, some time limits.

    `is_full`: each GPU is held by a job of this `priority`; none of those that wait has a higher one than 1000."""
    rng = random.Random(seed)
    shapes = [_request(rng) for _ in range(60)]
    if various:
        shapes = [replace(_request(rng), memory_mb=8_000 + number) for number in range(various)]
    for number in range(60 * affinity // 100):
        shapes[number] = replace(shapes[number], **_AFFINITIES[number % len(_AFFINITIES)])
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
    request = Request(gpu_count=1, cpu_milli=8_000, memory_mb=64_000)
    running = tuple(
        _running(node, device, request, priority, rng) for node in range(nodes) for device in range(GPUS_PER_NODE)
    )
    created = tuple(_node(number, is_full) for number in range(nodes))
    if affinity:
        created = tuple(_marked(node) for node in created)
    return Snapshot(jobs, running if is_full else (), created, tenants)


_ZONE_A, _RACKS = Expression("zone", "in", ("a",)), Expression("rack", "notin", ("r0", "r1"))
_AFFINITIES: tuple[dict[str, Any], ...] = (
    {"required": (_RACKS,)},
    {"preferred": (Preference(10, _ZONE_A), Preference(5, _RACKS))},
    {"tolerations": (Toleration("dedicated", "ml", "NoSchedule"),)},
    {"required": (Expression("rack", "exists"),), "preferred": (Preference(1, _ZONE_A),)},
)


def _marked(node: Node) -> Node:
    """Return the node with a label of its own and some shared ones, as in real clusters."""
    labels = {"hostname": node.name, "zone": "abc"[node.id % 3], "rack": f"r{node.id // 16}"}
    taints = (Taint("dedicated", "ml", "NoSchedule"),) if node.id % 10 == 0 else ()
    return replace(node, labels=labels, taints=taints)


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


def _running(node: int, device: int, request: Request, priority: int, rng: random.Random) -> RunningJob:
    hold = DeviceHold(node * GPUS_PER_NODE + device)
    rank = RankPlacement(0, node, 8_000, 64_000, (hold,))
    started_at = NOW - rng.randrange(3_600)
    job_id = 10_000_000 + hold.device_id
    ends_by = NOW + rng.randrange(1, 86_400)
    return RunningJob(job_id, rng.randrange(TENANTS), request, (rank,), started_at, ends_by, priority)


def _results(pending: int, nodes: int, arguments: argparse.Namespace) -> dict[str, tuple[list[float], int]]:
    """Return case -> (seconds of each plan, how many jobs started)."""
    results = {}
    for case, priority in _PRIORITIES.items():
        if arguments.case not in (None, case):
            continue
        snapshot = made_up(pending, nodes, is_full=case != "empty", seed=arguments.seed, priority=priority,
                           affinity=arguments.affinity, various=arguments.shapes)  # fmt: skip
        if arguments.case and not arguments.json:
            print(f"{_peak_mb()} MiB with the snapshot alone")
        results[case] = _measure(snapshot, arguments.repeat, arguments.processor_time)
    return results


def _measure(snapshot: Snapshot, repeat: int, processor_time: bool = False) -> tuple[list[float], int]:
    seconds = []
    clock = time.process_time if processor_time else time.perf_counter
    new_plan = Plan()
    gc.disable()
    for _ in range(repeat):
        started = clock()
        new_plan = plan(snapshot, Policy(), NOW)
        seconds.append(clock() - started)
    gc.enable()
    assert len(new_plan.placements) + len(new_plan.reasons) == len(snapshot.jobs)
    return seconds, len(new_plan.placements)


def _print_curve(arguments: argparse.Namespace) -> None:
    """Print p50 in milliseconds for jobs x 10 and nodes x 5, each alone and both."""
    print(f"{'pending':>8} {'nodes':>6} {'empty':>8} {'full':>8} {'preempting':>11}")
    sizes = [(arguments.pending * jobs, arguments.nodes * nodes) for jobs in (1, 10) for nodes in (1, 5)]
    for pending, nodes in sizes:
        results = _results(pending, nodes, arguments)
        p50 = [_summary(seconds)["p50"] for seconds, _ in results.values()]
        print(f"{pending:>8} {nodes:>6} {p50[0]:>8.1f} {p50[1]:>8.1f} {p50[2]:>11.1f}")


def booked(snapshot: Snapshot, number: int, seed: int = 1) -> Snapshot:
    """Return the snapshot with bookings of 1 to 8 GPUs of a node for 1 to 12 hours within the next two weeks; an eighth
    of them are active. No device is booked twice at a time. A tenth are soft.

    Devices that jobs hold are booked from the end of their jobs on."""
    rng = random.Random(seed)
    free_at = {device.id: NOW for node in snapshot.nodes for device in node.devices}
    for job in snapshot.running:
        for hold in job.ranks[0].holds:
            free_at[hold.device_id] = (job.ends_by or NOW) + job.grace_seconds
    bookings: list[Booking] = []
    windows: dict[int, list[tuple[float, float]]] = {device_id: [] for device_id in free_at}
    while len(bookings) < number:
        node, gpus = rng.choice(snapshot.nodes), rng.choice((1, 1, 2, 4, 8))
        starts_at = NOW - 600 if rng.random() < 0.125 else NOW + rng.randrange(14 * 86_400)
        ends_at = max(starts_at, NOW) + 3600 * rng.randint(1, 12)
        ids = rng.sample([device.id for device in node.devices], gpus)
        is_free = all(
            free_at[id] <= max(starts_at, NOW)
            and all(end <= starts_at or ends_at <= start for start, end in windows[id])
            for id in ids
        )
        if not is_free and not (snapshot.running and starts_at <= NOW):
            continue
        starts_at = starts_at if is_free else max(free_at[id] for id in ids)
        if not is_free and any(starts_at < end and start < ends_at for id in ids for start, end in windows[id]):
            continue
        for id in ids:
            windows[id].append((starts_at, max(ends_at, starts_at + 3600)))
        rank = RankPlacement(0, node.id, 8_000 * gpus, 64_000 * gpus, tuple(DeviceHold(id) for id in sorted(ids)))
        bookings.append(
            Booking(len(bookings) + 1, rng.randrange(TENANTS), starts_at, max(ends_at, starts_at + 3600), (rank,),
                    is_hard=rng.random() < 0.9)
        )  # fmt: skip
    return replace(snapshot, bookings=tuple(bookings))


def _print_bookings(arguments: argparse.Namespace) -> None:
    """Print how much longer plans take beside bookings: the same snapshots, in turns.

    `unlimited`: the empty cluster, and no job has a time limit, so all later bookings are in the way."""
    rows = {}
    for case in ("empty", "full", "unlimited"):
        plain = made_up(arguments.pending, arguments.nodes, is_full=case == "full", seed=arguments.seed)
        if case == "unlimited":
            plain = replace(plain, jobs=tuple(replace(job, max_runtime_seconds=None) for job in plain.jobs))
        snapshots = plain, booked(plain, arguments.bookings, arguments.seed)
        seconds: tuple[list[float], list[float]] = ([], [])
        started = [0, 0]
        for _ in range(arguments.repeat):
            for index, snapshot in enumerate(snapshots):
                [took], started[index] = _measure(snapshot, 1, arguments.processor_time)
                seconds[index].append(took)
        before, after = (_summary(times) for times in seconds)
        rows[case] = {"without_ms": before, "with_ms": after, "started": started,
                      "ratio": round(after["p50"] / before["p50"], 2)}  # fmt: skip
    print(json.dumps({"bookings": arguments.bookings, "pending": arguments.pending, "cases": rows}))


def _summary(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    at = {"p50": len(ordered) // 2, "p95": min(len(ordered) - 1, int(len(ordered) * 0.95))}
    return {name: round(ordered[index] * 1000, 2) for name, index in at.items()}


def _print_table(arguments: argparse.Namespace, results: dict[str, tuple[list[float], int]], rss_mb: float) -> None:
    print(f"{arguments.pending} pending x {arguments.nodes} nodes x {GPUS_PER_NODE} GPUs, {rss_mb} MiB resident")
    print(f"{'cluster':<10} {'started':>8} {'p50 ms':>10} {'p95 ms':>10}")
    for case, (seconds, started) in results.items():
        times = _summary(seconds)
        print(f"{case:<10} {started:>8} {times['p50']:>10.2f} {times['p95']:>10.2f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--shapes", type=int, default=0, metavar="S", help="different requests of the jobs")
    parser.add_argument("--case", choices=_PRIORITIES, help="this one alone")
    parser.add_argument("--processor-time", action="store_true", help="measure the processor's time, not the wall's")
    parser.add_argument("--affinity", type=int, default=0, metavar="P", help="P percent of the shapes have some")
    parser.add_argument("--bookings", type=int, default=0, metavar="N", help="compare plans beside N bookings and none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--curve", action="store_true", help="also 10 times the jobs, 5 times the nodes, and both")
    parser.add_argument("--json", action="store_true", help="the last line is JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
