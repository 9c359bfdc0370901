"""Exit classes: of what kind the end of an attempt was, the clause that says so, and what its owner can do about it."""

from enum import StrEnum


class ExitClass(StrEnum):
    """A fact about how an attempt ended, never a state. None stands for an end that somebody asked for, for success,
    and for a program that could not be started."""

    USER_EXIT = "user_exit"
    SIGNAL = "signal"
    CUDA_OOM = "cuda_oom"
    HOST_OOM = "host_oom"
    DISK_FULL = "disk_full"
    IMAGE_MISSING = "image_missing"
    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    NODE_LOST = "node_lost"


# Only the agent has the log and the kernel's counters; the others follow from the reason and the exit code.
SEEN_BY_AGENT = frozenset({ExitClass.CUDA_OOM, ExitClass.HOST_OOM, ExitClass.DISK_FULL, ExitClass.IMAGE_MISSING})

# What `retry_on` may name: ends of the job's own doing.
RETRYABLE = (
    ExitClass.USER_EXIT,
    ExitClass.SIGNAL,
    ExitClass.CUDA_OOM,
    ExitClass.HOST_OOM,
    ExitClass.DISK_FULL,
    ExitClass.IMAGE_MISSING,
    ExitClass.TIME_LIMIT,
)

CLAUSES: dict[str, str] = {
    ExitClass.CUDA_OOM: "CUDA ran out of GPU memory",
    ExitClass.HOST_OOM: "probably killed by the kernel, which ran out of memory on its node",
    ExitClass.DISK_FULL: "no space was left on a disk that it wrote to",
    ExitClass.IMAGE_MISSING: "its node could not get its image",
}

NEXT_STEPS: dict[str, str] = {
    ExitClass.USER_EXIT: "read the end of its log",
    ExitClass.SIGNAL: "read the end of its log: it crashed, or somebody on its node killed it",
    ExitClass.CUDA_OOM: "use less GPU memory (a smaller batch), or ask for GPUs with more (gpu_memory_mb, gpu_model)",
    ExitClass.HOST_OOM: "use less memory, or ask for more (memory_mb)",
    ExitClass.DISK_FULL: "make room where it writes (the end of its log names the file), or write elsewhere",
    ExitClass.IMAGE_MISSING: "check the name of the image (the end of its log says what the runtime was told), "
    "and that its nodes may fetch it",
    ExitClass.TIME_LIMIT: "set a longer max_runtime_minutes, or go on from its last checkpoint",
    ExitClass.PREEMPTED: "submit it again, with requeue if it may go back to the queue by itself",
    ExitClass.NODE_LOST: "see its nodes on the Nodes page; submit it again, with requeue if it may go back by itself",
}
