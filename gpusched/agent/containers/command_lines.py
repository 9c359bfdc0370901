"""The command lines of podman, docker and apptainer that run one rank. Values of variables never stand in them."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpusched.agent.isolation.cgroup import MAX_PROCESSES

# Where podman looks for a first process that passes signals on; without one, what ignores SIGTERM as process 1 does so.
_INITS = ("/usr/libexec/podman/catatonit", "/usr/bin/catatonit")
_MIN_SHARED_MB = 1024
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class ContainerSpec:
    """One rank in a container. `binds`: SOURCE:TARGET[:ro]. `environment_file`: what the job gets, but for `late`:
    variables that its supervisor sets, passed on by name. `id_file`: where the runtime writes that it has made the
    container. `arguments`: the node owner's own."""

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
    has_ceiling: bool = False
    groups: Sequence[int] = ()
    workdir: str | None = None
    arguments: Sequence[str] = ()


def docker(command: Sequence[str], box: ContainerSpec) -> list[str]:
    """GPUs by UUID through NVIDIA's container toolkit."""
    # The inner quotes are for docker, which reads the value as a line of CSV.
    gpus = ["--gpus", f'"device={",".join(box.devices)}"'] if box.devices else []
    # Podman has such a limit by itself.
    common = [*_common(box), "--pids-limit", str(MAX_PROCESSES)]
    return [*command, "run", *common, "--init", *_user(box), *gpus, *box.arguments, *_program(box)]


def podman(command: Sequence[str], box: ContainerSpec) -> list[str]:
    """GPUs by UUID through the container device interface (CDI)."""
    gpus = [word for uuid in box.devices for word in ("--device", f"nvidia.com/gpu={uuid}")]
    # Without root, the user outside is the same user inside.
    user = _user(box) if os.geteuid() == 0 else ["--userns", "keep-id"]
    init = ["--init"] if any(map(os.path.exists, _INITS)) else []
    return [*command, "run", *_common(box), *init, *user, *gpus, *box.arguments, *_program(box)]


def apptainer(command: Sequence[str], box: ContainerSpec) -> list[str]:
    """GPUs by CUDA_VISIBLE_DEVICES alone; cores and memory as of any process of the rank."""
    binds = [word for bind in box.binds for word in ("--bind", bind)]
    gpus = ["--nv"] if box.devices else []
    workdir = ["--pwd", box.workdir] if box.workdir else []
    image = box.image if "://" in box.image or box.image.startswith("/") else f"docker://{box.image}"
    given = ["--containall", "--env-file", box.environment_file]
    return [*command, "exec", *given, *gpus, *binds, *workdir, *box.arguments, image, *box.argv]


def environment_text(runtime: str, environment: Mapping[str, str]) -> str:
    """The file of variables: apptainer reads it as a shell does, the others as lines. Raises ValueError by name for a
    value that cannot be told, and for what is no name: it would be a line of its own, or a command of that shell."""
    for name in environment:
        if not _VARIABLE.match(name):
            raise ValueError(f"{name!r} is no name of a variable")
    if runtime == "apptainer":
        return "".join(f"{name}={shlex.quote(value)}\n" for name, value in environment.items())
    for name, value in environment.items():
        if "\n" in value or "\r" in value:
            raise ValueError(f"the value of {name} has a line break, which a container's environment cannot have")
    return "".join(f"{name}={value}\n" for name, value in environment.items())


def _user(box: ContainerSpec) -> list[str]:
    groups = [word for gid in box.groups if gid != box.gid for word in ("--group-add", str(gid))]
    return ["--user", f"{box.uid}:{box.gid}", *groups]


def _common(box: ContainerSpec) -> list[str]:
    # As in the cgroups of processes: who asked for more cores gets more when all want some.
    limits = ["--cpu-shares", str(max(2, round(box.cpu_cores * 1024)))]
    if box.has_ceiling and box.cpu_cores > 0:
        limits += ["--cpus", f"{max(box.cpu_cores, 0.01):g}"]
    if box.memory_mb:
        limits += ["--memory", f"{box.memory_mb}m"]
    return [
        # Not --rm: how it ended is asked after its client, which may be killed; then the supervisor removes it.
        *("--name", box.name, "--log-driver", "none"),
        *(["--cidfile", box.id_file] if box.id_file else []),
        # An image brings its own programs, so what they may become is closed here.
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--shm-size", f"{max(box.memory_mb, _MIN_SHARED_MB)}m"),
        *limits,
        # Ranks find each other by the addresses of their nodes.
        *(["--network", "host"] if box.ranks > 1 else []),
        *("--env-file", box.environment_file),
        *(word for name in box.late for word in ("--env", name)),
        *(word for bind in box.binds for word in ("--volume", bind)),
        *(["--workdir", box.workdir] if box.workdir else []),
    ]


def _program(box: ContainerSpec) -> list[str]:
    # The request's command is what runs, whatever the image would have run before it.
    return ["--entrypoint", box.argv[0], box.image, *box.argv[1:]]
