"""Check at submit whether a request can ever run, with a snapshot of hardware and limits that all submits share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gpusched.lib.api.problems import Problem
from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import prepared
from gpusched.protocol import reasons
from gpusched.protocol.job_request import FieldError, JobRequest
from gpusched.protocol.reasons import Pending
from scheduling.cycle import free_nodes, running_jobs
from scheduling.cycle.eras import current_era
from scheduling.cycle.tenants import load_tenants
from scheduling.engine.explain.feasibility import why_never_fits_in
from scheduling.engine.explain.inventory import Inventory, inventory_of
from scheduling.engine.limits.budgets import budget_reason, is_exhausted
from scheduling.engine.model import Node, PendingReason, Policy, Request, Tenant
from scheduling.engine.whatif.effects import in_use
from scheduling.policy import policy
from scheduling.reservations import bookings
from scheduling.whatif.simulate_submit import to_engine_request
from tenants.auth.identity import Identity

# An acceptance may rest on a snapshot this old: such a job stays pending with its reason. But the snapshot is never
# older than the latest acknowledged edit of a quota, because several processes answer. A refusal needs a snapshot whose
# version is the database's at that moment.
_CACHE_SECONDS = 2.0
REFUSED_AS: dict[str, tuple[int, str]] = {
    Pending.TENANT_LIMIT: (403, "quota_exceeded"),
    Pending.BUDGET: (403, "budget_used_up"),
}
# A hash of everything that a refusal depends on. PostgreSQL computes it for 200 nodes in about a millisecond, while
# reading the cluster into Python takes twenty and holds the interpreter that all submits of the process share.
_VERSION = f"""
    SELECT (SELECT coalesce(sum(hashtextextended(concat_ws(' ', id, cpu_cores, memory_mb, labels, admin_labels, taints,
                                                            runtimes), 0)), 0)
              FROM nodes_all n WHERE {free_nodes.IS_CAPACITY}) AS nodes,
           (SELECT coalesce(sum(hashtextextended(
                       concat_ws(' ', id, node_id, model, coalesce(memory_mb, -1), coalesce(numa_node, -1),
                                 coalesce(nvlink_island, -1)), 0)), 0) FROM nodes_devices) AS devices,
           (SELECT coalesce(sum(version), 0) FROM tenants_quotas) AS quotas,
           (SELECT coalesce(sum(version), 0) FROM tenants_budgets) AS budgets,
           (SELECT coalesce(sum(version), 0) FROM scheduling_schedulingpolicy) AS policies
"""


@dataclass(frozen=True)
class _Cluster:
    """The data of the checks, and the version of the database, read before them."""

    version: Mapping[str, object]
    quota_edits: int
    nodes: Sequence[Node]
    inventory: Inventory
    tenants: Mapping[int, Tenant]
    policy: Policy


# While one thread reads a new snapshot, the others use the previous one.
_clusters: Cache[None, _Cluster] = Cache(seconds=_CACHE_SECONDS, stale_seconds=_CACHE_SECONDS)


def check_request(request: JobRequest, tenant_id: int, identity: Identity) -> Problem | None:
    """Return why the request can never run, or None.

    400 for a reservation that it may not use; 422 for a request that no node, or all nodes together, can hold; 403 for
    one above the tenant's limit (A04), and while the tenant's budget is used up."""
    engine_request, is_online = to_engine_request(request, tenant_id), request.workload_class == "online"
    if problem := bookings.why_not_in(request, tenant_id, identity):
        return problem
    cluster = _recent(identity.quota_edits)
    verdict = None
    if tenant_id in cluster.tenants:
        verdict = _verdict(engine_request, tenant_id, cluster, is_online=is_online)
        if verdict is None:
            return None
    cluster = _current(cluster, tenant_id, identity.quota_edits)
    verdict = _verdict(engine_request, tenant_id, cluster, is_online=is_online)
    return None if verdict is None else _problem(verdict, cluster, tenant_id, identity)


def _verdict(engine_request: Request, tenant_id: int, cluster: _Cluster, *, is_online: bool) -> PendingReason | None:
    tenant = cluster.tenants[tenant_id]
    reason = why_never_fits_in(engine_request, tenant, cluster.inventory, cluster.policy, is_online=is_online)
    if reason is None and engine_request.gpu_count and is_exhausted(tenant):
        return budget_reason(tenant)
    return reason


def _problem(verdict: PendingReason, cluster: _Cluster, tenant_id: int, identity: Identity) -> Problem:
    # A budget is renewed: unlike a limit, it does not mean that the job can never run.
    status, code = REFUSED_AS.get(verdict.code, (422, verdict.code))
    detail = reasons.sentence(verdict.code, verdict.evidence)
    if verdict.code == Pending.TENANT_LIMIT:
        tenant = cluster.tenants[tenant_id]
        running = running_jobs.running_of(tenant_id)
        used = in_use(str(verdict.evidence["dimension"]), tenant, identity.user_id, running, cluster.nodes)
        evidence = {**verdict.evidence, "whose": f"tenant {tenant.name}", "in_use": used}
        detail = reasons.sentence(Pending.QUOTA_WAIT, evidence)
    step = reasons.next_step(verdict.code, verdict.evidence)
    return Problem(status, code, detail, next_step=step, errors=[FieldError("gpu_count", code, detail)])


def _recent(quota_edits: int) -> _Cluster:
    """Return the snapshot, about _CACHE_SECONDS old, with the caller's quota edits and possibly later ones."""
    return _clusters.get(None, partial(_read, quota_edits), lambda cluster: cluster.quota_edits >= quota_edits)


def _current(previous: _Cluster, tenant_id: int, quota_edits: int) -> _Cluster:
    """Return a snapshot of the database's present version that includes the tenant: `previous` if it qualifies.

    Any number of refusals of a version share one snapshot."""
    version = _version()
    if previous.version == version and tenant_id in previous.tenants:
        return previous
    return _clusters.get(
        None, partial(_read, quota_edits), lambda cluster: cluster.version == version and tenant_id in cluster.tenants
    )


def _version() -> Mapping[str, object]:
    return prepared(_VERSION, {"capacity_seconds": free_nodes.capacity_seconds()})[0]


def _read(quota_edits: int) -> _Cluster:
    """Read the snapshot; the version first, so that a change in between shows as another version."""
    version = _version()
    nodes, rules = free_nodes.nodes(current_era()), policy()
    return _Cluster(
        version=version,
        quota_edits=quota_edits,
        nodes=nodes,
        inventory=inventory_of(nodes),
        tenants={tenant.id: tenant for tenant in load_tenants(rules)},
        policy=rules,
    )
