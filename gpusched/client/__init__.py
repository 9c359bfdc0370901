"""The Python SDK of gpusched: submit, watch and steer jobs, sync (`Client`) or async (`AsyncClient`)."""

from typing import TYPE_CHECKING

from gpusched.client.errors import (
    Conflict,
    FieldProblem,
    GpuschedError,
    Invalid,
    NeverFits,
    NotFound,
    NotPermitted,
    RateLimited,
    ServerError,
    TaskFailed,
    Timeout,
    Unreachable,
)

if TYPE_CHECKING:
    from gpusched.client.aio.client import AsyncClient
    from gpusched.client.aio.handles import AsyncArrayElement, AsyncJob
    from gpusched.client.sync.client import Client
    from gpusched.client.sync.handles import ArrayElement, Job

__all__ = [
    "ArrayElement",
    "AsyncArrayElement",
    "AsyncClient",
    "AsyncJob",
    "Client",
    "Conflict",
    "FieldProblem",
    "GpuschedError",
    "Invalid",
    "Job",
    "NeverFits",
    "NotFound",
    "NotPermitted",
    "RateLimited",
    "ServerError",
    "TaskFailed",
    "Timeout",
    "Unreachable",
]

_LAZY = {
    "Client": "sync.client",
    "ArrayElement": "sync.handles",
    "Job": "sync.handles",
    "AsyncClient": "aio.client",
    "AsyncArrayElement": "aio.handles",
    "AsyncJob": "aio.handles",
}


def __getattr__(name: str) -> object:
    # Importing httpx takes longer than everything else, and `gpusched version` or a usage error does not need it.
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
