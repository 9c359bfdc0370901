"""Builds the simulated cluster that a trace is replayed on: equal nodes, the tenants of the trace, and their limits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduling.engine.model import Device, Job, Node, Policy, Request, Snapshot, Tenant
from scheduling.engine.planner import plan
from scheduling.simulator.traces.jobs import TraceJob


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster. `quotas`: tenant -> maximum GPUs at once; `guarantees`: tenant -> GPUs; `weights`: tenant -> weight
    (1)."""

    node_count: int
    gpus_per_node: int
    quotas: Mapping[str, int] = field(default_factory=dict)
    guarantees: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def gpu_count(self) -> int:
        return self.node_count * self.gpus_per_node

    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._node(number) for number in range(1, self.node_count + 1))

    def tenants(self, jobs: Iterable[TraceJob]) -> tuple[Tenant, ...]:
        """Return the tenants of the jobs, numbered from 1 by their names."""
        names = sorted({job.tenant for job in jobs})
        return tuple(
            Tenant(
                number,
                name,
                weight=self.weights.get(name, 1.0),
                guaranteed_gpus=self.guarantees.get(name, 0),
                max_gpus=self.quotas.get(name),
            )
            for number, name in enumerate(names, 1)
        )

    def request(self, gpus: int) -> Request:
        """Return the request of a job; traces have no CPU and memory. A job that needs more than one node gets whole
        nodes if its GPUs divide so, else equal ranks on as few nodes as possible."""
        ranks = gpus // self.gpus_per_node if gpus % self.gpus_per_node == 0 else None
        spans = gpus > self.gpus_per_node
        return Request(gpus, cpu_milli=0, gang=spans, ranks=ranks if spans else None)

    def waiting(self, jobs: Sequence[TraceJob], *, limits: str = "given") -> list[Job]:
        """Return the jobs as the engine sees them at their submit. `limits`: given, none, or oracle (the run time)."""
        requests = {gpus: self.request(gpus) for gpus in sorted({job.gpus for job in jobs})}
        tenants = {tenant.name: tenant.id for tenant in self.tenants(jobs)}
        users = {user: number for number, user in enumerate(sorted({job.user for job in jobs}), 1)}
        return [
            Job(
                id=job.id,
                tenant_id=tenants[job.tenant],
                request=requests[job.gpus],
                priority=job.priority,
                user_id=users[job.user],
                queued_at=job.submitted_at,
                eligible_at=job.submitted_at,  # which may be before 0
                max_runtime_seconds=_limit(job, limits),
                predicted_seconds=job.predicted_seconds,
            )
            for job in jobs
        ]

    def _node(self, number: int) -> Node:
        first = number * self.gpus_per_node
        devices = tuple(Device(first + index, "GPU", None) for index in range(self.gpus_per_node))
        return Node(number, f"node{number}", 0, 0, 0, 0, devices)


def never_fitting(cluster: Cluster, jobs: Sequence[TraceJob], policy: Policy) -> list[TraceJob]:
    """Return the jobs that would not even start on the empty cluster."""
    tenants, waiting = cluster.tenants(jobs), cluster.waiting(jobs)
    shapes = {(job.tenant_id, job.request.gpu_count): job for job in waiting}
    starts = {}
    for shape, job in shapes.items():
        alone = Snapshot((job,), (), cluster.nodes(), tenants)
        starts[shape] = bool(plan(alone, policy, max(job.queued_at, 0.0)).placements)
    pairs = zip(jobs, waiting, strict=True)
    return [trace_job for trace_job, job in pairs if not starts[job.tenant_id, job.request.gpu_count]]


def _limit(job: TraceJob, limits: str) -> int | None:
    if limits == "oracle":
        return int(job.run_seconds) + 1
    return job.limit_seconds if limits == "given" else None
