"""A working podman with its own storage and one small image of a static busybox."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

IMAGE = "localhost/gpusched-test:1"
_PROGRAMS = ("sh", "sleep", "env", "cat", "id", "kill", "touch", "echo", "ls", "pwd", "true", "mount", "dd", "nc")


def prepared(home: Path) -> tuple[list[str], list[str]]:
    """(command, arguments of each run); skips the test where podman, a static busybox or the rights are missing."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    _image(home)
    runtimes = [["--runtime", name] for name in ("crun", "runc") if shutil.which(name)]
    error = ""
    for runtime in runtimes:
        command = ["podman", "--root", f"{home}/storage", "--runroot", f"{home}/run", "--storage-driver", "vfs",
                   "--events-backend", "file", "--cgroup-manager", "cgroupfs", *runtime]  # fmt: skip
        _ask([*command, "import", f"{home}/image.tar", IMAGE])
        tried = _ask([*command, "run", "--rm", *_arguments(), IMAGE, "true"])
        if tried.returncode == 0:
            return command, _arguments()
        error = tried.stderr.strip()
    pytest.skip(f"podman cannot run a container here: {error}")


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
