"""Detect the container runtimes of a node, and turn a rank into one that runs in a container."""

import contextlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from gpusched.agent.config import Config, Runtime
from gpusched.agent.containers import command_lines, mounts
from gpusched.agent.containers.command_lines import ContainerSpec
from gpusched.agent.containers.mounts import NotAllowed
from gpusched.agent.rank_files import rank_dir, socket_dir
from gpusched.protocol.agent_messages import RankSpec
from gpusched.protocol.job_request import IMAGE

# Docker answers with its daemon's version: a client without a daemon runs nothing.
_ASK: dict[str, tuple[str, ...]] = {
    "podman": ("--version",),
    "docker": ("version", "--format", "{{.Server.Version}}"),
    "apptainer": ("--version",),
}
ASK_SECONDS = 5.0
CACHE_SECONDS = 50.0
# The only directory of the rank that a container sees. It is read-only there; the notice appears in it.
BOX, ENVIRONMENT_FILE = "box", "container.env"
ID_FILE = "container.id"  # the runtime writes it when it has created the container
SECRETS = "GPUSCHED_SECRETS_DIR"
_BUILD = {"podman": command_lines.podman, "docker": command_lines.docker, "apptainer": command_lines.apptainer}
# Variables of this machine: they mean nothing in an image, unless the request sets them.
_OF_HOST = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH"})
# Variables of the agent's environment that the runtimes need.
_OF_CLIENT = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE",
              "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "APPTAINER_CACHEDIR", "APPTAINER_TMPDIR")  # fmt: skip
_versions: dict[tuple[tuple[str, tuple[str, ...]], ...], tuple[float, dict[str, str]]] = {}


class Refused(Exception):
    """This node does not run a rank in a container. The text is a sentence for the job's owner."""


class NoAnswer(Exception):
    """A runtime of this node does not answer at present, which is no fault of the job. The text is a sentence."""


def versions(config: Config) -> dict[str, str]:
    """Return runtime -> version of the runtimes that answer, asked at most once in CACHE_SECONDS. Blocks."""
    key = tuple((name, runtime.command) for name, runtime in config.runtimes.items())
    asked_at, available = _versions.get(key, (float("-inf"), {}))
    if time.monotonic() - asked_at > CACHE_SECONDS:
        answers = {name: version(name, runtime) for name, runtime in config.runtimes.items()}
        available = {name: text for name, text in answers.items() if text is not None}
        _versions[key] = (time.monotonic(), available)
    return available


def version(name: str, runtime: Runtime) -> str | None:
    """Return a runtime's version; None if it is missing or does not answer."""
    try:
        result = subprocess.run(
            [*runtime.command, *_ASK[name]], capture_output=True, text=True, timeout=ASK_SECONDS, check=False,
            stdin=subprocess.DEVNULL, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\d+(\.\d+)+[\w.+~-]*", result.stdout)
    return match[0][:50] if match and result.returncode == 0 else None


def containerize(directory: Path, spec: RankSpec, fact: dict[str, Any], config: Config) -> dict[str, Any]:
    """Return `fact` (spec.json) of a rank, changed to run in a container of `spec.image`. Raises Refused or
    NoAnswer."""
    if spec.image is None or not IMAGE.match(spec.image):
        raise Refused(f"{spec.image!r} is not a valid image name")
    name = _choice(spec, config)
    command = _command(config.runtimes[name])
    account = fact.get("account")
    owner = (account["uid"], account["gid"]) if account else (os.geteuid(), os.getegid())
    try:
        outer = mounts.binds(spec.mounts, config.mounts, account)
        rank_binds = _own_binds(directory, spec, fact["environment"], owner)
        text = command_lines.environment_text(name, _inside(directory, spec, fact["environment"]))
    except (NotAllowed, ValueError) as problem:
        raise Refused(str(problem)) from problem
    container = ContainerSpec(
        # Other agents of this machine, and other control planes, use the same numbers.
        name=f"gpusched-{spec.job_id}-{spec.attempt}-{spec.rank}-{fact['environment'][rank_dir.SCOPE_VARIABLE][:12]}",
        image=spec.image,
        argv=fact["argv"],
        devices=spec.device_uuids,
        binds=[*outer, *rank_binds],
        environment_file=_write(directory, text, owner),
        # Only the supervisor knows it, when the job starts.
        late=("GPUSCHED_DEADLINE",) if spec.max_runtime_seconds else (),
        cpu_cores=spec.cpu_cores,
        memory_mb=spec.memory_mb,
        ranks=spec.ranks,
        uid=owner[0],
        gid=owner[1],
        groups=account["groups"] if account else (),
        workdir=spec.workdir,
        arguments=config.runtimes[name].arguments,
        id_file=f"{directory}/{ID_FILE}",
        umask=fact["umask"],
        has_ceiling=config.cpu_ceiling,
    )
    return _in_container(directory, spec, fact, name, command, container)


def _in_container(
    directory: Path, spec: RankSpec, fact: dict[str, Any], name: str, command: list[str], container: ContainerSpec
) -> dict[str, Any]:
    """Return `fact` with the command that starts the container instead of the job's own."""
    changed = {**fact, "argv": _BUILD[name](command, container), "workdir": "/", "box": f"{directory}/{BOX}"}
    client = _of_client(spec, fact["environment"])
    if name == "apptainer":  # its containers are ordinary processes
        return {**changed, "environment": {**client, **_machine(fact["environment"])}}
    # The runtime acts as the agent's user and creates the container's cgroup; its command line names the job's user.
    fields = {key: value for key, value in changed.items() if key not in ("account", "cgroup")}
    running = {"name": container.name, "command": command, "id_file": container.id_file, "uid": container.uid}
    return {**fields, "environment": {**client, **_machine(dict(os.environ))}, "container": running}


def _command(runtime: Runtime) -> list[str]:
    program = shutil.which(runtime.command[0])
    if program is None:
        raise Refused(f"{runtime.command[0]} is no longer on this node")
    return [program, *runtime.command[1:]]


def _choice(spec: RankSpec, config: Config) -> str:
    available = versions(config)
    suitable = [name for name in config.runtimes if spec.runtime in ("auto", name)]
    if spec.image is not None and spec.image.startswith("/"):
        suitable = [name for name in suitable if name == "apptainer"]
    able = [name for name in suitable if name in available]
    if not able:
        for name in suitable:
            if shutil.which(config.runtimes[name].command[0]):
                raise NoAnswer(f"{name} is on this node, but does not answer")
        requested = "container runtime" if spec.runtime == "auto" else spec.runtime
        has = ", ".join(available) or "none"
        raise Refused(f"this node has no {requested} that can run image {spec.image}; it has {has}")
    return able[0]


def _own_binds(directory: Path, spec: RankSpec, environment: dict[str, str], owner: tuple[int, int]) -> list[str]:
    """Return the binds of the rank's files that the job sees under the same paths: notice, checkpoint, script,
    secrets and sockets."""
    with contextlib.suppress(FileExistsError):  # a preparation was cut short
        os.mkdir(directory / BOX, 0o755)
    os.chmod(directory / BOX, 0o755)  # noqa: S103 - whatever the umask; its directory is closed to other users  # nosec B103
    checkpoint = directory / rank_dir.CHECKPOINT
    if not checkpoint.exists():
        checkpoint.touch(0o600)
        os.utime(checkpoint, (0, 0))
    with contextlib.suppress(PermissionError):
        os.chown(checkpoint, *owner)
    script = [f"{directory}/{rank_dir.SCRIPT}:ro"] if spec.script is not None else []
    secrets = [f"{environment[SECRETS]}:ro"] if SECRETS in environment else []
    sockets = [environment[socket_dir.VARIABLE]] if socket_dir.VARIABLE in environment else []
    files = [f"{directory}/{BOX}:ro", str(checkpoint), *script, *secrets, *sockets]
    return [f"{path.removesuffix(':ro')}:{path}" for path in files]


def _inside(directory: Path, spec: RankSpec, environment: dict[str, str]) -> dict[str, str]:
    """Return the job's environment in the container."""
    job = {name: value for name, value in environment.items() if name not in _OF_HOST or name in spec.environment}
    return {
        **job,
        "GPUSCHED_PREEMPT_FILE": f"{directory}/{BOX}/{rank_dir.NOTICE}",
        "GPUSCHED_CHECKPOINT_FILE": f"{directory}/{rank_dir.CHECKPOINT}",
        "GPUSCHED_DEADLINE_FILE": f"{directory}/{BOX}/{rank_dir.DEADLINE}",
        # Where NVIDIA's hook runs for every container, an image could otherwise request all GPUs by this.
        "NVIDIA_VISIBLE_DEVICES": ",".join(spec.device_uuids) or "void",
    }


def _of_client(spec: RankSpec, environment: dict[str, str]) -> dict[str, str]:
    """Return the part of the job's environment for the runtime's own process: gpusched's marks, nothing that the
    request could set."""
    ours = {name: value for name, value in environment.items() if name.startswith(("GPUSCHED_", "CUDA_"))}
    return {name: value for name, value in ours.items() if name not in spec.environment}


def _machine(environment: dict[str, str]) -> dict[str, str]:
    of_client = {name: os.environ[name] for name in _OF_CLIENT if name in os.environ}
    return {**of_client, **{name: environment[name] for name in _OF_HOST if name in environment}}


def _write(directory: Path, text: str, owner: tuple[int, int]) -> str:
    path = f"{directory}/{ENVIRONMENT_FILE}"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)
        with contextlib.suppress(PermissionError):  # apptainer reads it as the job's user
            os.fchown(handle, *owner)
    return path
