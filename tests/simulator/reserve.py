"""Experiments: the fragmentation score against 20 % of the GPUs reserved for large jobs, and against size classes.

The reserve is made of `min-gpus` taints and the classes of labels and preferences, so the same engine decides in every
row."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev

from scheduling.engine.model import Node, Policy, Request
from scheduling.simulator.runs.cluster import never_fitting
from scheduling.simulator.runs.placement import Fill, fill
from scheduling.simulator.runs.statistics import Figures, figures
from scheduling.simulator.runs.trace_replay import Run, replay
from scheduling.simulator.traces.jobs import TraceJob
from scheduling.simulator.traces.openb import gpus_of, read_nodes, read_requests
from scheduling.simulator.traces.predictions import with_predictions
from tests.simulator.size_rules import Demand, SizedCluster, SizeRule

LISTS = ("default", "gpuspec20", "multigpu30")
RULES = (
    SizeRule("fragmentation"),
    SizeRule("fragmentation", large_gpus=8),
    SizeRule("fragmentation", large_gpus=4),
    SizeRule("fragmentation", classes=True),
    SizeRule("fragmentation", tainted=True),
    SizeRule("best_fit"),
    SizeRule("best_fit", large_gpus=8),
    SizeRule("best_fit", classes=True),
)
# In queueing nodes are identical and scores differ less, so best fit is only tried with the reserve.
QUEUEING_RULES = (*RULES[:5], SizeRule("best_fit", large_gpus=8))
# Policy -> predictions. Without noise all seeds are equal, so there is one replay.
POLICIES = {"shortest": "noisy", "fifo": "none", "fair": "none"}
# Waits are reported separately for jobs of at least this many GPUs.
LARGE_GPUS = 8
GPUS_PER_NODE = 8
SEPARATE, POOLED = "apart", "pooled"


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """Allocation in percent of the GPUs, mean and standard deviation over the seeds. `large_placed_percent`: of the
    requests for 8 GPUs that arrived."""

    requests: str
    rule: str
    seeds: int
    allocation_percent: float
    sd: float
    large_placed_percent: float


@dataclass(frozen=True, slots=True)
class QueueingRow:
    """Waits in hours, means over the seeds; `mean_sd` is the standard deviation of the mean wait. `large_h`, `small_h`:
    mean waits of jobs of at least 8 GPUs (None: there is none) and of the others."""

    cluster: str
    policy: str
    rule: str
    seeds: int
    jobs: int
    mean_h: float
    mean_sd: float
    p99_h: float
    max_h: float
    large_h: float | None
    small_h: float
    utilisation_percent: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """One replay, or several side by side."""

    all_jobs: Figures
    large_hours: tuple[float, ...]
    small_hours: tuple[float, ...]


def placement_rows(folder: Path, lists: Sequence[str], seeds: int) -> Iterator[PlacementRow]:
    """Yield a row for each pod list and rule."""
    nodes = read_nodes(folder / "openb_node_list_gpu_node.csv.gz")
    for name in lists:
        requests = read_requests(folder / f"openb_pod_list_{name}.csv.gz")
        for rule in RULES:
            fills = filled(nodes, requests, rule, seeds)
            percents = [entry.allocated_percent for entry in fills]
            placed = sum(_large(entry.placed_by_gpus) for entry in fills)
            refused = sum(_large(entry.refused_by_gpus) for entry in fills)
            large_percent = round(100 * placed / max(placed + refused, 1), 1)
            yield PlacementRow(name, rule.title, seeds, round(mean(percents), 2), _sd(percents), large_percent)


def filled(nodes: Sequence[Node], requests: Sequence[Request], rule: SizeRule, seeds: int) -> list[Fill]:
    """Fill the cluster under a rule. The same seed draws the same requests under every rule."""
    demand: dict[int, float] = {}
    for request in requests:
        demand[request.gpu_count] = demand.get(request.gpu_count, 0.0) + gpus_of(request)
    changed = {request: rule.request(request) for request in dict.fromkeys(requests)}
    sized_nodes, sized_requests = rule.nodes(nodes, demand), [changed[request] for request in requests]
    return [fill(sized_nodes, sized_requests, rule.placement, seed) for seed in range(1, seeds + 1)]


def queueing_rows(
    jobs: Sequence[TraceJob], nodes: dict[str, int], policies: Sequence[str], rules: Sequence[SizeRule], seeds: int
) -> Iterator[QueueingRow]:
    """Yield the rows of each tenant on nodes of its own, of all these together (`apart`), and of all in one queue on
    as many nodes (`pooled`), for each policy and rule. One tenant alone has one row."""
    own = {name: [job for job in jobs if job.tenant == name] for name in nodes}
    pooled = [replace(job, tenant=POOLED) for job in jobs]
    for policy in policies:
        numbers = range(1, (seeds if POLICIES[policy] == "noisy" else 1) + 1)
        for rule in rules:
            runs = {name: [replayed(own[name], nodes[name], policy, rule, seed) for seed in numbers] for name in nodes}
            if len(runs) > 1:
                runs[SEPARATE] = [[part for name in nodes for part in runs[name][seed - 1]] for seed in numbers]
                total = sum(nodes.values())
                runs[POOLED] = [replayed(pooled, total, policy, rule, seed) for seed in numbers]
            for name, parts in runs.items():
                yield _row(name, policy, rule, [_summed(entry) for entry in parts])


def replayed(
    jobs: Sequence[TraceJob], node_count: int, policy: str, rule: SizeRule, seed: int
) -> list[tuple[Run, int]]:
    """Replay the jobs under a rule: the run, and the GPUs of its cluster. Raises ValueError if a job could never start.

    The shares of the classes follow the true GPU time of the trace, which a live cluster would have to guess."""
    cluster = SizedCluster(node_count, GPUS_PER_NODE, rule=rule, demand=demand_of(jobs))
    rules = Policy(name=policy, placement=rule.placement)
    impossible = never_fitting(cluster, jobs, rules)
    if impossible:
        raise ValueError(f"{len(impossible)} of {len(jobs)} jobs do not fit on {node_count} nodes under {rule.title}")
    return [(replay(with_predictions(jobs, POLICIES[policy], seed), cluster, rules), cluster.gpu_count)]


def demand_of(jobs: Sequence[TraceJob]) -> Demand:
    """Return the GPU seconds of the jobs of each size."""
    demand: dict[int, float] = {}
    for job in jobs:
        demand[job.gpus] = demand.get(job.gpus, 0.0) + job.gpus * job.run_seconds
    return demand


def _summed(parts: Sequence[tuple[Run, int]]) -> Replayed:
    hours_by_gpus = [(result.job.gpus, result.wait_seconds / 3600.0) for run, _ in parts for result in run.results]
    large = tuple(hours for gpus, hours in hours_by_gpus if gpus >= LARGE_GPUS)
    return Replayed(figures(parts), large, tuple(hours for gpus, hours in hours_by_gpus if gpus < LARGE_GPUS))


def _row(cluster: str, policy: str, rule: SizeRule, runs: Sequence[Replayed]) -> QueueingRow:
    hours = {name: [run.all_jobs.queue_hours[name] for run in runs] for name in ("mean", "p99", "max")}
    return QueueingRow(
        cluster,
        policy,
        rule.title,
        len(runs),
        runs[0].all_jobs.jobs,
        round(mean(hours["mean"]), 2),
        _sd(hours["mean"]),
        round(mean(hours["p99"]), 1),
        round(mean(hours["max"]), 1),
        round(mean(mean(run.large_hours) for run in runs), 2) if runs[0].large_hours else None,
        round(mean(mean(run.small_hours) for run in runs), 2),
        round(mean(run.all_jobs.utilisation_percent for run in runs), 2),
    )


def _large(counts: Mapping[int, int]) -> int:
    return sum(count for gpus, count in counts.items() if gpus >= LARGE_GPUS)


def _sd(values: Sequence[float]) -> float:
    return round(stdev(values), 2) if len(values) > 1 else 0.0
