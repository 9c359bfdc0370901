"""Build the command lines of podman, docker and apptainer for one rank. They never contain values of variables."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpusched.agent.isolation.cgroup_base import MAX_PROCESSES

# Where podman looks for an init process that passes signals on. Without one, the job runs as process 1, which ignores
# SIGTERM unless it handles it.
_INITS = ("/usr/libexec/podman/catatonit", "/usr/bin/catatonit")
_MIN_SHARED_MB = 1024
# The least and the most that the kernel takes.
_MIN_SHARES, _MAX_SHARES = 2, 262_144
# Docker and podman read no longer line from a file of variables.
_MAX_LINE_BYTES = 65_535
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class ContainerSpec:
    """A rank in a container. `binds`: SOURCE:TARGET[:ro]. `environment_file`: the job's variables, except `late`:
    variables that the supervisor sets, passed on by name. `id_file`: the runtime writes the id of the created container
    there. `arguments`: extra arguments from the node's config."""

    name: str
    image: str
    argv: Sequence[str]
    devices: Sequence[str]
    binds: Sequence[str]
    environment_file: str
    late: Sequence[str]
    cpu_cores: float
    memory_mb: int
    ranks: int
    uid: int
    gid: int
    id_file: str = ""
    umask: int = 0o077
    has_ceiling: bool = False
    groups: Sequence[int] = ()
    workdir: str | None = None
    arguments: Sequence[str] = ()


def docker(command: Sequence[str], spec: ContainerSpec) -> list[str]:
    """Return docker's command line. GPUs go by UUID through NVIDIA's container toolkit."""
    # Docker reads the value as a line of CSV, hence the inner quotes.
    gpus = ["--gpus", f'"device={",".join(spec.devices)}"'] if spec.devices else []
    # Podman sets such a limit by default.
    common = [*_common(spec), "--pids-limit", str(MAX_PROCESSES)]
    return [*command, "run", *common, "--init", *_user(spec), *gpus, *spec.arguments, *_program(spec)]


def podman(command: Sequence[str], spec: ContainerSpec) -> list[str]:
    """Return podman's command line. GPUs go by UUID through the container device interface (CDI)."""
    gpus = [word for uuid in spec.devices for word in ("--device", f"nvidia.com/gpu={uuid}")]
    # Without root, keep the same user inside the container.
    user = _user(spec) if os.geteuid() == 0 else ["--userns", "keep-id"]
    init = ["--init"] if any(map(os.path.exists, _INITS)) else []
    umask = ["--umask", f"{spec.umask:04o}"]  # docker has no such option
    return [*command, "run", *_common(spec), *init, *user, *umask, *gpus, *spec.arguments, *_program(spec)]


def apptainer(command: Sequence[str], spec: ContainerSpec) -> list[str]:
    """Return apptainer's command line. CUDA_VISIBLE_DEVICES alone selects the GPUs; the rank's cgroup limits cores and
    memory."""
    binds = [word for bind in spec.binds for word in ("--bind", bind)]
    gpus = ["--nv"] if spec.devices else []
    workdir = ["--pwd", spec.workdir] if spec.workdir else []
    image = spec.image if "://" in spec.image or spec.image.startswith("/") else f"docker://{spec.image}"
    environment = ["--containall", "--env-file", spec.environment_file]
    return [*command, "exec", *environment, *gpus, *binds, *workdir, *spec.arguments, image, *spec.argv]


def environment_text(runtime: str, environment: Mapping[str, str]) -> str:
    """Return the file of variables. Apptainer reads it as a shell does, the others line by line. Raises ValueError,
    which names the variable, for a value that the format cannot hold and for an invalid name: it could become another
    line, or a shell command."""
    for name in environment:
        if not _VARIABLE.match(name):
            raise ValueError(f"{name!r} is not a valid variable name")
    if runtime == "apptainer":
        return "".join(f"{name}={shlex.quote(value)}\n" for name, value in environment.items())
    for name, value in environment.items():
        if "\n" in value or "\r" in value:
            raise ValueError(f"the value of {name} has a line break, which a container's environment cannot hold")
        if len(f"{name}={value}".encode()) > _MAX_LINE_BYTES:
            raise ValueError(f"{name} has more than 64 KiB, which {runtime} cannot pass to a container")
    return "".join(f"{name}={value}\n" for name, value in environment.items())


def _user(spec: ContainerSpec) -> list[str]:
    groups = [word for gid in spec.groups if gid != spec.gid for word in ("--group-add", str(gid))]
    return ["--user", f"{spec.uid}:{spec.gid}", *groups]


def _common(spec: ContainerSpec) -> list[str]:
    # A weight, as in the cgroups of processes: shares count only when CPU is scarce.
    limits = ["--cpu-shares", str(min(_MAX_SHARES, max(_MIN_SHARES, round(spec.cpu_cores * 1024))))]
    if spec.has_ceiling and spec.cpu_cores > 0:
        limits += ["--cpus", f"{max(spec.cpu_cores, 0.01):g}"]
    if spec.memory_mb:
        limits += ["--memory", f"{spec.memory_mb}m"]
    return [
        # Not --rm: the supervisor asks how the container ended after its client, which may be killed, and then removes
        # it.
        *("--name", spec.name, "--log-driver", "none"),
        *(["--cidfile", spec.id_file] if spec.id_file else []),
        # An image brings its own set-user-id programs, so prevent any gain of privileges.
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *([] if _has(spec.arguments, "--ipc") else ["--shm-size", f"{max(spec.memory_mb, _MIN_SHARED_MB)}m"]),
        *limits,
        # Ranks reach each other by the addresses of their nodes.
        *(["--network", "host"] if spec.ranks > 1 and not _has(spec.arguments, "--network", "--net") else []),
        *("--env-file", spec.environment_file),
        *(word for name in spec.late for word in ("--env", name)),
        *(word for bind in spec.binds for word in ("--volume", bind)),
        *(["--workdir", spec.workdir] if spec.workdir else []),
    ]


def _has(arguments: Sequence[str], *names: str) -> bool:
    """Return True if the arguments of the node's config have one of these options, which the runtimes then refuse from
    here."""
    return any(word.partition("=")[0] in names for word in arguments)


def _program(spec: ContainerSpec) -> list[str]:
    # The request's command replaces the image's entry point.
    return ["--entrypoint", spec.argv[0], spec.image, *spec.argv[1:]]
