"""A control plane whose parts are started and replaced one at a time, each from the files of one version: the previous
release, taken from the history, or this one."""

import json
import signal
import subprocess
import sys
import tarfile
import urllib.request
from functools import partial
from io import BytesIO
from pathlib import Path

from gpusched.lib.db.embedded import Server
from gpusched.lib.process.one_machine import web_command
from tests.system.stack import ROOT, Stack, free_port
from tests.waiting import wait_for

PREVIOUS = ROOT / "deploy" / "previous_release.txt"
STOP_SECONDS = 5.0


class NoHistoryError(RuntimeError):
    """The previous release is not in this copy of the source."""


def previous_release(place: Path) -> Path:
    """Write the files of the previous release below `place`, as `git clone` would, and return their root."""
    [commit] = [line for line in PREVIOUS.read_text().splitlines() if not line.startswith("#")]
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise NoHistoryError(f"no commit {commit} here: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(place, filter="data")
    return place


class Rolling(Stack):
    """The parts of a server, as systemd runs them, and PostgreSQL. It starts with `first`, the root of a version."""

    is_prepared = False

    def __init__(self, first: Path, **settings: object) -> None:
        super().__init__(**settings)
        self.first = first
        self.database = Server(self.data_dir / "postgres")
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = {"web": self.port, "second web": free_port()}
        self.urls = ",".join(f"http://127.0.0.1:{port}" for port in self.ports.values())

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(), "GPUSCHED_DATABASE_URL": self.database.url(), "GPUSCHED_HTTP_PORT": str(self.port),
            "PYTHONUNBUFFERED": "1",
        }  # fmt: skip

    def database_url(self) -> str:
        return self.database.url()

    def start(self) -> None:
        self.data_dir.mkdir(mode=0o755)
        self.database.start()
        self.password = json.loads(self.manage(self.first, "bootstrap").splitlines()[-1])["admin_password"]
        for part in ("web", "cycles", "housekeeping"):
            self.run_part(part, self.first)
        wait_for(self.is_ready, 120, "the control plane to be ready", pause=0.1)

    def manage(self, root: Path, *words: str) -> str:
        """Run a command of the version at `root`, and return what it prints."""
        command = [sys.executable, "manage.py", *words]
        done = subprocess.run(command, cwd=root, env=self.environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run_part(self, name: str, root: Path, key: str = "") -> None:
        """Start a part; a web server is waited for. `key`: the name of a second one beside it."""
        port = self.ports.get(key or name)
        words = web_command(["-b", "127.0.0.1", "-p", str(port)])
        if port is None:
            words = [sys.executable, "manage.py", "worker", name]
        with (self.directory / f"{key or name}.log").open("ab") as log:
            self.parts[key or name] = subprocess.Popen(
                words, cwd=root, env={**self.environment(), "Q_CLUSTER_NAME": name}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        if port is not None:
            wait_for(partial(_answers, port), 120, "the web server to answer", pause=0.1)

    def stop_part(self, name: str) -> None:
        """A worker of the previous release that waits for another one that leads does not end on SIGTERM."""
        process = self.parts.pop(name)
        process.send_signal(signal.SIGTERM)
        wait_or_kill(process)

    def replace(self, name: str, root: Path, key: str = "") -> None:
        self.stop_part(key or name)
        self.run_part(name, root, key)

    def close(self) -> None:
        for process in self.parts.values():
            process.send_signal(signal.SIGTERM)
        for process in self.parts.values():
            wait_or_kill(process)
        super().close()


def wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that got SIGTERM as `up` and systemd do: with SIGKILL if it does not end."""
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
