"""gpusched shares a cluster of GPUs between teams, fairly, quickly and without ever losing a job."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusched.embedded import Local

__version__ = "0.1.0"


def local(gpus: str | Sequence[str], *, settings: Mapping[str, object] | None = None) -> "Local":
    """Return a control plane with pretend GPUs, for a notebook or a test: `with gpusched.local("1:A100:40960:8") as
    client:`. It leaves no process, port or file behind, however this process ends.

    `gpus`: pretend nodes as NODES:MODEL:GPU_MEMORY_MB:GPUS[:CPU_CORES:MEMORY_MB], or a list of them. `settings`: the
    server's settings by name."""
    # The agent imports this package, too, and must not import the SDK with it.
    control_plane: Local = import_module("gpusched.embedded").Local(gpus, settings or {})
    return control_plane
