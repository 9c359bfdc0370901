"""The whole system as real processes on free ports, for benchmarks and end-to-end tests."""

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpusched.agent.processes import descendants, signal_all
from gpusched.client import Client
from gpusched.lib.db.embedded import Server
from tests.system import prepared
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
A100 = "NVIDIA A100-SXM4-80GB"


class Stack:
    """`with Stack() as stack:` is a running control plane with its own data, removed afterwards.

    `stack.password` is the admin's. `stack.fleet(nodes=200)` adds pretend nodes, hosted by real agent processes.
    """

    no_agent: tuple[str, ...] = ("--no-agent",)
    # True: start from a copy of a prepared directory; False: let the first start create it.
    is_prepared = True

    def __init__(self, **settings: Any) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="gpusched-stack-"))
        self.directory.chmod(0o755)
        self.data_dir = self.directory / "data"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._settings = {f"GPUSCHED_{name.upper()}": str(value) for name, value in settings.items()}
        self.up: subprocess.Popen[bytes] | None = None
        self.agents: list[subprocess.Popen[bytes]] = []
        self.password = ""

    def __enter__(self) -> Self:
        try:
            if self.is_prepared:
                self.password = prepared.copy_to(self.data_dir)
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, SystemExit):
            sys.stderr.write(self.output()[-4000:])
        self.close()

    def environment(self) -> dict[str, str]:
        return {**prepared.outside(), "GPUSCHED_DATA_DIR": str(self.data_dir), **self._settings}

    def start(self) -> None:
        """Start (or restart) everything but the agents, and wait until it is ready."""
        with (self.directory / "up.log").open("ab") as log:
            self.up = subprocess.Popen(
                [sys.executable, "manage.py", "up", *self.no_agent, "--port", str(self.port)],
                cwd=ROOT, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        wait_for(self.is_ready, 240, "the control plane to be ready", pause=0.2)

    def is_ready(self) -> bool:
        if self.up is not None and self.up.poll() is not None:
            raise RuntimeError(f"the control plane ended:\n{self.output()[-4000:]}")
        try:
            # Not httpx.get: it would load all certificates of the machine each time, which costs more than the start.
            with urllib.request.urlopen(f"{self.url}/ready", timeout=5) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except OSError:
            return False

    def client(self, user: str = "admin") -> Client:
        return Client(self.url, self.token(user), tenant="default")

    def token(self, user: str = "admin") -> str:
        return (self.data_dir / "tokens" / user).read_text().strip()

    def database_url(self) -> str:
        return (self.data_dir / "database_url").read_text().strip()

    def fleet(
        self, nodes: int, gpus: int = 8, *, processes: int = 1, model: str = A100, memory_mb: int = 81920
    ) -> None:
        """Join pretend nodes and wait until all of them are online."""
        token = self.client().join_token().token
        for number in range(processes):
            share = nodes // processes + (number < nodes % processes)
            self.agent(
                "--pretend", f"{share}:{model}:{memory_mb}:{gpus}:128:1048576", name=f"fleet{number}", token=token
            )
        client = self.client()
        wait_for(lambda: self._agents_live() and client.status().online_nodes >= nodes, 180, f"{nodes} nodes online")

    def _agents_live(self) -> bool:
        if any(agent.poll() is not None for agent in self.agents):
            raise RuntimeError(f"an agent ended:\n{self.output()[-4000:]}")
        return True

    def agent(
        self,
        *arguments: str,
        name: str,
        token: str | None = None,
        own_jobs: bool = True,
        module: str = "gpusched.agent.main",
        variables: Mapping[str, str] | None = None,
        root: Path = ROOT,
    ) -> subprocess.Popen[bytes]:
        """Start an agent process. `own_jobs`: its jobs end with it. `root`: where its version of gpusched is."""
        directory = self.directory / name
        command = [sys.executable, "-m", module, "run", "--url", self.url, "--data-dir", str(directory)]
        allowed = {"GPUSCHED_AGENT_ALLOW_ROOT": "true"}
        environment = {
            **self.environment(),
            **allowed,
            **(variables or {}),
            "GPUSCHED_JOIN_TOKEN": token or self.client().join_token().token,
        }
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, *(["--own-jobs"] if own_jobs else []), "--name-prefix", f"{name}-", *arguments],
                cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.agents.append(process)
        return process

    def pids(self, part: str) -> list[int]:
        """Return the processes of the control plane whose command line contains `part`; "": all."""
        assert self.up is not None
        pids = []
        for pid in [self.up.pid, *descendants(self.up.pid)]:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\x00", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):  # it has ended, also between its opening and its reading
                continue
            if part in command:
                pids.append(pid)
        return pids

    def kill(self, part: str) -> list[int]:
        """Send SIGKILL to all of these processes at once."""
        pids = self.pids(part)
        signal_all(pids, signal.SIGKILL)
        return pids

    def restart_database(self) -> None:
        """Shut PostgreSQL down (fast), which ends its connections, and return when `up` has restarted it."""
        wait_for(self._postmaster, 60, "PostgreSQL to run")
        pid = self._postmaster()
        signal_all([pid], signal.SIGINT)
        wait_for(lambda: self._postmaster() not in (0, pid), 60, "PostgreSQL to start again")

    def _postmaster(self) -> int:
        """Return the process of the server; 0 if there is none. A killed one leaves its file behind."""
        try:
            pid = int((Server(self.data_dir / "postgres").data / "postmaster.pid").read_text().split("\n")[0])
            return pid if b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes() else 0
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return 0

    def output(self) -> str:
        """Return the output of the processes, for a person who debugs a failure."""
        files = [*self.directory.glob("*.log"), *self.data_dir.glob("output/*.log")]
        return "\n".join(
            f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files if file.stat().st_size
        )

    def close(self) -> None:
        for process in [*self.agents, *([self.up] if self.up else [])]:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in [*self.agents, *([self.up] if self.up else [])]:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        Server(self.data_dir / "postgres").remove()
        shutil.rmtree(self.directory, ignore_errors=True)


_given: set[int] = set()


def free_port() -> int:
    """Return a port that is free, and that this process was not given before: it may be about to listen there."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port
