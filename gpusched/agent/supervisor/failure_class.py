"""What kind of failure ended a process, by what only its node can see: the end of its output and the kernel's counter
of processes that it killed for want of memory. Standard library only."""

import os
import re
import signal
from pathlib import Path

from gpusched.protocol.exits import ExitClass
from gpusched.protocol.reasons import EndReason

TAIL_BYTES = 65536
# Words of the CUDA runtime, its driver, PyTorch and XLA. Few, so that a log that merely speaks of memory says nothing.
_CUDA_OOM = re.compile(
    rb"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    rb"|\b(?:torch|cuda)\.OutOfMemoryError|RESOURCE_EXHAUSTED: Out of memory"
)
_DISK_FULL = re.compile(rb"No space left on device|Disk quota exceeded|\[Errno 28\]", re.IGNORECASE)
# What the runtimes say of an image that is not there, or not to be had: podman, docker, apptainer.
_IMAGE_MISSING = re.compile(
    rb"manifest unknown|pull access denied|unable to find image|no such image|image not known|repository does not exist"
    rb"|did not resolve to an alias|unable to copy from source|initializing source|requested access to the resource"
    rb"|could not open image|failed to (?:get checksum|pull|retrieve)"
    rb"|while (?:getting|pulling|loading) (?:image|registry)",
    re.IGNORECASE,
)
# Words of docker for what is amiss with its daemon or the node. Few: most of what it refuses is the request's fault.
_DAEMON_FAULT = re.compile(
    rb"^docker: (?:(?:Error response from daemon: )?[^\n]*(?:could not select device driver|nvidia-container-cli"
    rb"|input/output error|no space left on device|too many open files|resource temporarily unavailable"
    rb"|cannot allocate memory|driver failed programming)"
    rb"|Cannot connect to the Docker daemon|error during connect)[^\n]*",
    re.IGNORECASE | re.MULTILINE,
)
_DOCKER_FAILED = 125
# Their own exit codes, where the job's would be: of podman and docker, of apptainer.
_OF_RUNTIME = frozenset({125, 255})
_KILLED = frozenset({-signal.SIGKILL, 128 + signal.SIGKILL})  # the latter as a shell tells it of its child
_ABORTED = frozenset({-signal.SIGABRT})


def classify_end(
    log: str, code: int | None, oom_kills: tuple[int | None, int | None], is_boxed: bool, is_box_out_of_memory: bool
) -> tuple[EndReason, ExitClass | None, str | None]:
    """(reason, class, detail) of an end that nobody of gpusched caused. `oom_kills`: the counter before and after;
    `is_boxed`: in a container, of which `is_box_out_of_memory` is what its runtime said."""
    reason = EndReason.SIGNALLED if code is not None and code < 0 else EndReason.EXITED
    if not code:
        return reason, None, None
    if is_box_out_of_memory:
        return reason, ExitClass.HOST_OOM, None
    if is_boxed and (missing := container_class(log, code)):
        return reason, missing, None
    if is_boxed and (fault := container_fault(log, code)):
        return EndReason.NODE_FAULT, None, fault
    return reason, failure_class(log, code, *oom_kills), None


def failure_class(log: str, code: int, oom_kills_before: int | None, oom_kills_after: int | None) -> ExitClass | None:
    """The class of an end that nobody of gpusched caused; None if nothing special can be told.

    `code`: the exit code, or minus the signal. `oom_kills_*`: the counter at the start and at the end."""
    if code == 0:
        return None
    if code in _KILLED:
        # The counter is that of a cgroup or of the machine, so another process may have been meant: hence "probably".
        if oom_kills_before is None or oom_kills_after is None:
            return None
        return ExitClass.HOST_OOM if oom_kills_after > oom_kills_before else None
    # Libraries in C++ abort where others raise; any other signal is a crash, whatever was printed before.
    return _told_by(_tail(log)) if code > 0 or code in _ABORTED else None


def container_class(log: str, code: int) -> ExitClass | None:
    """The class of an end that the container runtime came to instead of the job."""
    if code not in _OF_RUNTIME or not _IMAGE_MISSING.search(_tail(log)[-4096:]):
        return None
    return ExitClass.IMAGE_MISSING


def container_fault(log: str, code: int) -> str | None:
    """What docker said if it could not start the container by no fault of the job; None if that cannot be told."""
    found = _DAEMON_FAULT.search(_tail(log)[-4096:]) if code == _DOCKER_FAILED else None
    return found[0].decode(errors="replace").strip() if found else None


def oom_kills(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int | None:
    """How many processes the kernel has killed for want of memory: in this process's cgroup, else on the machine. None
    if neither says so."""
    own = _text(f"{proc}/self/cgroup").partition("0::/")[2].partition("\n")[0]
    for path in (f"{cgroups}/{own}/memory.events", f"{proc}/vmstat"):
        for line in _text(path).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdigit():
                return int(value)
    return None


def _told_by(tail: bytes) -> ExitClass | None:
    """By the words that come last: what was printed earlier the program got over."""
    cuda = max((found.start() for found in _CUDA_OOM.finditer(tail)), default=-1)
    disk = max((found.start() for found in _DISK_FULL.finditer(tail)), default=-1)
    if cuda == disk:
        return None
    return ExitClass.CUDA_OOM if cuda > disk else ExitClass.DISK_FULL


def _tail(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read(TAIL_BYTES)
    except OSError:
        return b""


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
