"""Classify the failure of a process from what only its node can see: the tail of its output and the kernel's counter of
processes killed for lack of memory. Standard library only."""

import os
import re
import signal

from gpusched.agent.isolation import cgroup
from gpusched.agent.rank_files import raw_file
from gpusched.protocol.exits import ExitClass
from gpusched.protocol.reasons import EndReason

TAIL_BYTES = 65536
# Errors of the CUDA runtime, its driver, PyTorch, CuPy and XLA. Few, so that a log that merely mentions memory does not
# match.
_CUDA_OOM = re.compile(
    rb"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    rb"|\b(?:torch|cuda|cupy\.cuda\.memory)\.OutOfMemoryError|RESOURCE_EXHAUSTED: Out of memory"
)
_DISK_FULL = re.compile(rb"No space left on device|Disk quota exceeded|\[Errno 28\]", re.IGNORECASE)
# Errors of podman, docker and apptainer for an image that is missing or cannot be pulled.
_IMAGE_MISSING = re.compile(
    rb"manifest unknown|pull access denied|unable to find image|no such image|image not known|repository does not exist"
    rb"|did not resolve to an alias|unable to copy from source|requested access to the resource"
    rb"|initializing (?:image from )?source|choosing an image from manifest list|parsing image configuration"
    rb"|(?:reading|writing) (?:blob|manifest)"
    rb"|could not open image|failed to (?:get checksum|pull|retrieve)"
    rb"|while (?:getting|pulling|loading) (?:image|registry)",
    re.IGNORECASE,
)
# Errors of docker's daemon or the node, and podman's for a GPU, which the agent names and not the request. Few: most
# refusals are the request's fault.
_DAEMON_FAULT = re.compile(
    rb"^(?:Error: [^\n]*unresolvable CDI devices"
    rb"|docker: (?:(?:Error response from daemon: )?[^\n]*(?:could not select device driver|nvidia-container-cli"
    rb"|input/output error|no space left on device|too many open files|resource temporarily unavailable"
    rb"|cannot allocate memory|driver failed programming|unresolvable CDI devices)"
    rb"|Cannot connect to the Docker daemon|error during connect))[^\n]*",
    re.IGNORECASE | re.MULTILINE,
)
_FAILED_TO_START = frozenset({125, 126})
# Exit codes of the runtimes themselves: podman's and docker's, apptainer's.
_OF_RUNTIME = frozenset({125, 255})
_KILLED = frozenset({-signal.SIGKILL, 128 + signal.SIGKILL})  # the latter as a shell reports it of its child
_ABORTED = frozenset({-signal.SIGABRT})


def classify_end(
    log: str, code: int | None, oom_kills: tuple[int | None, int | None], may_be_runtime: bool, is_out_of_memory: bool
) -> tuple[EndReason, ExitClass | None, str | None]:
    """Return (reason, class, detail) of an end that gpusched did not cause. `oom_kills`: the counter before and after;
    `may_be_runtime`: the code may be of a container's runtime; `is_out_of_memory`: that runtime's answer."""
    reason = EndReason.SIGNALLED if code is not None and code < 0 else EndReason.EXITED
    if not code:
        return reason, None, None
    if is_out_of_memory:
        return reason, ExitClass.HOST_OOM, None
    if may_be_runtime and (missing := container_class(log, code)):
        return reason, missing, None
    if may_be_runtime and (fault := container_fault(log, code)):
        return EndReason.NODE_FAULT, None, fault
    return reason, failure_class(log, code, *oom_kills), None


def failure_class(log: str, code: int, oom_kills_before: int | None, oom_kills_after: int | None) -> ExitClass | None:
    """Return the class of an end that gpusched did not cause; None if unknown.

    `code`: the exit code, or minus the signal. `oom_kills_*`: the counter at the start and at the end."""
    if code == 0:
        return None
    if was_killed(code):
        # The counter covers a cgroup or the machine, so another process may have been killed: hence "probably".
        if oom_kills_before is None or oom_kills_after is None:
            return None
        return ExitClass.HOST_OOM if oom_kills_after > oom_kills_before else None
    # C++ libraries abort instead of raising; any other signal is a crash, whatever was printed before.
    return _class_by_output(_tail(log)) if code > 0 or code in _ABORTED else None


def container_class(log: str, code: int) -> ExitClass | None:
    """Return the class of an end caused by the container runtime instead of the job."""
    # Podman's and docker's own output is all there is: docker says first that the image is missing, and then a line for
    # each step of each layer. With apptainer's comes that of the job.
    if code not in _OF_RUNTIME or not _IMAGE_MISSING.search(_tail(log)[0 if code == 125 else -4096 :]):
        return None
    return ExitClass.IMAGE_MISSING


def container_fault(log: str, code: int) -> str | None:
    """Return docker's or podman's error if it could not start the container through no fault of the job; None if that
    is unknown."""
    match = _DAEMON_FAULT.search(_tail(log)[-4096:]) if code in _FAILED_TO_START else None
    return match[0].decode(errors="replace").strip() if match else None


def oom_kills(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int | None:
    """Return the number of processes that the kernel has killed for lack of memory: in this process's cgroup, else on
    the machine. None if neither is known."""
    group = raw_file.read_if_possible(f"{proc}/self/cgroup").decode().partition("0::/")[2].partition("\n")[0]
    for path in (f"{cgroups}/{group}/memory.events", f"{proc}/vmstat"):
        if (kills := cgroup.counter(path, "oom_kill")) is not None:
            return kills
    return None


def was_killed(code: int | None) -> bool:
    """Return True for an end that may have been the kernel's, for lack of memory."""
    return code in _KILLED


def _class_by_output(tail: bytes) -> ExitClass | None:
    """Return the class of the last matching error: the program recovered from earlier ones."""
    cuda = max((match.start() for match in _CUDA_OOM.finditer(tail)), default=-1)
    disk = max((match.start() for match in _DISK_FULL.finditer(tail)), default=-1)
    if cuda == disk:
        return None
    return ExitClass.CUDA_OOM if cuda > disk else ExitClass.DISK_FULL


def _tail(path: str) -> bytes:
    try:
        # A job of the agent's own user may have put a pipe here, which has no writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            file.seek(max(0, os.fstat(handle).st_size - TAIL_BYTES))
            return file.read(TAIL_BYTES)
    except OSError:
        return b""
