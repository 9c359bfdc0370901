"""The calls for everything but jobs: tenants, quotas, nodes, the policy and the cluster."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpusched.client.transport.call import Call, get, json_as, segment, without_none, write
from gpusched.protocol.affinity import Taint
from gpusched.protocol.rest.cluster import (
    ArchivedTenant,
    ClusterStatus,
    DeviceAction,
    EditedQuota,
    Health,
    Node,
    NodeAction,
    NodeLabels,
    NodeTaints,
    Quota,
    Share,
    Tenant,
)
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.scheduling import EditedPolicy, QueueUsage


def tenants(*, archived: bool = False) -> Call[Page[Tenant]]:
    """Return the tenants that you can see. `archived`: also the archived ones."""
    return get("/tenants", Page[Tenant], archived="true" if archived else None)


def tenant(name: str) -> Call[Tenant]:
    """Return a tenant, with its quota and current use."""
    return get(f"/tenants/{segment(name)}", Tenant)


def create_tenant(
    name: str,
    *,
    display_name: str | None = None,
    weight: float | None = None,
    tier: str | None = None,
    unix_user: str | None = None,
    time_zone: str | None = None,
) -> Call[Tenant]:
    """Create a tenant, without limits until `set_quota`."""
    body = without_none(
        name=name, display_name=display_name, weight=weight, tier=tier, unix_user=unix_user, time_zone=time_zone
    )
    return write("POST", "/tenants", Tenant, body)


def change_tenant(
    name: str,
    *,
    display_name: str | None = None,
    weight: float | None = None,
    tier: str | None = None,
    allow_preemption: bool | None = None,
    can_preempt_others: bool | None = None,
    preemption_budget_per_hour: int | None = None,
    unix_user: str | None = None,
    time_zone: str | None = None,
) -> Call[Tenant]:
    """Change the named fields; leave the others as they are."""
    body = without_none(
        display_name=display_name,
        weight=weight,
        tier=tier,
        allow_preemption=allow_preemption,
        can_preempt_others=can_preempt_others,
        preemption_budget_per_hour=preemption_budget_per_hour,
        unix_user=unix_user,
        time_zone=time_zone,
    )
    return write("PATCH", f"/tenants/{segment(name)}", Tenant, body)


def rename_tenant(name: str, new_name: str) -> Call[Tenant]:
    """Rename a tenant; the old name becomes unknown (admins)."""
    return write("POST", f"/tenants/{segment(name)}/rename", Tenant, {"name": new_name})


def archive_tenant(name: str, *, cancel_jobs: bool = False) -> Call[ArchivedTenant]:
    """Archive a tenant: it accepts no jobs, and lists leave it out (admins). Raises Conflict while it has unfinished
    jobs, unless `cancel_jobs`."""
    return write("POST", f"/tenants/{segment(name)}/archive", ArchivedTenant, {"cancel_jobs": cancel_jobs})


def unarchive_tenant(name: str) -> Call[Tenant]:
    """Restore an archived tenant with its quota and members (admins)."""
    return write("POST", f"/tenants/{segment(name)}/unarchive", Tenant)


def quota(tenant: str) -> Call[Quota]:
    """Return the limits of a tenant."""
    return get(f"/tenants/{segment(tenant)}/quota", Quota)


def set_quota(tenant: str, quota: Quota, *, dry_run: bool = False) -> Call[EditedQuota]:
    """Replace all limits, unless they changed since `quota` was read (its `version`). The answer describes the effect;
    `dry_run`: only describe it."""
    body: dict[str, Any] = {name: getattr(quota, name) for name in Quota.__struct_fields__}
    version = body.pop("version") or None
    return write("PUT", f"/tenants/{segment(tenant)}/quota", EditedQuota, body, version=version, is_dry_run=dry_run)


def shares() -> Call[Page[Share]]:
    """Return the allocated and used share of each of your tenants, by weight."""
    return get("/scheduling/shares", Page[Share])


def queue_usage() -> Call[Page[QueueUsage]]:
    """Return the pending jobs of your tenants and their users."""
    return get("/queue/usage", Page[QueueUsage])


def policy() -> Call[EditedPolicy]:
    """Return the scheduling policy, field by field, with its `version`."""
    return get("/scheduling/policy", EditedPolicy)


def set_policy(
    changes: Mapping[str, object], *, version: int | None = None, dry_run: bool = False
) -> Call[EditedPolicy]:
    """Change the given fields, unless the policy changed since `version` was read. `dry_run`: change nothing, and
    return the policy as it would be, with the `effect`."""
    return write("PATCH", "/scheduling/policy", EditedPolicy, dict(changes), version=version, is_dry_run=dry_run)


def nodes() -> Call[Page[Node]]:
    """Return all nodes with their devices, the allocations, and the last reading."""
    return get("/nodes", Page[Node])


def node(name: str) -> Call[Node]:
    """Return a node with its devices."""
    return get(f"/nodes/{segment(name)}", Node)


def cordon(name: str) -> Call[NodeAction]:
    """Cordon a node: no job starts on it; running jobs continue."""
    return write("POST", f"/nodes/{segment(name)}/cordon", NodeAction)


def uncordon(name: str) -> Call[NodeAction]:
    """Uncordon a node: jobs start on it again."""
    return write("POST", f"/nodes/{segment(name)}/uncordon", NodeAction)


def drain(name: str) -> Call[NodeAction]:
    """Drain a node: no job starts on it until its running jobs have ended."""
    return write("POST", f"/nodes/{segment(name)}/drain", NodeAction)


def rotate_node_credential(name: str) -> Call[NodeAction]:
    """Ask the agent of a node for a new credential; its jobs continue."""
    return write("POST", f"/nodes/{segment(name)}/rotate-credential", NodeAction)


def remove_node(name: str) -> Call[NodeAction]:
    """Remove a node that is lost, cordoned or drained and has no job left; its history stays."""
    return write("DELETE", f"/nodes/{segment(name)}", NodeAction)


def node_labels(name: str) -> Call[NodeLabels]:
    """Return the labels of a node, each set by an admin or its agent."""
    return get(f"/nodes/{segment(name)}/labels", NodeLabels)


def label_node(name: str, labels: Mapping[str, str | None]) -> Call[NodeLabels]:
    """Set labels of a node, or remove those whose value is None; the others stay."""
    return write("PATCH", f"/nodes/{segment(name)}/labels", NodeLabels, {"labels": dict(labels)})


def node_taints(name: str) -> Call[NodeTaints]:
    """Return the taints of a node."""
    return get(f"/nodes/{segment(name)}/taints", NodeTaints)


def taint_node(name: str, add: Sequence[Taint] = (), *, remove: Sequence[str] = ()) -> Call[NodeTaints]:
    """Remove taints (`KEY` or `KEY:EFFECT`) of a node, then add others. Running jobs continue."""
    body = {"add": [msgspec.to_builtins(taint) for taint in add], "remove": list(remove)}
    # Not repeatable: a second one would not find the removed taints.
    return write("PATCH", f"/nodes/{segment(name)}/taints", NodeTaints, body, is_repeatable=not remove)


def quarantine(device_id: int, *, note: str = "") -> Call[DeviceAction]:
    """Quarantine a device: it gets no new jobs until it is cleared; running jobs continue."""
    return write("POST", f"/gpus/{device_id}/quarantine", DeviceAction, {"note": note})


def clear(device_id: int) -> Call[DeviceAction]:
    """Clear a device: its readings decide its status again."""
    return write("POST", f"/gpus/{device_id}/clear", DeviceAction)


def retire(device_id: int) -> Call[DeviceAction]:
    """Retire a device for good: it is neither listed nor counted until its agent reports it again."""
    return write("POST", f"/gpus/{device_id}/retire", DeviceAction)


def status() -> Call[ClusterStatus]:
    """Return the numbers of nodes, GPUs and jobs."""
    return get("/cluster/status", ClusterStatus)


def health() -> Call[Health]:
    """Return the server's health and version; needs no token."""
    return Call("GET", "/health", json_as(Health))
