"""Check at submit whether a request could ever run. The scheduler knows that (scheduling/admission.py)."""

from collections.abc import Hashable

import msgspec

from gpusched.lib.hooks import hook
from gpusched.protocol.job_request import JobRequest
from tenants.auth.identity import Identity


def require_admissible(request: JobRequest, tenant_id: int, identity: Identity) -> None:
    """Raise the problem of a request that can never run. Cached quotas are at least as new as the identity's
    `quota_edits`."""
    if problem := hook("admission_check")(request, tenant_id, identity):
        raise problem


def shape_key(request: JobRequest) -> tuple[Hashable, ...]:
    """Return all of a request that the check may depend on: of equal requests only one need be checked."""
    return (
        request.gpu_count, request.gpu_memory_mb, request.gpu_model, request.gpu_sharing, request.cpu_cores,
        request.memory_mb, request.gang_scheduling, request.ranks, request.workload_class, request.topology,
        request.anti_affinity, request.reservation, request.image, request.runtime, tuple(request.secrets),
        tuple(sorted(request.node_selector.items())), msgspec.json.encode(request.node_affinity),
        msgspec.json.encode(request.tolerations),
    )  # fmt: skip
