"""The commands of the systemd units, run as they are written but without systemd: together they are a server."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from gpusched.client import Client
from gpusched.lib.db.embedded import Server
from gpusched.lib.process.systemd import Installation, server_units
from tests.system import prepared
from tests.system.stack import ROOT, free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
PROGRAMS = Path("/programs")


def commands(unit: str, kind: str) -> list[list[str]]:
    """Return the commands of a kind, with manage.py for `gpusched-server`, which are the same."""
    lines = re.findall(rf"^{kind}=(.*)$", server_units(Installation(PROGRAMS))[unit], re.M)
    return [[sys.executable, "manage.py", *line.split()[1:]] for line in lines]


def manage(command: str, environment: dict[str, str], *words: str, code: int = 0) -> str:
    line = [sys.executable, "manage.py", command, *words]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextmanager
def running(unit: str, environment: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a unit as systemd does: what is before, the program, and what waits for it."""
    for command in commands(unit, "ExecStartPre"):
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=120)
    [command] = commands(unit, "ExecStart")
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        for command in commands(unit, "ExecStartPost"):
            subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=250)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)


def test_units_together_schedule_a_job(tmp_path: Path) -> None:
    """Database, web server with its migrations, then the workers. The database reports when it is ready."""
    data, port = tmp_path / "data", free_port()
    prepared.copy_to(data)
    environment = {
        **prepared.outside(), "GPUSCHED_DATA_DIR": str(data), "GPUSCHED_HTTP_PORT": str(port),
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
    }  # fmt: skip
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, ExitStack() as units:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(120)
        units.callback(Server(data / "postgres").remove)
        units.enter_context(running("gpusched-database.service", environment))
        assert systemd.recv(100) == b"READY=1"
        units.enter_context(running("gpusched-web.service", environment))
        for name in ("cycles", "housekeeping"):
            units.enter_context(running(f"gpusched-{name}.service", environment))
        # Both notice that the database runs.
        (data / "backups").mkdir()
        (data / "backups" / "gpusched-20200101T000000Z.tar").touch()
        [backup] = commands("gpusched-backup.service", "ExecStart")
        subprocess.run([*backup, "--keep", "1"], cwd=ROOT, env=environment, check=True, timeout=120)
        [file] = map(str, (data / "backups").glob("*.tar"))
        assert "gpusched is running" in manage("restore", environment, file, code=1)
        assert "gpusched is running" in manage("database", environment, code=1)
        client = units.enter_context(
            Client(f"http://127.0.0.1:{port}", (data / "tokens" / "admin").read_text().strip())
        )
        job = client.submit(["true"], gpus=0, tenant="default")
        wait_for(lambda: client.why(job.id).code != "not_evaluated", 60, "a cycle to consider the job")
        wait_for(lambda: client.health().status == "ok", 60, "the scheduler to run")
        assert_standby_stops(environment)


def assert_standby_stops(environment: dict[str, str]) -> None:
    """Another head's worker waits to lead. systemd killed it after 90 s, and its unit had failed."""
    [command] = commands("gpusched-cycles.service", "ExecStart")
    url = (Path(environment["GPUSCHED_DATA_DIR"]) / "database_url").read_text().strip()
    standby = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_try_advisory_lock(%'"
    with psycopg.connect(url, autocommit=True) as database:
        worker = subprocess.Popen(command, cwd=ROOT, env=environment)
        try:
            wait_for(lambda: database.execute(standby).fetchone() == (1,), 60, "the worker to wait for its term")
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(15) == 0
