"""What the words of the contract mean, as OpenAPI and docs/rest.md tell it: fields of a job request, states and ends.

`docs/x.md, Heading` becomes a link where it is read as a document."""

from gpusched.protocol.affinity import MAX_TOLERATIONS, LabelOperator
from gpusched.protocol.arrays import MAX_ELEMENTS
from gpusched.protocol.dependencies import MAX_DEPENDENCIES
from gpusched.protocol.exits import RETRYABLE, ExitClass
from gpusched.protocol.job_request import LONGEST, MAX_MOUNTS, MAX_SECRETS, MOST_LABELS, RANGES, RESERVED, RUNTIMES
from gpusched.protocol.reasons import EndReason
from gpusched.protocol.states import JobState


def job_field_docs() -> dict[str, str]:
    """For each field of a JobRequest what it means, and between which values or how long it may be."""
    ranges = {field: f" ({least:,} to {most:,})" for field, least, most in RANGES}
    lengths = {field: f" (at most {most:,} characters)" for field, most in LONGEST}
    return {name: told + ranges.get(name, lengths.get(name, "")) for name, told in _JOB_FIELDS.items()}


_JOB_FIELDS: dict[str, str] = {
    "tenant": "for which tenant; needed if you are in several",
    "name": "to find it by; empty: from the command",
    "priority": "who comes first; in bands: docs/glossary.md, Jobs",
    "gpu_count": "GPUs in total; 0: a job without GPUs",
    "gpu_memory_mb": "the least a GPU must have; with `shared` also what the job takes of it, and then required",
    "gpu_model": "words that the model's name must have, alternatives by `|`: `A100|H100`",
    "gpu_sharing": "`shared`: takes a part of a GPU's memory",
    "cpu_cores": "in total, divided evenly over ranks",
    "memory_mb": "in total, divided evenly over ranks",
    "command": "program and arguments as an array; a string is refused. This, or a script, is needed",
    "args": "appended to the command, or given to the script",
    "script": "text run by its `#!` line, instead of a command",
    "workdir": "absolute; null: the home directory of the agent's user",
    "environment": f"variables; names that begin with {', '.join(f'`{name}`' for name in RESERVED)} are refused. All "
    "members of the tenant can read them: for what they may not read there are `secrets`",
    "secrets": f"names of secrets of the tenant, at most {MAX_SECRETS}, none twice: files that only the job reads; "
    "docs/rest.md, Secrets",
    "image": "run in a container of this image, on a node that has a runtime for it (docs/agent.md, Containers); the "
    "path of a `.sif` file is one for apptainer",
    "runtime": f"with an image {', '.join(f'`{name}`' for name in RUNTIMES[2:])}; without one `process`. `auto`: what "
    "the node prefers",
    "mounts": "with an image: directories of the node that the container sees, `/data:/data:ro`, at most "
    f"{MAX_MOUNTS}. Each node has a list of what may be mounted; it refuses others by name",
    "gang_scheduling": "the job may span nodes, by ranks",
    "ranks": "how many processes; null: 1, or for a gang as few as fit. More than 1 needs `gang_scheduling`, and must "
    "divide `gpu_count`",
    "workload_class": "`online`: of the part of the cluster that `online_percent` sets aside, if it does "
    "(docs/settings.md)",
    "max_runtime_minutes": "time limit, enforced on the node; lets the job pass before a reservation. Null: none",
    "predicted_runtime_minutes": "how long it will probably run: orders the queue under the policy `shortest`; never "
    "enforced",
    "preemptible": "false: never stopped for another job",
    "requeue": "after a fault of the node the job goes back to the queue; else it fails",
    "max_retries": "how often it runs again after it failed by itself. Never after `launch_failed`",
    "retry_on": "the classes of ends (docs/rest.md, Classes of ends) after which it does: any of "
    f"`{' '.join(RETRYABLE)}`; empty: all of them",
    "grace_seconds": "from SIGTERM to SIGKILL",
    "not_before": "RFC 3339 time before which it does not start, at most 100 years ahead; without a zone it is UTC",
    "labels": f'up to {MOST_LABELS} words, kept with the job. `{{"interactive": "true"}}`: it may hold idle GPUs for '
    "longer (docs/operations.md, GPUs that are held but idle)",
    "node_selector": f"up to {MOST_LABELS} labels that a node must have; docs/rest.md, Where a job may run",
    "node_affinity": '`{"required": [{"key": "zone", "operator": "in", "values": ["a", "b"]}], "preferred": '
    '[{"key": "fast", "operator": "exists", "weight": 10}]}`: conditions on the labels of a node, by '
    f"`{' '.join(LabelOperator)}`; docs/rest.md, Where a job may run",
    "tolerations": '`[{"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}]`: the taints '
    f"of nodes that it accepts, at most {MAX_TOLERATIONS}; docs/rest.md, Where a job may run",
    "anti_affinity": "a word: jobs of the tenant with the same word never share a node",
    "topology": "`nvlink`, `numa`: the GPUs of each rank are in one NVLink island, on one NUMA node; `prefer_nvlink`, "
    "`prefer_numa`: where possible",
    "depends_on": f"jobs of the tenant that are to end first, at most {MAX_DEPENDENCIES:,}: `41`, or "
    '`{"job": 41, "kind": "after_any"}`; docs/rest.md, Dependencies',
    "ref": "only in a bulk: a word by which other jobs of the bulk depend on this one; not kept",
    "array": f'`{{"count": 10000, "max_parallel": 100}}`: so many elements, 1 to {MAX_ELEMENTS:,}, of which so many '
    "at once (null: any number); docs/rest.md, Arrays",
}

STATES: dict[JobState, str] = {
    JobState.PENDING: "in the queue",
    JobState.HELD: "in the queue, not to start until it is released",
    JobState.SCHEDULED: "placed: its devices are taken, its agent is told",
    JobState.RUNNING: "the first rank's process was started",
    JobState.STOPPING: "to end; its devices stay taken until the last process is gone",
    JobState.COMPLETED: "every rank exited with code 0; also if a stop came too late",
    JobState.FAILED: "it ended in another way, and neither a retry nor a requeue followed",
    JobState.CANCELLED: "somebody cancelled it",
    JobState.PREEMPTED: "stopped for another job, and `requeue` is false; otherwise it is `pending` again, with its "
    "queue time",
}

# What the sentence of an end (reasons.py) leaves out.
ENDS: dict[EndReason, str] = {
    EndReason.SIGNALLED: "one that nobody of gpusched sent",
    EndReason.PREEMPTED: "by priority or as a reclaim; back to the queue, unless `requeue` is false",
    EndReason.LAUNCH_FAILED: "its program or directory could not be used",
    EndReason.NO_ACCOUNT: "or the node refuses that user (docs/agent.md, Whose processes)",
    EndReason.NODE_LOST: "silent too long",
    EndReason.NODE_FAULT: "its agent did not know the job any more",
    EndReason.AGENT_STOPPED: "one that runs with `--own-jobs`",
    EndReason.HELD_IDLE: "the job failed, without a retry (docs/operations.md, GPUs that are held but idle)",
    EndReason.DEPENDENCY_FAILED: "it never ran (docs/rest.md, Dependencies)",
    EndReason.ARRAY_ENDED: "of an array (docs/rest.md, Arrays)",
    EndReason.SUPERSEDED: "or nobody wanted it",
}

CLASSES: dict[ExitClass, str] = {
    ExitClass.CUDA_OOM: "the last 64 KiB of its output say that CUDA ran out of memory (CUDA, PyTorch, XLA), and it "
    "failed or aborted",
    ExitClass.DISK_FULL: 'the same of "No space left on device" or a used-up disk quota; of the two, what was printed '
    "last counts",
    ExitClass.HOST_OOM: "it was killed by a SIGKILL that gpusched did not send, and the kernel's counter of processes "
    "killed for want of memory had risen since it started: that of its own cgroup, which is exact; without one that of "
    'the agent\'s cgroup, else of the machine, where another job may have been meant: hence "probably" in the sentence',
    ExitClass.IMAGE_MISSING: "the container runtime ended with its own code for trouble, and its last words say that "
    "the image cannot be had",
    ExitClass.SIGNAL: "any other signal",
    ExitClass.USER_EXIT: "any other exit code than 0",
    ExitClass.TIME_LIMIT: "at its time limit",
    ExitClass.PREEMPTED: "preempted or reclaimed",
    ExitClass.NODE_LOST: "a fault of the node",
}
