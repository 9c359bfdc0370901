"""A working podman and a working docker, each with its own storage and one small image of a static busybox."""

import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.agent.control import eventually

IMAGE = "localhost/gpusched-test:1"
_PROGRAMS = ("sh", "sleep", "env", "cat", "id", "kill", "touch", "echo", "ls", "pwd", "true", "mount", "dd", "nc")
# Nothing of the machine's own network is changed: the containers of the tests use it, or none.
_DAEMON = ("--storage-driver", "vfs", "--bridge", "none", "--iptables=false", "--ip6tables=false")


class Engine(NamedTuple):
    """A runtime of a node's config: its name, its command, and the arguments of each run. `restart`: its daemon."""

    name: str
    command: list[str]
    arguments: list[str]
    restart: Callable[[], None]


_Started = tuple[list[str], Callable[[], None]]


@contextmanager
def working(name: str, home: Path) -> Iterator[Engine]:
    """Yield the engine, and remove its containers. Skips the test where it, a static busybox or the rights are
    missing."""
    if name == "docker" and shutil.which("dockerd") is None:
        pytest.skip("there is no docker here, which `make test` installs only where no daemon of it would start")
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    _image(home)
    with _docker(home) if name == "docker" else _podman(home) as (command, restart):
        yield Engine(name, command, _arguments(), restart)
        subprocess.run([*command, "rm", "--force", *names(command)], capture_output=True, check=False)


def names(command: list[str], *filters: str) -> list[str]:
    """Return the names of an engine's containers."""
    return _ask([*command, "ps", "--all", *filters, "--format", "{{.Names}}"]).stdout.split()


@contextmanager
def _podman(home: Path) -> Iterator[_Started]:
    error = ""
    for runtime in (name for name in ("crun", "runc") if shutil.which(name)):
        command = ["podman", "--root", f"{home}/storage", "--runroot", f"{home}/run", "--storage-driver", "vfs",
                   "--events-backend", "file", "--cgroup-manager", "cgroupfs", "--runtime", runtime]  # fmt: skip
        if not (error := _error(command, home)):
            yield command, lambda: None
            return
    pytest.skip(f"podman cannot run a container here: {error}")


@contextmanager
def _docker(home: Path) -> Iterator[_Started]:
    """Run a daemon, which ends with the test."""
    if os.geteuid():
        pytest.skip("only root can run docker's daemon")
    command, daemons = ["docker", "--host", f"unix://{home}/docker.sock"], [_daemon(home)]

    def has_started() -> bool:
        return daemons[-1].poll() is not None or _ask([*command, "version"]).returncode == 0

    def restart() -> None:
        daemons[-1].terminate()
        daemons[-1].wait(60)
        daemons.append(_daemon(home))
        eventually(has_started, 60, "docker to start again")

    try:
        eventually(has_started, 60, "docker to start")
        if error := (home / "log").read_text()[-500:] if daemons[0].poll() is not None else _error(command, home):
            pytest.skip(f"docker cannot run a container here: {error}")
        yield command, restart
    finally:
        daemons[-1].terminate()
        daemons[-1].wait(60)
        _ask(["umount", f"{home}/exec/netns/default"])  # which the daemon leaves mounted


def _daemon(home: Path) -> subprocess.Popen[bytes]:
    places = ["--data-root", f"{home}/data", "--exec-root", f"{home}/exec", "--pidfile", f"{home}/pid"]
    with open(home / "log", "wb") as log:
        return subprocess.Popen(
            ["dockerd", "--host", f"unix://{home}/docker.sock", *places, *_DAEMON], stdout=log, stderr=log
        )


def _error(command: list[str], home: Path) -> str:
    """Import the image and run it; return the error, empty if there is none."""
    _ask([*command, "import", f"{home}/image.tar", IMAGE])
    tried = _ask([*command, "run", "--rm", *_arguments(), IMAGE, "true"])
    return tried.stderr.strip() if tried.returncode else ""


def _arguments() -> list[str]:
    """Limits that are not above those of a sandbox, no network to set up and nothing fetched."""
    return ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--network", "host", "--pull", "never"]


def _image(home: Path) -> None:
    busybox = next((path for path in ("/bin/busybox", "/usr/bin/busybox") if _is_static(path)), None)
    if busybox is None:
        pytest.skip("a static busybox is not installed (Debian: busybox-static)")
    root = home / "root"
    for name in ("bin", "etc", "tmp", "proc", "sys", "dev"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    shutil.copy(busybox, root / "bin" / "busybox")
    for name in _PROGRAMS:
        (root / "bin" / name).symlink_to("busybox")
    with tarfile.open(home / "image.tar", "w") as tar:
        tar.add(root, ".")


def _is_static(path: str) -> bool:
    return os.path.exists(path) and b"ld-linux" not in Path(path).read_bytes()[:4096]  # its interpreter


def _ask(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
