"""`gpusched-agent doctor` looks with the eyes of the user that the agent will be, and changes nothing on the machine."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.agent.host import doctor, service
from gpusched.agent.isolation import cgroup
from tests.agent.test_join import gpusched_agent


def test_looking_at_cgroups_makes_moves_and_enables_nothing(tmp_path: Path) -> None:
    """In files that look like a kernel's: what cannot be told from reading is not tried."""
    mount = tmp_path / "mount"
    (mount / "unit").mkdir(parents=True)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mounts").write_text(f"none {mount} cgroup2 rw 0 0\n")
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    for place, told in ((mount, "cpu memory pids"), (mount / "unit", "memory")):
        (place / "cgroup.controllers").write_text(told)
    before = sorted(tmp_path.rglob("*"))
    by_group = cgroup.inspect(group="/unit", proc=str(tmp_path))
    assert by_group.base == cgroup.Base(f"{mount}/unit", ("memory",))
    own = cgroup.inspect(proc=str(tmp_path))
    assert own.base == (cgroup.Base(f"{mount}/gpusched", ("memory", "cpu", "pids")) if os.geteuid() == 0 else None)
    assert cgroup.inspect(f"{tmp_path}/none/below").reason == f"{tmp_path}/none does not exist"
    assert sorted(tmp_path.rglob("*")) == before


UNIT = """LoadState=loaded
User={user}
Environment=GPUSCHED_AGENT_DIR={directory} "OTHER=a b" GPUSCHED_AGENT_UMASK=027
Delegate=yes
ControlGroup={group}
"""


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that all may pass, whose file `unit` is what `systemctl show` answers."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        here = Path(made)
        here.chmod(0o755)
        (here / "bin").mkdir()
        (here / "bin" / "systemctl").write_text(f"#!/bin/sh\ncat {here}/unit\n")
        (here / "bin" / "systemctl").chmod(0o755)
        monkeypatch.setenv("PATH", f"{here}/bin:{os.environ['PATH']}")
        yield here


def test_the_unit_says_who_the_agent_is_and_where_its_files_are(systemd: Path) -> None:
    (systemd / "unit").write_text(UNIT.format(user="gpusched", directory="/var/lib/x", group="/system.slice/a.service"))
    unit = service.installed()
    assert unit == service.Service(
        "gpusched", {"GPUSCHED_AGENT_DIR": "/var/lib/x", "GPUSCHED_AGENT_UMASK": "027"}, True, "/system.slice/a.service"
    )
    (systemd / "unit").write_text("LoadState=not-found\nUser=\n")
    assert service.installed() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look as another user")
def test_doctor_looks_with_the_eyes_of_the_user_that_the_service_runs_as(systemd: Path) -> None:
    """What root may is not what the agent may: the directory is root's, and nobody becomes another user."""
    own = systemd / "own"
    own.mkdir(mode=0o755)
    (systemd / "unit").write_text(UNIT.format(user="nobody", directory=own, group=""))
    path = f"{systemd}/bin:{os.environ['PATH']}"
    told = gpusched_agent("doctor", "--json", PATH=path)
    findings = {one["check"]: one for one in json.loads(told.stdout)}
    assert findings["user"]["says"] == "checked as nobody, the user of gpusched-agent.service"
    assert findings["disk"]["level"] == "fail" and str(own) in findings["disk"]["says"]
    assert "all jobs run as nobody" in findings["users"]["says"]
    assert (
        findings["cgroup"]["says"] == "gpusched-agent.service does not run; systemd creates its cgroup when it starts"
    )
    told = gpusched_agent("doctor", "--json", "--user", "root", PATH=path)
    findings = {one["check"]: one for one in json.loads(told.stdout)}
    assert (findings["user"]["says"], findings["disk"]["level"]) == ("checked as root", "ok")
    told = gpusched_agent("doctor", "--json", "--user", "no-such-user", PATH=path)
    [user] = [one for one in json.loads(told.stdout) if one["check"] == "user"]
    assert (user["level"], user["next_step"]) == ("fail", "sudo useradd --system --create-home no-such-user")


def test_who_is_not_root_says_that_it_looks_with_its_own_eyes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    finding = doctor.run_as_service("", service.Service(user="daemon"))
    assert finding.level == "warn"
    assert finding.says == "the agent runs as daemon, but this check ran as uid 4242: only root can check as daemon"
