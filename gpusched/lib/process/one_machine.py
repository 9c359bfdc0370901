"""Supervise all parts on one machine, for `make up` and `make demo`: start them in order, restart those that end, and
stop them in reverse."""

import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from gpusched.env import CONFIG, Env
from gpusched.lib.db import embedded
from gpusched.lib.process.children import die_with_parent

ROOT = Path(__file__).resolve().parents[3]
# Two models, so that model constraints and best fit by memory have an effect.
PRETEND_FLEET = ("2:NVIDIA A100-SXM4-40GB:40960:8:64:524288", "2:NVIDIA H100 80GB HBM3:81559:8:96:1048576")
# A busy machine takes more than a minute.
START_SECONDS = 180.0
# Above the limit of an agent's message (nodes/agents/websocket.py), whose check closes with an explicit code.
_SOCKET_BYTES = 5 << 20


class StartError(RuntimeError):
    """The reason why it cannot start, as a sentence for the terminal."""


@dataclass
class Part:
    """A child process that is restarted when it ends."""

    name: str
    command: list[str]
    environment: dict[str, str]
    files: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    pause: float = 0.0

    def start(self, log: Path) -> None:
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command, env=self.environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, preexec_fn=die_with_parent(signal.SIGTERM), pass_fds=self.files,
            )  # fmt: skip
        self.started_at = time.monotonic()

    def stop(self, seconds: float) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Machine:
    """All parts on this machine. `run` returns after SIGINT or SIGTERM, once every part has stopped."""

    data_dir: Path
    env: Env
    port: int
    demo: bool
    agent: bool
    log: Callable[[str], None]
    parts: list[Part] = field(default_factory=list)
    database: embedded.Server | None = None
    shared: socket.socket | None = None
    stopping: bool = False

    def run(self) -> None:
        began = time.monotonic()
        self._lock()
        self._require_free_port()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        try:
            self._start_database()
            facts = self._bootstrap()
            self._start_parts(facts)
            if self._wait_until_ready():
                self._greet(facts, time.monotonic() - began)
            self._watch()
        finally:
            self._stop()

    @property
    def url(self) -> str:
        # The wildcard address is for listening, not for connecting.
        host = "127.0.0.1" if self.env.http_host in ("0.0.0.0", "::") else self.env.http_host  # noqa: S104  # nosec B104
        return f"http://{host}:{self.port}"

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.stopping:
            self.stopping = True
            self.log("stopping…")

    def _lock(self) -> None:
        """Lock the data directory. The open file holds the lock, so it ends with the process in any case."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._lock_file = (self.data_dir / "up.lock").open("w")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StartError(f"gpusched is already running with the data in {self.data_dir}; stop it first") from error

    def _require_free_port(self) -> None:
        """Check the port. Several web processes share a socket that this process keeps open: while one of them
        restarts, another accepts its connections."""
        is_shared = self.env.web_processes > 1
        if is_shared and ":" in self.env.http_host:
            raise StartError("GPUSCHED_WEB_PROCESSES above 1 needs an IPv4 address in GPUSCHED_HTTP_HOST")
        probe = socket.socket()
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((self.env.http_host, self.port))
        except OSError as error:
            probe.close()
            raise StartError(
                f"port {self.port} of {self.env.http_host} cannot be used ({error.strerror}); "
                f"stop the process that uses it, or choose another port with GPUSCHED_HTTP_PORT"
            ) from error
        if is_shared:
            probe.listen(1024)
            self.shared = probe
        else:
            probe.close()

    def _start_database(self) -> None:
        if self.env.database_url:
            return
        self.log("starting the database")
        self.database = embedded.Server(self.data_dir / "postgres")
        try:
            # SIGINT is PostgreSQL's fast shutdown: it ends cleanly even if this process is killed.
            self.database.start(preexec=die_with_parent(signal.SIGINT))
        except embedded.PostgresError as error:
            raise StartError(str(error)) from error
        path = self.data_dir / "database_url"
        path.touch(mode=0o600)
        path.write_text(self.database.url() + "\n")

    def _bootstrap(self) -> dict[str, str | None]:
        command = [sys.executable, "manage.py", "bootstrap", *(["--demo"] if self.demo else [])]
        result = subprocess.run(command, cwd=ROOT, env=self._environment(), capture_output=True, text=True)
        if result.returncode:
            raise StartError(f"the database could not be prepared:\n{result.stderr[-3000:]}")
        facts: dict[str, str | None] = json.loads(result.stdout.splitlines()[-1])
        return facts

    def _environment(self, **more: str) -> dict[str, str]:
        settings = {
            "GPUSCHED_DATA_DIR": str(self.data_dir),
            "GPUSCHED_HTTP_PORT": str(self.port),
            "PYTHONUNBUFFERED": "1",
        }
        if config := os.environ.get(CONFIG):
            settings[CONFIG] = os.path.abspath(config)  # the parts run in another directory
        return {**os.environ, **settings, **more}

    def _start_parts(self, facts: dict[str, str | None]) -> None:
        python = sys.executable
        manage = [python, "manage.py"]
        files = (self.shared.fileno(),) if self.shared else ()
        address = ["--fd", str(files[0])] if files else ["-b", self.env.http_host, "-p", str(self.port)]
        limits = ["--websocket-max-message-size", str(_SOCKET_BYTES), "--websocket-max-frame-size", str(_SOCKET_BYTES)]
        web = [python, "-m", "daphne", *address, *limits, "--ping-interval", "20",
               "--application-close-timeout", "2", "-v", "0", "gpusched.asgi:application"]  # fmt: skip
        plan = [
            *((f"web{number or ''}", web, self._environment()) for number in range(self.env.web_processes)),
            ("cycles", [*manage, "worker", "cycles"], self._environment(Q_CLUSTER_NAME="cycles")),
            ("housekeeping", [*manage, "worker", "housekeeping"], self._environment(Q_CLUSTER_NAME="housekeeping")),
        ]
        if self.agent:
            plan.append(("agent", self._agent_command(), self._agent_environment(facts)))
        if self.demo:
            plan.append(("demo", [*manage, "demo_load", "--url", self.url], self._environment()))
        (self.data_dir / "output").mkdir(exist_ok=True)
        self.log("starting web server, workers and agent")
        for name, command, environment in plan:
            part = Part(name, command, environment, files if command is web else ())
            self.parts.append(part)
            part.start(self._output(part))

    def _agent_command(self) -> list[str]:
        directory = self.data_dir / ("fleet" if self.demo else "agent")
        command = [sys.executable, "-m", "gpusched.agent.main", "run", "--url", self.url, "--own-jobs",
                   "--data-dir", str(directory)]  # fmt: skip
        for nodes in PRETEND_FLEET if self.demo else ():
            command += ["--pretend", nodes]
        return command

    def _agent_environment(self, facts: dict[str, str | None]) -> dict[str, str]:
        """Return the agent's environment, with the join token: other users can read a command line."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("GPUSCHED_", "DATABASE_URL"))}
        agent_settings = {k: v for k, v in os.environ.items() if k.startswith("GPUSCHED_AGENT_")}
        heartbeat = {"GPUSCHED_HEARTBEAT_SECONDS": str(self.env.heartbeat_seconds), "PYTHONUNBUFFERED": "1"}
        # Started as root, the machine has no other users, as in most containers.
        return {
            "GPUSCHED_AGENT_ALLOW_ROOT": "true",
            **inherited,
            **agent_settings,
            **heartbeat,
            "GPUSCHED_JOIN_TOKEN": facts["join_token"] or "",
        }

    def _output(self, part: Part) -> Path:
        return self.data_dir / "output" / f"{part.name}.log"

    def _wait_until_ready(self) -> bool:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and not self.stopping:
            try:
                with urllib.request.urlopen(f"{self.url}/ready", timeout=2) as answer:  # noqa: S310  # nosec B310
                    if answer.status == 200:
                        return True
            except (urllib.error.URLError, OSError):
                pass
            self._restart_fallen()
            time.sleep(0.1)
        if not self.stopping:
            raise StartError(f"the server did not become ready; see the logs in {self.data_dir / 'output'}")
        return False

    def _greet(self, facts: dict[str, str | None], seconds: float) -> None:
        token = shlex.quote(str(self.data_dir / "tokens" / "admin"))
        self.log(f"\n  gpusched is ready after {seconds:.1f} s: {self.url}")
        if facts["admin_password"]:
            self.log(f"  log in as admin with the password {facts['admin_password']}   (shown this once)")
        self.log(f"  for the command line: export GPUSCHED_URL={self.url} GPUSCHED_TOKEN_FILE={token}")
        self.log(f"  logs are in {self.data_dir / 'output'}; Ctrl-C stops everything\n")

    def _watch(self) -> None:
        while not self.stopping:
            self._restart_fallen()
            self._restart_database()
            time.sleep(0.2)

    def _restart_fallen(self) -> None:
        for part in self.parts:
            if part.process is None or part.process.poll() is None:
                continue
            lived = time.monotonic() - part.started_at
            part.pause = 0.0 if lived > 10 else min(5.0, part.pause + 0.5)
            if lived >= part.pause and not self.stopping:
                self.log(
                    f"{part.name} ended with {part.process.returncode}, starting it again; see {self._output(part)}"
                )
                part.start(self._output(part))

    def _restart_database(self) -> None:
        if self.database and self.database.process and self.database.process.poll() is not None and not self.stopping:
            self.log("the database ended, starting it again")
            self.database.start(preexec=die_with_parent(signal.SIGINT))

    def _stop(self) -> None:
        self.stopping = True
        # Agents first: they report the ends of their jobs while the server still listens.
        for part in reversed(self.parts):
            part.stop(10.0)
        if self.shared:
            self.shared.close()
        if self.database:
            self.database.stop()
        self.log("stopped")
