"""The running jobs that one kind of waiting job may stop, by node. A plan asks for many jobs of a kind, so it keeps
them, and removes what was stopped."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate

from scheduling.engine.model import RunningJob


class NodeVictims:
    """The possible victims on a node, in order. `gpus`: GPUs that they hold there; `largest`: most GPUs of one of them;
    `lost[n]`: the least GPU-seconds of work that the ends of n of them lose; `costs`: known results of
    `minimum_cost`."""

    __slots__ = ("costs", "gpus", "jobs", "largest", "lost")

    def __init__(self, node_id: int, jobs: list[RunningJob], losses: Mapping[int, float]) -> None:
        self.jobs = jobs
        self.costs: dict[int, tuple[float, ...]] = {}
        self.gpus = sum([len(rank.holds) for job in jobs for rank in job.ranks if rank.node_id == node_id])
        self.largest = max([job.request.gpu_count for job in jobs])
        self.lost = list(accumulate(sorted([losses[job.job_id] for job in jobs]), initial=0.0))

    def minimum_cost(self, short: int) -> tuple[float, ...]:
        """Return a lower bound of the cost (top priority, loss, number) of victims whose end frees `short` GPUs. It
        counts only GPUs, as if all jobs were as large as the largest and held all their GPUs on this node."""
        cost: tuple[float, ...] = (0.0, 0.0, 0.0)
        if short > 0:
            fewest = min(-(-short // max(self.largest, 1)), len(self.jobs))
            cost = self.jobs[fewest - 1].priority, self.lost[fewest], fewest
        self.costs[short] = cost
        return cost


class VictimPool:
    """Possible victims in order, and by node."""

    def __init__(self, jobs: Iterable[RunningJob], losses: Mapping[int, float]) -> None:
        self._jobs = list(jobs)
        self._losses = losses
        self._stopped: set[int] = set()
        on_node: dict[int, list[RunningJob]] = {}
        for job in self._jobs:
            ranks = job.ranks
            for node_id in {rank.node_id for rank in ranks} if len(ranks) != 1 else (ranks[0].node_id,):
                on_node.setdefault(node_id, []).append(job)
        self.by_node = {node_id: NodeVictims(node_id, jobs, losses) for node_id, jobs in on_node.items()}

    def jobs(self) -> Iterator[RunningJob]:
        """Yield all jobs that are left, in order."""
        return (job for job in self._jobs if job.job_id not in self._stopped)

    def remove(self, stopped: Collection[RunningJob]) -> None:
        self._stopped |= {job.job_id for job in stopped}
        for node_id in {rank.node_id for job in stopped for rank in job.ranks} & self.by_node.keys():
            left = [job for job in self.by_node[node_id].jobs if job.job_id not in self._stopped]
            if left:
                self.by_node[node_id] = NodeVictims(node_id, left, self._losses)
            else:
                del self.by_node[node_id]
