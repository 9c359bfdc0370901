"""Exit classes: the kind of an attempt's end, its clause in a sentence, and the owner's next step."""

from enum import StrEnum


class ExitClass(StrEnum):
    """A fact about an attempt's end, never a state. None stands for an end that a user requested, for success, and for
    a program that could not be started."""

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

# The values of `retry_on`: ends that the job itself caused.
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
    ExitClass.SIGNAL: "read the end of its log: it crashed, or a user of its node killed it",
    ExitClass.CUDA_OOM: "use less GPU memory (a smaller batch), or request GPUs with more (gpu_memory_mb, gpu_model)",
    ExitClass.HOST_OOM: "use less memory, or request more (memory_mb)",
    ExitClass.DISK_FULL: "free space where it writes (the end of its log names the file), or write elsewhere",
    ExitClass.IMAGE_MISSING: "check the name of the image (the end of its log has the runtime's error), "
    "and that its nodes can fetch it",
    ExitClass.TIME_LIMIT: "set a longer max_runtime_minutes, or continue from its last checkpoint",
    ExitClass.PREEMPTED: "submit it again, with requeue to return to the queue automatically",
    ExitClass.NODE_LOST: "see its nodes on the Nodes page; submit it again, with requeue to return automatically",
}
