"""The command and the JSON that submit the same job as the form or as an existing job."""

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from gpusched.protocol import amounts
from gpusched.protocol.affinity import NodeAffinity, Toleration, expression_text, preference_text, toleration_text
from gpusched.protocol.job_request import AUTO, JobRequest

# In the order of typical use.
_FLAGS = {
    "tenant": "--tenant",
    "name": "--name",
    "gpu_count": "--gpus",
    "gpu_memory_mb": "--gpu-memory-mb",
    "gpu_model": "--gpu-model",
    "gpu_sharing": "--gpu-sharing",
    "ranks": "--ranks",
    "topology": "--topology",
    "anti_affinity": "--anti-affinity",
    "reservation": "--reservation",
    "cpu_cores": "--cpu-cores",
    "memory_mb": "--memory-mb",
    "priority": "--priority",
    "workload_class": "--workload-class",
    "max_runtime_minutes": "--max-runtime-minutes",
    "predicted_runtime_minutes": "--predicted-runtime-minutes",
    "max_retries": "--max-retries",
    "grace_seconds": "--grace-seconds",
    "not_before": "--not-before",
    "workdir": "--workdir",
    "image": "--image",
    "runtime": "--runtime",
}
# Present if not the default.
_SWITCHES = {"gang_scheduling": "--gang", "preemptible": "--not-preemptible", "requeue": "--no-requeue"}
_LISTS = {"retry_on": "--retry-on", "secrets": "--secret", "mounts": "--mount"}
_PAIRS = {"environment": "--env", "labels": "--label", "node_selector": "--node-selector"}
_MAX_ON_ONE_LINE = 44
_FIELDS = {field.name: field for field in msgspec.structs.fields(JobRequest)}


def command_line(fields: Mapping[str, Any]) -> str:
    """Return `gpusched submit …`, quoted for a shell. A script becomes a file name. A long command spans several
    lines."""
    parts = [["gpusched", "submit"]]
    parts += [[flag, _plain(fields[field])] for field, flag in _FLAGS.items() if field in fields]
    if "array" in fields:
        parts.append(["--array", array_words(fields["array"])])
    parts += [[flag] for field, flag in _SWITCHES.items() if field in fields]
    parts += [[flag, value] for field, flag in _LISTS.items() for value in fields.get(field, [])]
    parts += [["--after", _after(dependency)] for dependency in fields.get("depends_on", [])]
    parts += [
        [flag, f"{key}={value}"] for field, flag in _PAIRS.items() for key, value in fields.get(field, {}).items()
    ]
    flags = {"affinity": "--affinity", "prefer": "--prefer", "tolerations": "--toleration"}
    parts += [[flags[name], text] for name, texts in constraint_texts(fields).items() for text in texts]
    if "script" in fields:
        parts.append(["--script", "job.sh"])
    if arguments := [*fields.get("command", []), *fields.get("args", [])]:
        parts.append(["--", *arguments])
    quoted = [shlex.join(part) for part in parts]
    dependency = " ".join(quoted)
    return dependency if len(dependency) <= _MAX_ON_ONE_LINE else " \\\n  ".join(quoted)


def as_json(fields: Mapping[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(dict(fields)), indent=2).decode()


def request_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request of a job, without defaults. `job`: as REST represents it."""
    fields = {name: _round(job[name]) for name in _FIELDS if name in job and not is_default(name, job[name])}
    if job.get("gpu_memory_auto"):
        fields["gpu_memory_mb"] = AUTO
    if array := fields.get("array"):
        # Progress is not part of the request.
        fields["array"] = {name: array[name] for name in ("count", "max_parallel") if array[name] is not None}
    return fields


def constraint_texts(fields: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return affinity and tolerations as typed in the form, by field name."""
    affinity = msgspec.convert(fields.get("node_affinity") or {}, NodeAffinity)
    tolerations = msgspec.convert(fields.get("tolerations") or [], list[Toleration])
    return {
        "affinity": [expression_text(item) for item in affinity.required],
        "prefer": [preference_text(item) for item in affinity.preferred],
        "tolerations": [toleration_text(item) for item in tolerations],
    }


def array_words(array: Mapping[str, Any]) -> str:
    """Format an array: `100` or `100%10`."""
    limit = array.get("max_parallel")
    return f"{array['count']}%{limit}" if limit else str(array["count"])


def is_default(name: str, value: Any) -> bool:
    """Return whether a field has its default value."""
    field = _FIELDS[name]
    if field.default is not msgspec.NODEFAULT:
        return bool(value == field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return bool(value == field.default_factory())
    return False


def _round(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _plain(value: Any) -> str:
    return amounts.exact(value) if isinstance(value, float) else str(value)


def _after(dependency: Any) -> str:
    """Format a dependency: `41` or `after_any:41`."""
    if isinstance(dependency, Mapping):
        kind = dependency.get("kind", "after_ok")
        return str(dependency["job"]) if kind == "after_ok" else f"{kind}:{dependency['job']}"
    return str(dependency)
