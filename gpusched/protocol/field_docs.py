"""Descriptions of the contract's terms for OpenAPI and docs/rest.md: fields of a job request, states and ends.

`docs/x.md, Heading` becomes a link in documents."""

from gpusched.protocol.affinity import MAX_TOLERATIONS, LabelOperator
from gpusched.protocol.arrays import MAX_ELEMENTS
from gpusched.protocol.dependencies import MAX_DEPENDENCIES
from gpusched.protocol.exits import RETRYABLE, ExitClass
from gpusched.protocol.job_request import MAX_LENGTHS, MAX_MOUNTS, MAX_SECRETS, RANGES, RESERVED, RUNTIMES
from gpusched.protocol.labels import MAX_LABELS
from gpusched.protocol.reasons import EndReason
from gpusched.protocol.states import JobState


def job_field_docs() -> dict[str, str]:
    """Return the description of each field of a JobRequest, with its range of values or maximum length."""
    ranges = {field: f" ({minimum:,} to {maximum:,})" for field, minimum, maximum in RANGES}
    lengths = {field: f" (at most {maximum:,} characters)" for field, maximum in MAX_LENGTHS}
    return {name: description + ranges.get(name, lengths.get(name, "")) for name, description in _JOB_FIELDS.items()}


_JOB_FIELDS: dict[str, str] = {
    "tenant": "the job's tenant; required if you belong to several",
    "name": "a name to find it by; empty: derived from the command",
    "priority": "jobs with a higher priority start first; in bands: docs/glossary.md, Jobs",
    "gpu_count": "GPUs in total; 0: a job without GPUs",
    "gpu_memory_mb": "minimum memory of each GPU; with `shared` also the job's part of it, and then required. "
    '`"auto"`: the server chooses it from earlier runs of the program (docs/prediction.md)',
    "gpu_model": "words that the model's name must contain, alternatives separated by `|`: `A100|H100`",
    "gpu_sharing": "`shared`: uses a part of a GPU's memory",
    "cpu_cores": "in total, divided evenly over ranks",
    "memory_mb": "in total, divided evenly over ranks",
    "command": "program and arguments as an array, not a string. Either this or a script is required",
    "args": "appended to the command, or passed to the script",
    "script": "text run by its `#!` line, instead of a command",
    "workdir": "absolute; null: the home directory of the agent's user",
    "environment": f"variables; names that begin with {', '.join(f'`{name}`' for name in RESERVED)} are refused. All "
    "members of the tenant can read them; use `secrets` for confidential values",
    "secrets": f"names of secrets of the tenant, at most {MAX_SECRETS}, none twice: files that only the job can read; "
    "docs/rest.md, Secrets",
    "image": "run in a container of this image, on a node that has a runtime for it (docs/agent.md, Containers); the "
    "path of a `.sif` file is an image for apptainer",
    "runtime": f"with an image {', '.join(f'`{name}`' for name in RUNTIMES[2:])}; without one `process`. `auto`: the "
    "node's preference",
    "mounts": "with an image: directories of the node that the container sees, `/data:/data:ro`, at most "
    f"{MAX_MOUNTS}. Each node has a list of allowed mounts; its refusal names the others",
    "gang_scheduling": "the job may span nodes, by ranks",
    "ranks": "number of processes; null: 1, or for a gang as few as fit. More than 1 needs `gang_scheduling`, and must "
    "divide `gpu_count`",
    "workload_class": "`online`: of the part of the cluster that `online_percent` sets aside, if it does "
    "(docs/settings.md)",
    "max_runtime_minutes": "time limit, enforced on the node; it lets the job start before a reservation. Null: "
    "the tenant's default (`default_runtime_minutes` of its quota), if any",
    "predicted_runtime_minutes": "expected run time: orders the queue under the policy `shortest`; never enforced",
    "preemptible": "false: never stopped for another job",
    "requeue": "after a fault of the node the job returns to the queue; otherwise it fails",
    "max_retries": "maximum number of retries after its own failures. Never after `launch_failed`",
    "retry_on": "the classes of ends (docs/rest.md, Classes of ends) to retry after: any of "
    f"`{' '.join(RETRYABLE)}`; empty: all of them",
    "grace_seconds": "time from SIGTERM to SIGKILL",
    "not_before": "RFC 3339 time before which it does not start, at most 100 years ahead; without a zone it is UTC",
    "labels": f'up to {MAX_LABELS} labels, stored with the job. `{{"interactive": "true"}}`: it may hold idle GPUs for '
    "longer (docs/operations.md, GPUs that are held but idle)",
    "node_selector": f"up to {MAX_LABELS} labels that a node must have; docs/rest.md, Where a job may run",
    "node_affinity": '`{"required": [{"key": "zone", "operator": "in", "values": ["a", "b"]}], "preferred": '
    '[{"key": "fast", "operator": "exists", "weight": 10}]}`: conditions on the labels of a node, by '
    f"`{' '.join(LabelOperator)}`; docs/rest.md, Where a job may run",
    "tolerations": '`[{"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}]`: the taints '
    f"of nodes that it accepts, at most {MAX_TOLERATIONS}; docs/rest.md, Where a job may run",
    "anti_affinity": "a word: jobs of the tenant with the same word never share a node",
    "topology": "`nvlink`, `numa`: the GPUs of each rank are in one NVLink island, on one NUMA node; `prefer_nvlink`, "
    "`prefer_numa`: where possible",
    "reservation": "id of a reservation of the tenant: it starts only in that one. Without it, it starts in an active "
    "reservation that suits it if there is one, else anywhere",
    "depends_on": f"jobs of the tenant that must end first, at most {MAX_DEPENDENCIES:,}: `41`, or "
    '`{"job": 41, "kind": "after_any"}`; docs/rest.md, Dependencies',
    "ref": "only in a bulk: a word by which other jobs of the bulk depend on this one; not stored",
    "array": f'`{{"count": 10000, "max_parallel": 100}}`: that many elements, 1 to {MAX_ELEMENTS:,}, and the '
    "maximum at once (null: any number); docs/rest.md, Arrays",
}

STATES: dict[JobState, str] = {
    JobState.PENDING: "in the queue",
    JobState.HELD: "in the queue; it does not start until it is released",
    JobState.SCHEDULED: "placed: its devices are allocated, its agent has the order",
    JobState.RUNNING: "the first rank's process was started",
    JobState.STOPPING: "being stopped; its devices stay allocated until the last process is gone",
    JobState.COMPLETED: "every rank exited with code 0; also if a stop came too late",
    JobState.FAILED: "it ended differently, and neither a retry nor a requeue followed",
    JobState.CANCELLED: "a user cancelled it",
    JobState.PREEMPTED: "stopped for another job, and `requeue` is false; otherwise it is `pending` again, with its "
    "queue time",
}

# What the sentence of an end (reasons.py) does not mention.
ENDS: dict[EndReason, str] = {
    EndReason.SIGNALLED: "one that gpusched did not send",
    EndReason.PREEMPTED: "by priority or as a reclaim; back to the queue, unless `requeue` is false",
    EndReason.LAUNCH_FAILED: "its program or directory could not be used",
    EndReason.NO_ACCOUNT: "or the node refuses that user (docs/agent.md, Whose processes)",
    EndReason.NODE_LOST: "silent for too long",
    EndReason.NODE_FAULT: "its agent no longer knew the job",
    EndReason.AGENT_STOPPED: "one that runs with `--own-jobs`",
    EndReason.HELD_IDLE: "the job failed, without a retry (docs/operations.md, GPUs that are held but idle)",
    EndReason.DEPENDENCY_FAILED: "it never ran (docs/rest.md, Dependencies)",
    EndReason.ARRAY_ENDED: "of an array (docs/rest.md, Arrays)",
    EndReason.SUPERSEDED: "or it was no longer needed",
}

CLASSES: dict[ExitClass, str] = {
    ExitClass.CUDA_OOM: "the last 64 KiB of its output say that CUDA ran out of memory (CUDA, PyTorch, CuPy, XLA), and "
    "it failed or aborted",
    ExitClass.DISK_FULL: 'the same of "No space left on device" or a used-up disk quota; of the two, what was printed '
    "last counts",
    ExitClass.HOST_OOM: "it was killed by a SIGKILL that gpusched did not send, and the kernel's counter of processes "
    "killed for lack of memory had risen since it started: that of its own cgroup, which is exact; without one that of "
    'the agent\'s cgroup, else of the machine, where another job may be meant: hence "probably" in the sentence',
    ExitClass.IMAGE_MISSING: "the container runtime ended with its own error code, and the end of its output says that "
    "the image is not available",
    ExitClass.SIGNAL: "any other signal",
    ExitClass.USER_EXIT: "any other exit code than 0",
    ExitClass.TIME_LIMIT: "at its time limit",
    ExitClass.PREEMPTED: "preempted or reclaimed",
    ExitClass.NODE_LOST: "a fault of the node",
}
