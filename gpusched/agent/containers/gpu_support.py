"""Check whether containers of a runtime can get GPUs on this machine, from docker's daemon and the CDI files."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CDI = (Path("/etc/cdi"), Path("/var/run/cdi"))
KIND = "nvidia.com/gpu"
_SECONDS = 5.0


def setup_hint(runtime: str, command: Sequence[str]) -> str:
    """Return the setup step that `runtime`, called by `command`, still needs before its containers get GPUs; empty if
    none. Apptainer needs only the driver."""
    if runtime == "podman" and not _has_cdi():
        return "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    if runtime == "docker" and not _daemon_has(_info(command)):
        return (
            "install NVIDIA's container toolkit, then sudo nvidia-ctk runtime configure --runtime=docker, "
            "and restart docker"
        )
    return ""


def _has_cdi() -> bool:
    for path in (path for directory in CDI for path in directory.glob("*")):
        try:
            if path.suffix in (".yaml", ".yml", ".json") and KIND in path.read_text(errors="replace"):
                return True
        except OSError:
            continue
    return False


def _info(command: Sequence[str]) -> dict[str, Any]:
    """Return the daemon's description of itself; empty if it does not answer."""
    try:
        result = subprocess.run(
            [*command, "info", "--format", "{{json .}}"], capture_output=True, text=True, timeout=_SECONDS,
            check=False, stdin=subprocess.DEVNULL, errors="replace",
        )  # fmt: skip
        info = json.loads(result.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def _daemon_has(info: dict[str, Any]) -> bool:
    """Return True if NVIDIA's runtime is registered or (docker 28.2 and newer) CDI found its devices."""
    devices = info.get("DiscoveredDevices")
    entries = devices if isinstance(devices, list) else []
    return "nvidia" in (info.get("Runtimes") or {}) or any(
        isinstance(entry, dict) and str(entry.get("ID", "")).startswith(KIND) for entry in entries
    )
