"""The units of systemd that `gpusched-server install` and `gpusched-agent install` write; systemd itself checks them where it is installed."""

import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from gpusched.agent.host.service import unit_text
from gpusched.lib.process import systemd
from gpusched.lib.process.systemd import Installation, notify_ready, server_units

NAMES = {
    "gpusched.target", "gpusched-database.service", "gpusched-web.service", "gpusched-cycles.service",
    "gpusched-housekeeping.service", "gpusched-backup.service", "gpusched-backup.timer",
}  # fmt: skip
# A newer key than that of systemd 252, which ignores it.
IGNORED = re.compile("Unknown key (name )?'DelegateSubgroup'")
ROOT = Path(__file__).parents[2]
analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


@pytest.fixture(params=["bin", "100% my programs"])
def programs(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with programs of our names: systemd checks that they exist."""
    directory: Path = tmp_path / request.param
    directory.mkdir()
    for name in ("gpusched-server", "gpusched-agent"):
        (directory / name).symlink_to("/bin/true")
    return directory


def written(directory: Path, units: dict[str, str]) -> list[str]:
    for name, text in units.items():
        (directory / name).write_text(text)
    return [str(directory / name) for name in units]


@analyze
def test_systemd_accepts_all_units(programs: Path, tmp_path: Path) -> None:
    writable = [Path("/srv/gpusched"), Path("/srv/100% of it"), Path("/srv/o'brien"), Path('/srv/a\\b"c')]
    units = {
        **server_units(Installation(programs, user="root", writable=writable)),
        "gpusched-agent.service": unit_text(programs),
    }
    files = written(tmp_path, {name: text.replace("User=gpusched", "User=root") for name, text in units.items()})
    command = ["systemd-analyze", "verify", "--man=no", *files]
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    complaints = [line for line in result.stderr.splitlines() if "gpusched-" in line and not IGNORED.search(line)]
    assert not complaints, result.stderr


@analyze
def test_parts_of_the_server_are_confined(programs: Path, tmp_path: Path) -> None:
    """By systemd's own measure, from 0 (safe) to 10; a unit without any of these settings has 9.6."""
    for name, text in server_units(Installation(programs)).items():
        if name.endswith(".service"):
            [file] = written(tmp_path, {name: text})
            command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", file]
            result = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert result.returncode == 0, result.stdout[-600:] + result.stderr


def test_units_have_an_order_and_a_readiness(programs: Path) -> None:
    """Workers start after the web server, which has migrated and answers; everything after the database, if there is
    one."""
    units = server_units(Installation(programs))
    assert set(units) == NAMES
    [wanted] = re.findall("^Wants=(.*)", units["gpusched.target"], re.M)
    # To enable and start the target is enough. The timer starts the backup.
    assert {"gpusched.target", *wanted.split(), "gpusched-backup.service"} == NAMES
    assert "Type=notify" in units["gpusched-database.service"]
    web = units["gpusched-web.service"]
    assert [re.findall(r"(\w+)$", line.split("=")[0])[0] for line in re.findall(r"^Exec.*", web, re.M)] == [
        "ExecStartPre", "ExecStart", "ExecStartPost"
    ]  # fmt: skip
    assert "After=network-online.target gpusched-database.service\n" in web
    assert all("KillMode=mixed\n" in text for name, text in units.items() if name.endswith(".service"))
    for name in ("cycles", "housekeeping"):
        assert "gpusched-database.service gpusched-web.service\n" in units[f"gpusched-{name}.service"]
    without = server_units(Installation(programs, has_database=False))
    assert set(without) == NAMES - {"gpusched-database.service"}
    assert not [name for name, text in without.items() if "gpusched-database" in text]


def test_install_writes_the_units_and_the_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: Any
) -> None:
    settings.ENV = replace(settings.ENV, database_url="")  # the embedded PostgreSQL, whatever the tests use
    call_command("install", "--into", str(tmp_path / "server"))
    assert {path.name for path in (tmp_path / "server").iterdir()} == NAMES
    assert "enable --now gpusched.target" in capsys.readouterr().out
    command = [sys.executable, "-m", "gpusched.agent.main", "install", "--into"]
    written = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "enable --now gpusched-agent" in written
    assert str(Path(sys.executable).parent) in (tmp_path / "gpusched-agent.service").read_text()
    refused = subprocess.run([*command, "/none"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and "--into" in refused.stderr


def test_install_follows_the_settings_of_the_units(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the units' own file, not in the environment of the administrator: the embedded database would fail for
    ever beside another one, and the parts could not write what jobs print."""
    settings.ENV = replace(settings.ENV, database_url="")
    monkeypatch.setattr(systemd, "SETTINGS", tmp_path / "server.env")
    call_command("install", "--into", str(tmp_path))
    assert (tmp_path / "gpusched-database.service").exists()
    (tmp_path / "server.env").write_text(
        "# of both heads\nGPUSCHED_DATABASE_URL='postgresql://gpusched:a#b@db1,db2/x?sslmode=require'\n"
        'GPUSCHED_FILES_DIR="/srv/gpusched"\n\nGPUSCHED_DATA_DIR=/data/gpusched\nGPUSCHED_CURRENCY=\n'
    )
    call_command("install", "--into", str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == NAMES - {"gpusched-database.service"} | {"server.env"}
    text = (tmp_path / "gpusched-web.service").read_text()
    assert f"EnvironmentFile=-{tmp_path}/server.env\n" in text and "gpusched-database" not in text
    for directory in ("/srv/gpusched", "/data/gpusched"):
        assert f"\nReadWritePaths={directory}\n" in text and f"\nRequiresMountsFor={directory}\n" in text


@pytest.mark.parametrize("arguments", [("install", "--into", "units"), ("ready",)])
def test_command_without_a_key_leaves_no_data_directory(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """An administrator runs them in any directory, as another user than the server's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUSCHED_")}
    environment |= {"GPUSCHED_HTTP_PORT": "9", "GPUSCHED_DATA_DIR": str(tmp_path / "data")}
    command = [sys.executable, str(ROOT / "manage.py"), *arguments]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == ({"units"} if arguments[0] == "install" else set())


def test_unit_of_the_agent_in_deploy_is_the_generated_one() -> None:
    assert (ROOT / "deploy" / "gpusched-agent.service").read_text() == unit_text(Path("/opt/gpusched/bin"))
    assert "ExecStart=/srv/bin/gpusched-agent run\n" in unit_text(Path("/srv/bin"))
    # Once: a container of the boot before that docker does not remove when the agent asks stays for ever.
    assert "After=network-online.target docker.service\n" in unit_text(Path("/srv/bin"))
    # Jobs have the limits of the unit, and NCCL over InfiniBand fails within those of systemd.
    assert "LimitMEMLOCK=infinity\n" in unit_text(Path("/srv/bin"))


def test_readiness_is_reported_to_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notify_ready()
        assert systemd.recv(100) == b"READY=1"
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify_ready()
