"""Whether containers of a runtime can get GPUs on this machine: asked of docker's daemon, read from CDI's files."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CDI = (Path("/etc/cdi"), Path("/var/run/cdi"))
KIND = "nvidia.com/gpu"
_SECONDS = 5.0


def setup_hint(runtime: str, command: Sequence[str]) -> str:
    """What `runtime`, called by `command`, wants before its containers get GPUs; empty if it has it. Apptainer needs
    nothing but the driver."""
    if runtime == "podman" and not _has_cdi():
        return "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    if runtime == "docker" and not _daemon_has(_info(command)):
        return (
            "install NVIDIA's container toolkit, then sudo nvidia-ctk runtime configure --runtime=docker, "
            "and restart docker"
        )
    return ""


def _has_cdi() -> bool:
    for path in (path for place in CDI for path in place.glob("*")):
        try:
            if path.suffix in (".yaml", ".yml", ".json") and KIND in path.read_text(errors="replace"):
                return True
        except OSError:
            continue
    return False


def _info(command: Sequence[str]) -> dict[str, Any]:
    """What the daemon says of itself; empty if it does not."""
    try:
        done = subprocess.run(
            [*command, "info", "--format", "{{json .}}"], capture_output=True, text=True, timeout=_SECONDS,
            check=False, stdin=subprocess.DEVNULL, errors="replace",
        )  # fmt: skip
        told = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _daemon_has(info: dict[str, Any]) -> bool:
    """NVIDIA's runtime is registered, or (docker 28.2 and newer) its devices were found by CDI."""
    devices = info.get("DiscoveredDevices")
    found = devices if isinstance(devices, list) else []
    return "nvidia" in (info.get("Runtimes") or {}) or any(
        isinstance(one, dict) and str(one.get("ID", "")).startswith(KIND) for one in found
    )
