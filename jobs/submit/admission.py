"""What is asked about a request and needs to know more than jobs do: registered from above, asked at submit.

Jobs may not import what stands above them, so the scheduler registers its answers at start (scheduling/apps.py)."""

from collections.abc import Callable, Collection, Hashable
from typing import Any

import msgspec

from gpusched.lib.api.problems import Problem
from gpusched.protocol.job_request import JobRequest
from tenants.auth.identity import Identity

Check = Callable[[JobRequest, int, Identity], Problem | None]
Preview = Callable[[JobRequest, dict[str, Any], Collection[int] | None], dict[str, Any]]
_checks: list[Check] = []
_previews: list[Preview] = []


def register(check: Check) -> None:
    """`check(request, tenant_id, identity)` gives the problem with a request that can never run, or None. What it
    remembers of quotas is from no fewer edits of them than the identity's `quota_edits`."""
    if check not in _checks:
        _checks.append(check)


def register_preview(preview: Preview) -> None:
    """`preview(request, row, visible)` says what would become of a request, `row` being the columns of its job; jobs
    of other than the `visible` tenants are not named (None: all may be)."""
    _previews[:] = [preview]


def preview(request: JobRequest, row: dict[str, Any], visible: Collection[int] | None) -> dict[str, Any]:
    return _previews[0](request, row, visible)


def require_admissible(request: JobRequest, tenant_id: int, identity: Identity) -> None:
    """Raises the first problem that a registered check finds."""
    for check in _checks:
        if problem := check(request, tenant_id, identity):
            raise problem


def shape_key(request: JobRequest) -> tuple[Hashable, ...]:
    """All that the registered checks may look at: of requests that are equal in this one need be asked."""
    return (
        request.gpu_count, request.gpu_memory_mb, request.gpu_model, request.gpu_sharing, request.cpu_cores,
        request.memory_mb, request.gang_scheduling, request.ranks, request.workload_class, request.topology,
        request.anti_affinity, request.image, request.runtime, tuple(request.secrets),
        tuple(sorted(request.node_selector.items())), msgspec.json.encode(request.node_affinity),
        msgspec.json.encode(request.tolerations),
    )  # fmt: skip
