"""Mistakes in how the server is started, as seen at the terminal: a sentence, and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from gpusched.config_file import unusable_data_dir
from tests.system import prepared
from tests.system.stack import ROOT
from tests.waiting import wait_for


def failure_of(command: str, tmp_path: Path, **variables: str) -> str:
    """Return what `manage.py` prints on stderr in a new data directory."""
    environment = {**prepared.outside(), "GPUSCHED_DATA_DIR": str(tmp_path), **variables}
    result = subprocess.run(
        [sys.executable, "manage.py", *command.split(" ")], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert (result.returncode, "Traceback" in result.stderr) == (1, False), result.stderr
    return result.stderr


@pytest.mark.parametrize("port", [-1, 65_536])
def test_up_refuses_what_is_no_port(tmp_path: Path, port: int) -> None:
    assert f"--port {port} is not from 1 to 65535" in failure_of(f"up --port={port}", tmp_path)


@pytest.mark.parametrize(
    "name", ["https://gpu.example.org", "gpu.example.org:443", "gpu.example.org/", "*", "a,b", "{"]
)
def test_up_refuses_what_is_no_name_for_tls(tmp_path: Path, name: str) -> None:
    """Caddy would start, for another address than `up` prints."""
    assert f"is not a name or an address: {name!r}" in failure_of(f"up --port=0 --tls {name}", tmp_path)


def test_up_names_the_setting_of_a_certificate_file_that_is_missing(tmp_path: Path) -> None:
    printed = failure_of("up --port=0 --tls localhost", tmp_path, GPUSCHED_TLS_AGENT_CA="/nowhere/ca.pem")
    assert "GPUSCHED_TLS_AGENT_CA: /nowhere/ca.pem does not exist" in printed


def test_up_names_the_setting_if_its_address_is_of_another_machine(tmp_path: Path) -> None:
    printed = failure_of("up --port=8000", tmp_path, GPUSCHED_HTTP_HOST="192.0.2.1")
    assert "set GPUSCHED_HTTP_HOST to an address of this machine" in printed


def test_up_explains_a_database_that_it_cannot_use(tmp_path: Path) -> None:
    url = "postgresql://gpusched:secret@127.0.0.1:1/gpusched"
    printed = failure_of("up --port=0 --no-agent", tmp_path, GPUSCHED_DATABASE_URL=url)
    assert "cannot use the database at 127.0.0.1: " in printed
    assert "check GPUSCHED_DATABASE_URL" in printed and "secret" not in printed


@pytest.mark.parametrize("url", ["mysql://gpusched:secret@db/gpusched", "postgresql://gpusched:secret@db/x?nope=1"])
@pytest.mark.parametrize("command", ["up --port=0", "migrate"])
def test_server_explains_an_address_that_is_no_databases(tmp_path: Path, command: str, url: str) -> None:
    printed = failure_of(command, tmp_path, GPUSCHED_DATABASE_URL=url)
    assert "GPUSCHED_DATABASE_URL " in printed and "secret" not in printed


def test_backup_explains_a_data_directory_that_no_server_has_used(tmp_path: Path) -> None:
    printed = failure_of("backup", tmp_path)
    assert f"no server has used the data directory {tmp_path}; set GPUSCHED_DATA_DIR" in printed


def test_doctor_creates_nothing(tmp_path: Path) -> None:
    """Not even the data directory that is missing, with a key that no server has."""
    variables = {"GPUSCHED_DATA_DIR": str(tmp_path / "data"), "GPUSCHED_DATABASE_URL": ""}
    command = [sys.executable, "manage.py", "doctor"]
    result = subprocess.run(
        command, cwd=ROOT, env={**prepared.outside(), **variables}, capture_output=True, text=True, timeout=60
    )
    assert f"no server has used the data directory {tmp_path / 'data'}" in result.stdout, result
    assert (result.returncode, list(tmp_path.iterdir())) == (1, [])


@pytest.mark.parametrize("module", ["django", "gpusched.lib.process.one_machine"])
def test_interrupt_while_modules_load_is_no_traceback(tmp_path: Path, module: str) -> None:
    """The import of a module stands for the moment at which Ctrl-C arrives."""
    interrupt = f"""
import importlib.abc, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which the background of a script ignores
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from gpusched.server import main
sys.argv = ["gpusched-server", "up", "--port=0"]
main()
"""
    result = subprocess.run(
        [sys.executable, "-c", interrupt], cwd=ROOT, env={**prepared.outside(), "GPUSCHED_DATA_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_full_disk_is_no_matter_of_the_owner() -> None:
    """A write has no file name in its error."""
    assert str(unusable_data_dir(OSError(28, "No space left on device"))) == (
        "the data directory cannot be used (No space left on device); free space there, or set GPUSCHED_DATA_DIR"
    )


@pytest.mark.parametrize("cluster", ["cycles", "housekeeping"])
def test_worker_waits_for_the_database_and_its_tables(tmp_path: Path, cluster: str) -> None:
    """Containers start in any order."""
    server, name = os.environ["GPUSCHED_DATABASE_URL"], f"later_{os.getpid()}"
    variables = {"GPUSCHED_DATA_DIR": str(tmp_path), "GPUSCHED_DATABASE_URL": server.replace("/gpusched?", f"/{name}?")}
    command = [sys.executable, "manage.py", "worker", cluster]
    printed = tmp_path / "printed"
    with psycopg.connect(server, autocommit=True) as connection, printed.open("w") as file:
        worker = subprocess.Popen(command, cwd=ROOT, env={**prepared.outside(), **variables}, stderr=file)
        try:
            wait_for(lambda: "waiting for the database: " in printed.read_text(), 30, "the wait for the database")
            connection.execute(f"CREATE DATABASE {name}")
            wait_for(lambda: "its tables are missing or outdated" in printed.read_text(), 30, "the wait for tables")
        finally:
            worker.terminate()
            worker.wait(10)
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    assert printed.read_text().count("\n") == 2
