"""The command and the JSON that submit the same job as the form does."""

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

_FLAGS = {
    "tenant": "--tenant",
    "name": "--name",
    "gpu_count": "--gpus",
    "gpu_memory_mb": "--gpu-memory-mb",
    "gpu_model": "--gpu-model",
    "gpu_sharing": "--gpu-sharing",
    "cpu_cores": "--cpu-cores",
    "memory_mb": "--memory-mb",
    "priority": "--priority",
    "max_runtime_minutes": "--max-runtime-minutes",
}


def command_line(fields: Mapping[str, Any]) -> str:
    """`gpusched submit …`, quoted for a shell. A script is a file there: its name stands for it."""
    words = ["gpusched", "submit"]
    for field, flag in _FLAGS.items():
        if field in fields:
            words += [flag, _plain(fields[field])]
    for name, value in fields.get("environment", {}).items():
        words += ["--env", f"{name}={value}"]
    if "script" in fields:
        words += ["--script", "job.sh"]
    if fields.get("command"):
        words += ["--", *fields["command"]]
    return shlex.join(words)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def as_json(fields: Mapping[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(dict(fields)), indent=2).decode()
