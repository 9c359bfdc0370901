"""Replace `gpu_memory_mb: "auto"` of a request by an amount that the scheduler's history suggests."""

from collections.abc import Hashable
from typing import Any

import msgspec

from gpusched.lib.hooks import hook
from gpusched.protocol.job_request import AUTO, JobRequest
from tenants.auth.identity import Identity

Choice = dict[str, Any]


def resolve(
    request: JobRequest, tenant_id: int, identity: Identity, choices: dict[Hashable, Choice] | None = None
) -> tuple[JobRequest, Choice | None]:
    """Return the request with an amount, and the choice: its `gpu_memory_mb` (None: whole GPUs of any size), the number
    `n` of runs that it comes from, and its `source` as a sentence. None for a request that is not `auto`.

    `choices` keeps the choices of a bulk: its jobs of one program get the same amount from one query."""
    if request.gpu_memory_mb != AUTO:
        return request, None
    choice: Choice = hook("gpu_memory_choice")(request, tenant_id, identity, {} if choices is None else choices)
    return msgspec.structs.replace(request, gpu_memory_mb=choice["gpu_memory_mb"]), choice
