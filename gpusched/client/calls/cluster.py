"""The calls about everything but jobs: tenants, quotas, nodes, the policy and the cluster."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpusched.client.transport.call import API, Call, get, json_as, segment, without_none, write
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
    """The tenants that you may see. `archived`: also those that are archived."""
    return get("/tenants", Page[Tenant], archived="true" if archived else None)


def tenant(name: str) -> Call[Tenant]:
    """One tenant, with its quota and what it uses now."""
    return get(f"/tenants/{segment(name)}", Tenant)


def create_tenant(
    name: str,
    *,
    display_name: str | None = None,
    weight: float | None = None,
    tier: str | None = None,
    unix_user: str | None = None,
) -> Call[Tenant]:
    """A new tenant, without limits until `set_quota`."""
    body = without_none(name=name, display_name=display_name, weight=weight, tier=tier, unix_user=unix_user)
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
) -> Call[Tenant]:
    """Changes what is given and leaves the rest."""
    body = without_none(
        display_name=display_name,
        weight=weight,
        tier=tier,
        allow_preemption=allow_preemption,
        can_preempt_others=can_preempt_others,
        preemption_budget_per_hour=preemption_budget_per_hour,
        unix_user=unix_user,
    )
    return write("PATCH", f"/tenants/{segment(name)}", Tenant, body)


def rename_tenant(name: str, new_name: str) -> Call[Tenant]:
    """Gives a tenant another name; the old one is unknown from then on (admins)."""
    return write("POST", f"/tenants/{segment(name)}/rename", Tenant, {"name": new_name})


def archive_tenant(name: str, *, cancel_jobs: bool = False) -> Call[ArchivedTenant]:
    """Lets a tenant submit no more and leaves it out of lists (admins). Raises Conflict while it has unfinished jobs,
    unless `cancel_jobs`."""
    return write("POST", f"/tenants/{segment(name)}/archive", ArchivedTenant, {"cancel_jobs": cancel_jobs})


def unarchive_tenant(name: str) -> Call[Tenant]:
    """Restores an archived tenant with its quota and members (admins)."""
    return write("POST", f"/tenants/{segment(name)}/unarchive", Tenant)


def quota(tenant: str) -> Call[Quota]:
    """What a tenant may hold at once."""
    return get(f"/tenants/{segment(tenant)}/quota", Quota)


def set_quota(tenant: str, quota: Quota, *, dry_run: bool = False) -> Call[EditedQuota]:
    """Replaces all limits, provided that nobody changed them since `quota` was read (its `version`). The answer says
    what that changes; `dry_run`: what it would, and nothing is changed."""
    body: dict[str, Any] = {name: getattr(quota, name) for name in Quota.__struct_fields__}
    version = body.pop("version")
    # Not repeatable: the first of two would change the version, and the second be refused for it.
    return Call(
        "PUT",
        f"{API}/tenants/{segment(tenant)}/quota",
        json_as(EditedQuota),
        query={"dry_run": "true"} if dry_run else {},
        body=body,
        headers={"If-Match": f'"{version}"'} if version else {},
        is_repeatable=dry_run or not version,
    )


def shares() -> Call[Page[Share]]:
    """What each of your tenants holds and has used, by its weight."""
    return get("/scheduling/shares", Page[Share])


def queue_usage() -> Call[Page[QueueUsage]]:
    """Who fills the queue: the waiting jobs of your tenants and their users."""
    return get("/queue/usage", Page[QueueUsage])


def policy() -> Call[EditedPolicy]:
    """The scheduling policy, field by field, with its `version`."""
    return get("/scheduling/policy", EditedPolicy)


def set_policy(
    changes: Mapping[str, object], *, version: int | None = None, dry_run: bool = False
) -> Call[EditedPolicy]:
    """Changes what is given, if nobody changed the policy since `version` was read. `dry_run`: changes nothing; the
    answer has the policy as it would be, and the `effect`."""
    return Call(
        "PATCH",
        f"{API}/scheduling/policy",
        json_as(EditedPolicy),
        query={"dry_run": "true"} if dry_run else {},
        body=dict(changes),
        headers={} if version is None else {"If-Match": f'"{version}"'},
        is_repeatable=dry_run or version is None,
    )


def nodes() -> Call[Page[Node]]:
    """All nodes with their devices, who holds them, and the last reading."""
    return get("/nodes", Page[Node])


def node(name: str) -> Call[Node]:
    """One node with its devices."""
    return get(f"/nodes/{segment(name)}", Node)


def cordon(name: str) -> Call[NodeAction]:
    """Nothing new starts on the node; what runs goes on."""
    return write("POST", f"/nodes/{segment(name)}/cordon", NodeAction)


def uncordon(name: str) -> Call[NodeAction]:
    """The node takes jobs again."""
    return write("POST", f"/nodes/{segment(name)}/uncordon", NodeAction)


def drain(name: str) -> Call[NodeAction]:
    """Nothing new starts on the node until what runs there has ended."""
    return write("POST", f"/nodes/{segment(name)}/drain", NodeAction)


def remove_node(name: str) -> Call[NodeAction]:
    """Remove a node that is lost, cordoned or drained and has no job left; its history stays."""
    return write("DELETE", f"/nodes/{segment(name)}", NodeAction)


def node_labels(name: str) -> Call[NodeLabels]:
    """The labels of a node, and whether an admin or its agent set them."""
    return get(f"/nodes/{segment(name)}/labels", NodeLabels)


def label_node(name: str, labels: Mapping[str, str | None]) -> Call[NodeLabels]:
    """Set labels of a node, or remove those whose value is None; the others stay."""
    return write("PATCH", f"/nodes/{segment(name)}/labels", NodeLabels, {"labels": dict(labels)})


def node_taints(name: str) -> Call[NodeTaints]:
    """The taints of a node."""
    return get(f"/nodes/{segment(name)}/taints", NodeTaints)


def taint_node(name: str, add: Sequence[Taint] = (), *, remove: Sequence[str] = ()) -> Call[NodeTaints]:
    """Remove taints (`KEY` or `KEY:EFFECT`) of a node, then add others. Running jobs go on."""
    body = {"add": [msgspec.to_builtins(taint) for taint in add], "remove": list(remove)}
    # Not repeatable: what is removed the first time is unknown the second time.
    return Call(
        "PATCH", f"{API}/nodes/{segment(name)}/taints", json_as(NodeTaints), body=body, is_repeatable=not remove
    )


def quarantine(device_id: int, *, note: str = "") -> Call[DeviceAction]:
    """The device gets no new jobs until it is cleared; what runs on it goes on."""
    return write("POST", f"/gpus/{device_id}/quarantine", DeviceAction, {"note": note})


def clear(device_id: int) -> Call[DeviceAction]:
    """The device is what its readings say again."""
    return write("POST", f"/gpus/{device_id}/clear", DeviceAction)


def retire(device_id: int) -> Call[DeviceAction]:
    """The device is gone for good: nothing lists or counts it, until its agent names it again."""
    return write("POST", f"/gpus/{device_id}/retire", DeviceAction)


def status() -> Call[ClusterStatus]:
    """How many nodes, GPUs and jobs there are."""
    return get("/cluster/status", ClusterStatus)


def health() -> Call[Health]:
    """Whether the server is up, and its version; needs no token."""
    return Call("GET", "/health", json_as(Health))
