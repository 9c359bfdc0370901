"""Makes the pretend cluster that a trace is replayed on: equal nodes, the tenants of the trace, and their limits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduling.engine.model import Device, Job, Node, Policy, Request, Snapshot, Tenant
from scheduling.engine.planner import plan
from scheduling.simulator.traces.jobs import TraceJob


@dataclass(frozen=True, slots=True)
class Cluster:
    """`quotas`: tenant -> most GPUs at once; `guarantees`: tenant -> GPUs; `weights`: tenant -> weight (1)."""

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
        """Those of the jobs, numbered from 1 by their names."""
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
        """Traces say nothing of CPU and memory. A job that needs more than one node gets whole nodes where its GPUs
        divide so, else equal ranks on as few nodes as possible."""
        ranks = gpus // self.gpus_per_node if gpus % self.gpus_per_node == 0 else None
        spans = gpus > self.gpus_per_node
        return Request(gpus, cpu_milli=0, gang=spans, ranks=ranks if spans else None)

    def waiting(self, jobs: Sequence[TraceJob], *, limits: str = "given") -> list[Job]:
        """The jobs as the engine sees them when they are submitted. `limits`: given, none, or oracle (as they ran)."""
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
    """The jobs that would not even start on the empty cluster."""
    tenants, waiting = cluster.tenants(jobs), cluster.waiting(jobs)
    shapes = {(one.tenant_id, one.request.gpu_count): one for one in waiting}
    starts = {}
    for shape, one in shapes.items():
        alone = Snapshot((one,), (), cluster.nodes(), tenants)
        starts[shape] = bool(plan(alone, policy, max(one.queued_at, 0.0)).placements)
    return [job for job, one in zip(jobs, waiting, strict=True) if not starts[one.tenant_id, one.request.gpu_count]]


def _limit(job: TraceJob, limits: str) -> int | None:
    if limits == "oracle":
        return int(job.run_seconds) + 1
    return job.limit_seconds if limits == "given" else None
