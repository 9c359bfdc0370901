"""Keeps jobs from nodes that do not have their Unix user: such a job asks for a label that the other nodes have."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from nodes.health import missing_users
from scheduling.engine.model import Request, Snapshot


def require_unix_users(snapshot: Snapshot) -> Snapshot:
    """The same, and unchanged as long as no node has told that it lacks a user. Labels with a space are none that
    people give, and are told as they are in a reason: no node matches Unix user alice."""
    if not (lacks := missing_users.current()):
        return snapshot
    labels = {tenant: _label(user) for _, tenant, user in lacks}
    lacking = {(node, _label(user)) for node, _, user in lacks}
    jobs = tuple(
        replace(job, request=_of_user(job.request, labels[job.tenant_id])) if job.tenant_id in labels else job
        for job in snapshot.jobs
    )
    nodes = tuple(
        replace(node, labels={**node.labels, **_had(node.id, labels.values(), lacking)}) for node in snapshot.nodes
    )
    return replace(snapshot, jobs=jobs, nodes=nodes)


def _label(user: str) -> str:
    return f"Unix user {user}" if user else "a Unix user for tenants without unix_user"


def _had(node: int, labels: Iterable[str], lacking: set[tuple[int, str]]) -> dict[str, str]:
    return {label: "yes" for label in labels if (node, label) not in lacking}


@lru_cache(4096)
def _of_user(request: Request, label: str) -> Request:
    return replace(request, node_selector=tuple(sorted((*request.node_selector, (label, "yes")))))
