"""`gpusched-agent doctor` checks as the agent's user, and changes nothing on the machine."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.agent.host import doctor, service
from gpusched.agent.isolation import cgroup_base
from tests.agent.test_join import gpusched_agent


def test_inspecting_cgroups_changes_nothing(tmp_path: Path) -> None:
    """On files that look like a kernel's: facts that need more than reading are not checked."""
    mount = tmp_path / "mount"
    (mount / "unit").mkdir(parents=True)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mounts").write_text(f"none {mount} cgroup2 rw 0 0\n")
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    for place, result in ((mount, "cpu memory pids"), (mount / "unit", "memory")):
        (place / "cgroup.controllers").write_text(result)
    existing = sorted(tmp_path.rglob("*"))
    by_group = cgroup_base.inspect(group="/unit", proc=str(tmp_path))
    assert by_group.base == cgroup_base.Base(f"{mount}/unit", ("memory",))
    own_group = cgroup_base.inspect(proc=str(tmp_path))
    assert own_group.base == (
        cgroup_base.Base(f"{mount}/gpusched", ("memory", "cpu", "pids")) if os.geteuid() == 0 else None
    )
    assert cgroup_base.inspect(f"{tmp_path}/none/below").reason == f"{tmp_path}/none does not exist"
    assert sorted(tmp_path.rglob("*")) == existing


UNIT = """LoadState=loaded
User={user}
Environment=GPUSCHED_AGENT_DIR={directory} "OTHER=a b" GPUSCHED_AGENT_UMASK=027
Delegate=yes
ControlGroup={group}
"""


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that all may pass, whose file `unit` is what `systemctl show` answers."""
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        folder = Path(parent)
        folder.chmod(0o755)
        (folder / "bin").mkdir()
        (folder / "bin" / "systemctl").write_text(f"#!/bin/sh\ncat {folder}/unit\n")
        (folder / "bin" / "systemctl").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
        yield folder


def test_unit_defines_the_agents_user_and_files(systemd: Path) -> None:
    (systemd / "unit").write_text(UNIT.format(user="gpusched", directory="/var/lib/x", group="/system.slice/a.service"))
    unit = service.installed()
    assert unit == service.Service(
        "gpusched", {"GPUSCHED_AGENT_DIR": "/var/lib/x", "GPUSCHED_AGENT_UMASK": "027"}, True, "/system.slice/a.service"
    )
    (systemd / "unit").write_text("LoadState=not-found\nUser=\n")
    assert service.installed() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look as another user")
def test_doctor_checks_as_the_services_user(systemd: Path) -> None:
    """Root's rights are not the agent's: the directory is root's, and the check runs as another user."""
    own_group = systemd / "own"
    own_group.mkdir(mode=0o755)
    (systemd / "unit").write_text(UNIT.format(user="nobody", directory=own_group, group=""))
    path = f"{systemd}/bin:{os.environ['PATH']}"
    result = gpusched_agent("doctor", "--json", PATH=path)
    findings = {item["check"]: item for item in json.loads(result.stdout)}
    assert findings["user"]["says"] == "checked as nobody, the user of gpusched-agent.service"
    assert findings["disk"]["level"] == "fail" and str(own_group) in findings["disk"]["says"]
    assert "all jobs run as nobody" in findings["users"]["says"]
    assert (
        findings["cgroup"]["says"] == "gpusched-agent.service does not run; systemd creates its cgroup when it starts"
    )
    result = gpusched_agent("doctor", "--json", "--user", "root", PATH=path)
    findings = {item["check"]: item for item in json.loads(result.stdout)}
    assert (findings["user"]["says"], findings["disk"]["level"]) == ("checked as root", "ok")
    result = gpusched_agent("doctor", "--json", "--user", "no-such-user", PATH=path)
    [user] = [item for item in json.loads(result.stdout) if item["check"] == "user"]
    assert (user["level"], user["next_step"]) == ("fail", "sudo useradd --system --create-home no-such-user")


def test_doctor_checks_as_the_caller_when_it_is_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    finding = doctor.run_as_service("", service.Service(user="daemon"))
    assert finding.level == "warn"
    assert finding.says == "the agent runs as daemon, but this check ran as uid 4242: only root can check as daemon"
