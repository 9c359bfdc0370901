"""Supervise all parts on one machine, for `make up` and `make demo`: start them in order, restart those that end, and
stop them in reverse."""

import errno
import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import FrameType

from gpusched.config_file import unusable_data_dir
from gpusched.env import CONFIG, Env
from gpusched.lib.db import embedded
from gpusched.lib.ownership import open_lock
from gpusched.lib.process import part_logs, tls_proxy
from gpusched.lib.process.children import die_with_parent
from gpusched.lib.process.parts import Fork, Part
from gpusched.lib.process.tls_proxy import AUTHORITY, TlsProxy
from gpusched.lib.web.local_address import direct, local_url, without_proxy

# Two models, so that model constraints and best fit by memory have an effect.
PRETEND_FLEET = ("2:NVIDIA A100-SXM4-40GB:40960:8:64:524288", "2:NVIDIA H100 80GB HBM3:81559:8:96:1048576")
# They stop first, while the server still takes their last messages.
_REPORTING = ("agent", "demo")
# A busy machine takes more than a minute.
START_SECONDS = 180.0
BOUND_LOGS_SECONDS = 30.0
# Above the limit of an agent's message (nodes/agents/websocket.py), whose check closes with an explicit code.
_SOCKET_BYTES = 5 << 20


class StartError(RuntimeError):
    """The reason why it cannot start, as a sentence for the terminal."""


class _Stopped(Exception):
    """The user stopped it before it was ready."""


def web_command(address: Sequence[str]) -> list[str]:
    """Return the command of a web process. `address`: Daphne's options for its socket."""
    limits = ["--websocket-max-message-size", str(_SOCKET_BYTES), "--websocket-max-frame-size", str(_SOCKET_BYTES)]
    return [sys.executable, "-m", "daphne", *address, *limits, "--ping-interval", "20",
            "--application-close-timeout", "2", "-v", "0", "gpusched.asgi:application"]  # fmt: skip


@dataclass
class Machine:
    """All parts on this machine. `run` returns after SIGINT or SIGTERM, once every part has stopped.

    `port` 0: any free one. `fleet`: the agent's pretend nodes; empty: it serves this machine. `tls_name`: the name
    for which Caddy serves HTTPS; empty: no TLS."""

    data_dir: Path
    env: Env
    port: int
    demo: bool
    agent: bool
    log: Callable[[str], None]
    fleet: Sequence[str] = ()
    tls_name: str = ""
    database_settings: Mapping[str, str] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    database: embedded.Server | None = None
    shared: socket.socket | None = None
    stopping: bool = False
    new_password: str | None = None  # of the admin, until it is shown
    zone: str | None = field(default_factory=lambda: os.environ.get("TZ"))  # as the jobs see it: Django sets its own

    def run(self) -> None:
        began = time.monotonic()
        self._lock()
        self._require_free_port()
        self._require_proxy()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        try:
            self._start_database()
            self._require_wanted()
            self._load()
            self._require_wanted()
            facts = self._bootstrap()
            self._require_wanted()
            self._start_parts(facts)
            if self._wait_until_ready():
                self._greet(facts, time.monotonic() - began)
            self._watch()
        except _Stopped:
            pass
        finally:
            self._show_password()  # no later start knows it
            self._stop()

    def _require_wanted(self) -> None:
        if self.stopping:
            raise _Stopped

    @property
    def url(self) -> str:
        return local_url(self.env.http_host, self.port)

    @property
    def proxy(self) -> TlsProxy | None:
        if not self.tls_name:
            return None
        return TlsProxy(self.tls_name, self.env, self.data_dir / "caddy", self.url.removeprefix("http://"))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.stopping:
            self.stopping = True
            self.log("stopping…")

    def _lock(self) -> None:
        """Lock the data directory. The open file holds the lock, so it ends with the process in any case."""
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self._lock_file = open_lock(self.data_dir)
        except OSError as error:
            raise unusable_data_dir(error) from error
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StartError(f"gpusched is already running with the data in {self.data_dir}; stop it first") from error

    def _require_free_port(self) -> None:
        """Check the port. Several web processes share a socket that this process keeps open: while one of them
        restarts, another accepts its connections."""
        is_shared = self.env.web_processes > 1 or self.port == 0
        if is_shared and ":" in self.env.http_host:
            raise StartError(
                "GPUSCHED_WEB_PROCESSES above 1, or any free port, needs an IPv4 address in GPUSCHED_HTTP_HOST"
            )
        probe = socket.socket(socket.AF_INET6 if ":" in self.env.http_host else socket.AF_INET)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((self.env.http_host, self.port))
        except OSError as error:
            probe.close()
            step = "stop the process that uses it, or choose another port with GPUSCHED_HTTP_PORT"
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                step = "set GPUSCHED_HTTP_HOST to an address of this machine"
            sentence = f"port {self.port} of {self.env.http_host} cannot be used ({error.strerror}); {step}"
            raise StartError(sentence) from error
        if is_shared:
            probe.listen(1024)
            self.shared = probe
            self.port = probe.getsockname()[1]
        else:
            probe.close()

    def _require_proxy(self) -> None:
        """Check that Caddy is installed, its files usable and its ports free, before anything starts."""
        if self.proxy is None:
            return
        tls_proxy.require_name(self.tls_name)
        tls_proxy.require_files(self.env)
        try:
            tls_proxy.program()
        except FileNotFoundError as error:
            raise StartError(str(error)) from error
        for port in (self.env.tls_https_port, self.env.tls_http_port):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("", port))
                except OSError as error:
                    raise StartError(
                        f"Caddy cannot use port {port} ({error.strerror}); stop the process that uses it, start "
                        f"as a user that may, or choose GPUSCHED_TLS_HTTPS_PORT and GPUSCHED_TLS_HTTP_PORT"
                    ) from error

    def _start_database(self) -> None:
        if self.env.database_url:
            return
        self.log("starting the database")
        self.database = embedded.Server(
            self.data_dir / "postgres", self.database_settings, is_wanted=lambda: not self.stopping
        )
        try:
            # SIGINT is PostgreSQL's fast shutdown: it ends cleanly even if this process is killed.
            self.database.start(preexec=die_with_parent(signal.SIGINT))
        except embedded.PostgresError as error:
            self._require_wanted()
            raise StartError(str(error)) from error
        self.database.publish(self.data_dir / "database_url")

    def _load(self) -> None:
        """Load the server, with the settings that its parts have, for all forks of this process."""
        os.environ.update(self._settings())
        import_module("gpusched.preload").load()

    def _bootstrap(self) -> dict[str, str | None]:
        command = [sys.executable, "manage.py", "bootstrap", *(["--demo"] if self.demo else [])]
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            if self._wait_for(Fork(command, (), output, errors)):
                self._require_wanted()
                errors.seek(0)
                reason = errors.read().decode(errors="replace")
                raise StartError(f"the database could not be prepared:\n{reason[-3000:]}")
            output.seek(0)
            facts: dict[str, str | None] = json.loads(output.read().splitlines()[-1])
        self.new_password = facts["admin_password"]
        return facts

    def _wait_for(self, process: Fork) -> int:
        """Return the status of the process, which ends early if this machine is stopped."""
        while True:
            try:
                return process.wait(0.2)
            except subprocess.TimeoutExpired:
                if self.stopping:
                    process.terminate()

    def _settings(self) -> dict[str, str]:
        """Return the variables of the server's processes that differ from those of this process at its start."""
        settings = {
            "GPUSCHED_DATA_DIR": str(self.data_dir),
            "GPUSCHED_HTTP_PORT": str(self.port),
            "PYTHONUNBUFFERED": "1",
            "no_proxy": without_proxy(self.env.http_host),
        }
        if self.proxy:
            settings |= self.proxy.settings()
        if config := os.environ.get(CONFIG):
            settings[CONFIG] = os.path.abspath(config)  # the parts run in another directory
        return settings

    def _start_parts(self, facts: dict[str, str | None]) -> None:
        (self.data_dir / "output").mkdir(exist_ok=True)
        self.log("starting web server, workers" + (" and agent" if self.agent else ""))
        self.parts = self.plan_parts(facts)
        for part in self.parts:
            part.start(self._output(part))

    def plan_parts(self, facts: dict[str, str | None]) -> list[Part]:
        """Return the processes to start, in this order."""
        python = sys.executable
        manage = [python, "manage.py"]
        files = (self.shared.fileno(),) if self.shared else ()
        address = ["--fd", str(files[0])] if files else ["-b", self.env.http_host, "-p", str(self.port)]
        web = web_command(address)
        parts = [Part(f"web{number or ''}", web, files=files) for number in range(self.env.web_processes)]
        parts += [Part(name, [*manage, "worker", name]) for name in ("cycles", "housekeeping")]
        if self.proxy:
            command = self.proxy.write()
            parts.append(Part("proxy", command, dict(os.environ), directory=self.proxy.directory))
        if self.agent:
            parts.append(Part("agent", self._agent_command(), self._agent_environment(facts)))
        if self.demo:
            parts.append(Part("demo", [*manage, "demo_load", "--url", self.url]))
        return parts

    def _agent_command(self) -> list[str]:
        directory = self.data_dir / ("fleet" if self.fleet else "agent")
        command = [sys.executable, "-m", "gpusched.agent.main", "run", "--url", self.url, "--own-jobs",
                   "--data-dir", str(directory)]  # fmt: skip
        for nodes in self.fleet:
            command += ["--pretend", nodes]
        return command

    def _agent_environment(self, facts: dict[str, str | None]) -> dict[str, str]:
        """Return the agent's environment, with the join token: other users can read a command line."""
        outside = {k: v for k, v in os.environ.items() if k != "TZ" and not k.startswith(("GPUSCHED_", "DATABASE_URL"))}
        agent_settings = {k: v for k, v in os.environ.items() if k.startswith("GPUSCHED_AGENT_")}
        heartbeat = {"GPUSCHED_HEARTBEAT_SECONDS": str(self.env.heartbeat_seconds), "PYTHONUNBUFFERED": "1"}
        # Started as root, the machine has no other users, as in most containers.
        return {
            "GPUSCHED_AGENT_ALLOW_ROOT": "true",
            **outside,
            **({} if self.zone is None else {"TZ": self.zone}),
            **agent_settings,
            **heartbeat,
            "GPUSCHED_JOIN_TOKEN": facts["join_token"] or "",
        }

    def _output(self, part: Part) -> Path:
        return self.data_dir / "output" / f"{part.name}.log"

    def _wait_until_ready(self) -> bool:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and not self.stopping:
            with suppress(OSError), direct.open(f"{self.url}/ready", timeout=2) as answer:
                if answer.status == 200 and self._is_proxy_ready():
                    return True
            self._restart_fallen()
            self._pause(0.1)
        if not self.stopping:
            raise StartError(f"the server did not become ready; see the logs in {self.data_dir / 'output'}")
        return False

    def _is_proxy_ready(self) -> bool:
        """Return whether Caddy listens, and has created its authority if clients need that."""
        if self.proxy is None:
            return True
        with socket.socket() as probe:
            probe.settimeout(2)
            is_listening = probe.connect_ex(("127.0.0.1", self.env.tls_https_port)) == 0
        return is_listening and (not self.proxy.is_internal or self.proxy.has_authority())

    def _publish_authority(self) -> str:
        """Copy the authority's certificate to where every user can read it, and return the shell's words for it."""
        public = self.data_dir / AUTHORITY  # join commands name it while it exists
        if self.proxy is None or not self.proxy.is_internal:
            public.unlink(missing_ok=True)
            return ""
        new = public.with_suffix(".new")
        new.write_bytes(self.proxy.ca_file.read_bytes())
        new.chmod(0o644)
        new.replace(public)
        return f" GPUSCHED_CA_FILE={shlex.quote(str(public))}"

    def _greet(self, facts: dict[str, str | None], seconds: float) -> None:
        token = self.data_dir / "tokens" / "admin"  # of the machine that created the admin: a second head has none
        credential = f" GPUSCHED_TOKEN_FILE={shlex.quote(str(token))}" if token.exists() else ""
        url, authority = self.proxy.url if self.proxy else self.url, self._publish_authority()
        self.log(f"\n  gpusched is ready after {seconds:.1f} s: {url}")
        self._show_password()
        self.log("  for the command line, paste into another shell:")
        self.log(f"    export GPUSCHED_URL={url}{credential}{authority}")
        programs = Path(sys.executable).parent
        if shutil.which("gpusched") != str(programs / "gpusched"):
            self.log(f"    export PATH={shlex.quote(str(programs))}:$PATH")
        if not credential:
            self.log("    gpusched login")
        self.log(f"  logs are in {self.data_dir / 'output'}; Ctrl-C stops everything\n")

    def _show_password(self) -> None:
        if self.new_password:
            self.log(f"  log in as admin with the password {self.new_password}   (shown this once)")
        self.new_password = None

    def _watch(self) -> None:
        bounded_at = -BOUND_LOGS_SECONDS
        while not self.stopping:
            self._restart_fallen()
            self._restart_database()
            if time.monotonic() - bounded_at >= BOUND_LOGS_SECONDS:
                part_logs.bound([*map(self._output, self.parts), *([self.database.log] if self.database else [])])
                bounded_at = time.monotonic()
            self._pause(0.2)

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

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
        """Start the database again if it has ended. If that fails, as without space on the disk, the next call tries
        again: the end of this process would end the jobs of its agent."""
        if self.database is None or self.stopping:
            return
        if self.database.process is not None and self.database.process.poll() is None:
            return
        self.log("the database ended, starting it again")
        try:
            self.database.start(preexec=die_with_parent(signal.SIGINT))
        except (embedded.PostgresError, OSError, subprocess.SubprocessError) as error:
            self.log(f"the database does not start: {error}")

    def _stop(self) -> None:
        self.stopping = True
        # Agents first: they report the ends of their jobs while the server still listens.
        reporting = [part for part in self.parts if part.name in _REPORTING]
        for group in (reporting, [part for part in self.parts if part not in reporting]):
            for part in group:
                part.terminate()
            for part in group:
                part.wait(10.0)
        if self.shared:
            self.shared.close()
        if self.database:
            self.database.stop()
        self.log("stopped")
