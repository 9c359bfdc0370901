"""Everything that a cluster of several hosts needs, as real processes: etcd, Patroni, two heads, a proxy and agents."""

import os
import re
import secrets
import shutil
import signal
import string
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx
import psycopg

from gpusched.agent.processes import descendants, signal_all
from gpusched.client import Client
from gpusched.client.errors import GpuschedError
from tests.hosts.network import NETWORK, Host, Network, enter
from tests.processes import processes_naming
from tests.system.prepared import outside
from tests.system.stack import A100, ROOT
from tests.waiting import wait_for

# The user of PostgreSQL and Patroni, which refuse to run as root.
_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
HEAD_PORT, PROXY_PORT = 8000, 80


class Service:
    """A process on a host, that the test kills and starts again."""

    def __init__(
        self, host: Host, name: str, command: list[str], log: Path, environment: dict[str, str], directory: Path
    ) -> None:
        self.host, self.name, self._command, self._log, self._environment = host, name, command, log, environment
        self._directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self.host.command(*self._command), cwd=self._directory, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def pids(self) -> list[int]:
        assert self.process is not None
        return [self.process.pid, *descendants(self.process.pid)]

    def kill(self) -> None:
        """Kill it and its descendants at once."""
        if self.process is not None:
            signal_all(self.pids(), signal.SIGKILL)
            self.process.wait()


class Cluster:
    """`with Cluster(...) as cluster:` is ready for jobs. The calling thread is on the host `client` from then on."""

    def __init__(self, patroni: Path, databases: int, agents: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="gpusched-hosts-", dir="/tmp"))
        self.directory.chmod(0o755)
        self.network, self.services = Network(), dict[str, Service]()
        self._patroni, self._database_count, self._agent_count = patroni, databases, agents
        self._password = secrets.token_hex(8)
        self.url = ""

    def __enter__(self) -> Self:
        self.network.__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for service in reversed(self.services.values()):
            service.kill()
        signal_all(processes_naming(str(self.directory).encode()), signal.SIGKILL)
        self.network.__exit__()
        if not os.environ.get("KEEP_HOSTS"):
            shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self) -> None:
        add = self.network.add
        self.etcd = [add(f"etcd{number}") for number in (1, 2, 3)]
        self.databases = [add(f"db{number}") for number in range(1, self._database_count + 1)]
        self.heads = [add(f"head{number}") for number in (1, 2)]
        self.proxy, client = add("proxy"), add("client")
        self.nodes = [add(f"node{number}") for number in range(1, self._agent_count + 1)]
        self.url = f"http://{self.proxy.address}:{PROXY_PORT}"
        enter(client)
        self._start_etcd()
        self._start_databases()
        self._start_heads()
        self._start_proxy()
        self._start_agents()

    def _service(
        self, host: Host, name: str, command: list[str], directory: Path = ROOT, **environment: str
    ) -> Service:
        inherited = {**outside(), **environment}
        service = Service(host, name, command, self.directory / f"{name}.log", inherited, directory)
        self.services[name] = service
        service.start()
        return service

    def _start_etcd(self) -> None:
        members = ",".join(f"{host.name}=http://{host.address}:2380" for host in self.etcd)
        for host in self.etcd:
            peer, clients = f"http://{host.address}:2380", f"http://{host.address}:2379"
            self._service(
                host, host.name,
                ["etcd", "--name", host.name, "--data-dir", str(self.directory / f"{host.name}.data"),
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--listen-client-urls", clients,
                 "--advertise-client-urls", clients, "--initial-cluster", members],
            )  # fmt: skip

    def _start_databases(self) -> None:
        template = string.Template((ROOT / "deploy/patroni/patroni.yml").read_text())
        for host in self.databases:
            home = self.directory / host.name
            home.mkdir()
            config = home / "patroni.yml"
            config.write_text(
                template.substitute(
                    NAME=host.name, ADDRESS=host.address, DATA=home / "data", BIN=_postgresql(), SOCKETS=home,
                    ETCD=",".join(f"{member.address}:2379" for member in self.etcd), NETWORK=NETWORK,
                    SUPERUSER_PASSWORD=self._password, REPLICATION_PASSWORD=self._password,
                    REWIND_PASSWORD=self._password,
                )
            )  # fmt: skip
            for path in (home, config):
                os.chown(path, 65534, 65534)
            # The user of PostgreSQL cannot enter a checkout below a private home.
            self._service(host, host.name, [*_NOBODY, str(self._patroni), str(config)], home)
        wait_for(self.is_synchronous, 300, "a primary and a synchronous standby", pause=0.2)
        with psycopg.connect(self._conninfo("postgres", "postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE gpusched LOGIN PASSWORD '{self._password}'")
            connection.execute("CREATE DATABASE gpusched OWNER gpusched")

    def _conninfo(self, user: str, database: str) -> str:
        hosts = ",".join(f"{host.address}:5432" for host in self.databases)
        return (
            f"postgresql://{user}:{self._password}@{hosts}/{database}?target_session_attrs=read-write&connect_timeout=3"
        )

    def database_url(self) -> str:
        return self._conninfo("gpusched", "gpusched")

    def members(self) -> list[dict[str, Any]]:
        """Return Patroni's view of its members; [] if none answers."""
        for host in self.databases:
            try:
                answer = httpx.get(f"http://{host.address}:8008/cluster", timeout=2)
                members: list[dict[str, Any]] = answer.raise_for_status().json()["members"]
            except httpx.HTTPError:
                continue
            return members
        return []

    def is_synchronous(self) -> bool:
        """Return whether there are a primary and a synchronous standby, and all other standbys follow, too."""
        states = [(member["role"], member["state"]) for member in self.members()]
        following = sum(state == "streaming" for _, state in states)
        return (
            ("leader", "running") in states
            and any(role == "sync_standby" for role, _ in states)
            and (following == len(self.databases) - 1)
        )

    def primary(self) -> Host:
        """Return the host of the primary."""
        [leader] = [member["name"] for member in self.members() if member["role"] == "leader"]
        return next(host for host in self.databases if host.name == leader)

    def _start_heads(self) -> None:
        shared = self.directory / "files"
        shared.mkdir()
        key = self.directory / "secret_key"
        key.write_text(secrets.token_hex(32))
        key.chmod(0o600)
        addresses = ",".join([*(host.address for host in self.heads), self.proxy.address, "127.0.0.1"])
        hosts = ",".join(f"{host.address}:5432" for host in self.databases)
        for host in self.heads:
            self._service(
                host, host.name, [sys.executable, "manage.py", "up", "--no-agent", "--port", str(HEAD_PORT)],
                GPUSCHED_DATABASE_URL=f"postgresql://gpusched:{self._password}@{hosts}/gpusched",
                GPUSCHED_DATA_DIR=str(self.directory / host.name), GPUSCHED_FILES_DIR=str(shared),
                GPUSCHED_SECRET_KEY_FILE=str(key), GPUSCHED_HTTP_HOST=host.address, GPUSCHED_ALLOWED_HOSTS=addresses,
            )  # fmt: skip
            wait_for(partial(self.is_ready, f"http://{host.address}:{HEAD_PORT}"), 600, host.name, pause=0.5)

    def is_ready(self, url: str = "") -> bool:
        try:
            return httpx.get(f"{url or self.url}/ready", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def token(self, user: str = "admin") -> str:
        return (self.directory / "head1" / "tokens" / user).read_text().strip()

    def password(self) -> str:
        """Return the password of the admin, which the first head printed once."""
        printed = re.search(r"as admin with the password (\S+)", (self.directory / "head1.log").read_text())
        assert printed is not None
        return printed[1]

    def client(self) -> Client:
        return Client(self.url, self.token())

    def _start_proxy(self) -> None:
        servers = "\n".join(
            f"  server {host.name} {host.address}:{HEAD_PORT} check inter 500ms fall 2 rise 1" for host in self.heads
        )
        config = self.directory / "haproxy.cfg"
        # Instead of HAProxy's own 502, when a head dies before it has answered, and its 503, which has no Retry-After.
        away = self.directory / "away.http"
        away.write_text("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
        config.write_text(f"""
defaults
  mode http
  timeout connect 2s
  timeout client 1h
  timeout server 1h
  timeout check 2s
  timeout tunnel 1h
  retries 3
  option redispatch 1
  errorfile 502 {away}
  errorfile 503 {away}
frontend people
  bind {self.proxy.address}:{PROXY_PORT}
  default_backend heads
backend heads
  option httpchk GET /ready?head=true
  http-check send hdr Host {self.proxy.address}
  default-server on-marked-down shutdown-sessions
{servers}
""")
        self._service(self.proxy, "proxy", ["haproxy", "-db", "-f", str(config)])
        wait_for(self.is_ready, 30, "the proxy")

    def _start_agents(self) -> None:
        token = self.client().join_token().token
        urls = ",".join(f"http://{host.address}:{HEAD_PORT}" for host in self.heads)
        for host in self.nodes:
            self._service(
                host, host.name,
                [sys.executable, "-m", "gpusched.agent.main", "run", "--url", urls, "--data-dir",
                 str(self.directory / host.name), "--name-prefix", f"{host.name}-",
                 "--pretend", f"1:{A100}:81920:8:128:1048576"],
                GPUSCHED_AGENT_ALLOW_ROOT="true", GPUSCHED_JOIN_TOKEN=token, GPUSCHED_DATA_DIR=str(self.directory / host.name),
            )  # fmt: skip
        wait_for(lambda: self.online_nodes() >= len(self.nodes), 600, "all nodes online", pause=0.5)

    def online_nodes(self) -> int:
        try:
            return self.client().status().online_nodes
        except GpuschedError:
            return 0

    def postgres_of(self, host: Host) -> list[int]:
        """Return the processes of the PostgreSQL server on a host, the first one first."""
        postmaster = int((self.directory / host.name / "data" / "postmaster.pid").read_text().split()[0])
        return [postmaster, *descendants(postmaster)]

    def processes_of(self, host: Host) -> list[int]:
        """Return the processes of Patroni and PostgreSQL on a host; PostgreSQL is not a child of Patroni."""
        return [*self.services[host.name].pids(), *self.postgres_of(host)]

    def leader(self) -> int:
        """Return the process of the worker that leads."""
        with psycopg.connect(self.database_url(), autocommit=True) as database:
            row = database.execute("SELECT leader FROM scheduling_term").fetchone()
        assert row is not None
        return int(row[0].rpartition(":")[2])

    def is_healthy(self) -> bool:
        heads = all(self.is_ready(f"http://{host.address}:{HEAD_PORT}") for host in self.heads)
        return heads and self.is_synchronous() and self.online_nodes() >= len(self.nodes)


def _postgresql() -> Path:
    """Return the programs of the newest PostgreSQL of Debian."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    if not versions:
        raise SystemExit("install Debian's package postgresql first")
    return versions[-1].parent
