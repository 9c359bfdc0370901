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


_MOST_ON_ONE_LINE = 44


def command_line(fields: Mapping[str, Any]) -> str:
    """`gpusched submit …`, quoted for a shell. A script is a file there: its name stands for it. A long command goes on
    over several lines."""
    parts = [["gpusched", "submit"]]
    parts += [[flag, _plain(fields[field])] for field, flag in _FLAGS.items() if field in fields]
    parts += [["--env", f"{name}={value}"] for name, value in fields.get("environment", {}).items()]
    if "script" in fields:
        parts.append(["--script", "job.sh"])
    if fields.get("command"):
        parts.append(["--", *fields["command"]])
    said = [shlex.join(part) for part in parts]
    one = " ".join(said)
    return one if len(one) <= _MOST_ON_ONE_LINE else " \\\n  ".join(said)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def as_json(fields: Mapping[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(dict(fields)), indent=2).decode()
