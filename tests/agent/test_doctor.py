"""`gpusched-agent doctor` finds each possible fault, and prints it in one line with the next step."""

import json
import os
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpusched.agent import config, identity
from gpusched.agent.containers import gpu_support
from gpusched.agent.gpus.nvml import Nvml
from gpusched.agent.host import doctor
from gpusched.agent.identity import Identity
from gpusched.agent.isolation import cgroup_base
from gpusched.protocol.findings import Finding
from tests.agent.conftest import A100, set_devices
from tests.agent.test_join import gpusched_agent, written


class Server:
    """Answers with `status`, at a time that is `ahead_seconds` of ours."""

    def __init__(self) -> None:
        self.status, self.ahead_seconds, self.has_date = 400, 0.0, True
        self.asked: list[tuple[str, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.asked.append((self.path, self.headers["Authorization"]))
                self.send_response_only(server.status)
                if server.has_date:
                    self.send_header("Date", formatdate(time.time() + server.ahead_seconds, usegmt=True))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    server_instance = Server()
    threading.Thread(target=server_instance.http.serve_forever, args=(0.02,), daemon=True).start()
    yield server_instance
    server_instance.http.shutdown()
    server_instance.http.server_close()


@pytest.fixture
def node(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node that has joined the server."""
    monkeypatch.setenv("GPUSCHED_AGENT_RUNTIMES", "")
    directory = tmp_path / "nodes" / "gpu-1"
    identity.save(directory, Identity("gpu-1", "k" * 32, server.url, 1, "n1.secret"))
    return directory


def finding_of(directory: Path, check: str) -> Finding:
    [item] = [finding for finding in doctor.examine(directory) if finding.check == check]
    return item


def test_doctor_prints_a_line_per_check_and_exits_0_for_a_healthy_node(
    node: Path, server: Server, environment: dict[str, str], tmp_path: Path
) -> None:
    set_devices(environment, A100, A100)
    content = written(tmp_path, "allow_root = true\n")
    result = gpusched_agent("doctor", "--data-dir", str(tmp_path), **environment, **content)
    assert result.returncode == 0, result.stdout
    lines = [line.split(maxsplit=2) for line in result.stdout.splitlines()]
    levels = {check: level for level, check, _ in lines}
    assert all(levels[check] == "ok" for check in ("driver", "gpus", "joined", "server", "credential", "clock"))
    assert ["ok", "joined", f"node gpu-1 of {server.url}"] in lines
    result = gpusched_agent("doctor", "--json", "--data-dir", str(tmp_path), **environment, **content)
    assert {item["check"]: item["says"] for item in json.loads(result.stdout)}["gpus"] == "2 available to jobs"


def test_doctor_exits_1_when_a_check_fails(tmp_path: Path) -> None:
    result = gpusched_agent("doctor", "--json", "--data-dir", str(tmp_path / "none"))
    assert result.returncode == 1
    [joined] = [item for item in json.loads(result.stdout) if item["check"] == "joined"]
    assert joined["level"] == "fail" and joined["next_step"] == "gpusched-agent join URL TOKEN"


@pytest.mark.parametrize(
    ("devices", "level", "sentence"),
    [
        ([A100.replace("|ok|", "|lost|")], "fail", "lost"),
        ([], "warn", "the driver reports no GPU"),
        ([A100], "ok", "1 available to jobs"),
    ],
)
def test_doctor_reports_lost_and_missing_gpus(
    tmp_path: Path, environment: dict[str, str], devices: list[str], level: str, sentence: str
) -> None:
    """Through the real binding, in a process of its own: a library is loaded once."""
    set_devices(environment, *devices)
    result = gpusched_agent("doctor", "--json", "--data-dir", str(tmp_path), **environment)
    [gpus] = [item for item in json.loads(result.stdout) if item["check"] == "gpus"]
    assert gpus["level"] == level and sentence in gpus["says"]


def test_doctor_reports_a_driver_that_hangs(tmp_path: Path, environment: dict[str, str]) -> None:
    """It does not hang itself: this is what an operator runs to learn what is wrong."""
    set_devices(environment, A100.replace("|ok|", "|hang|"))
    result = gpusched_agent("doctor", "--json", "--data-dir", str(tmp_path), **environment)
    levels = {item["check"]: item["level"] for item in json.loads(result.stdout)}
    assert (levels["driver"], "disk" in levels, "gpus" in levels) == ("fail", True, False)


@pytest.mark.parametrize(("is_loaded", "level"), [(False, "warn"), (True, "fail")])
def test_driver_without_its_library_fails_and_no_driver_is_a_warning(
    node: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_loaded: bool, level: str
) -> None:
    (tmp_path / "version").touch()
    monkeypatch.setattr(doctor, "DRIVER", tmp_path / ("version" if is_loaded else "none"))
    monkeypatch.setattr("pynvml.nvmlInit", _no_library)
    assert finding_of(node, "driver").level == level


def _no_library() -> None:
    import pynvml

    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def test_runtimes_are_listed_with_versions_and_missing_gpu_setup(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finding_of(node, "runtimes").level == "warn"
    monkeypatch.setattr("gpusched.agent.gpus.nvml.Nvml.devices", lambda _: [])
    (tmp_path / "podman").write_text("#!/bin/sh\necho podman version 5.1.2\n")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.delenv("GPUSCHED_AGENT_RUNTIMES")
    content = written(tmp_path, f"[runtimes.podman]\ncommand = ['{tmp_path}/podman']\n")
    monkeypatch.setenv("GPUSCHED_AGENT_CONFIG", content["GPUSCHED_AGENT_CONFIG"])
    assert finding_of(node, "podman") == Finding("podman", "ok", "5.1.2")
    monkeypatch.setattr(gpu_support, "CDI", (tmp_path / "cdi",))
    monkeypatch.setattr("gpusched.agent.gpus.nvml.Nvml.devices", lambda _: [None])
    assert (finding_of(node, "podman").level, "nvidia-ctk cdi generate" in finding_of(node, "podman").next_step) == (
        "warn",
        True,
    )
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "other.yaml").write_text("kind: vendor.example/net\n")
    assert finding_of(node, "podman").level == "warn"
    (tmp_path / "cdi" / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    assert finding_of(node, "podman").level == "ok"


@pytest.mark.parametrize(
    ("content", "level"),
    [
        ('{"Runtimes": {"nvidia": {}, "runc": {}}}', "ok"),
        ('{"Runtimes": {"runc": {}}, "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]}', "ok"),
        ('{"Runtimes": {"runc": {}}, "DiscoveredDevices": null}', "warn"),
        ("no JSON", "warn"),
    ],
)
def test_docker_gpu_support_comes_from_its_daemon(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, level: str
) -> None:
    """A tool of NVIDIA's on PATH does not prove that the daemon is configured."""
    client = tmp_path / "docker"
    client.write_text(f"#!/bin/sh\n[ $1 = info ] && echo '{content}' || echo 27.1.2\n")
    (tmp_path / "nvidia-ctk").write_text("#!/bin/sh\n")
    for program in (client, tmp_path / "nvidia-ctk"):
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("GPUSCHED_AGENT_RUNTIMES")
    config = written(tmp_path, f"[runtimes.docker]\ncommand = ['{client}']\n")
    monkeypatch.setenv("GPUSCHED_AGENT_CONFIG", config["GPUSCHED_AGENT_CONFIG"])
    monkeypatch.setattr("gpusched.agent.gpus.nvml.Nvml.devices", lambda _: [None])
    assert finding_of(node, "docker").level == level


@pytest.mark.parametrize(
    ("euid", "user", "allow_root", "level", "sentence"),
    [
        (0, "", "no", "warn", "only jobs of tenants with a unix_user"),
        (0, "", "yes", "warn", "jobs run as root"),
        (0, "nobody-of-here", "no", "fail", "there is no Unix user nobody-of-here"),
        (0, "daemon", "no", "fail", "daemon is a system user"),
        (0, "daemon", "yes", "ok", "jobs run as daemon"),
        (4242, "", "no", "warn", "all jobs run as uid 4242, the agent's user"),
        (4242, "daemon", "no", "fail", "cannot become daemon"),
    ],
)
def test_doctor_names_the_user_of_jobs(
    node: Path, monkeypatch: pytest.MonkeyPatch, euid: int, user: str, allow_root: str, level: str, sentence: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    monkeypatch.setenv("GPUSCHED_AGENT_DEFAULT_USER", user)
    monkeypatch.setenv("GPUSCHED_AGENT_ALLOW_ROOT", allow_root)
    users = finding_of(node, "users")
    assert users.level == level and sentence in users.says


def test_doctor_warns_when_cgroups_have_no_memory_controller(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for base, level in (
        (None, "warn"),
        (cgroup_base.Base("/g", ("cpu",)), "warn"),
        (cgroup_base.Base("/g", ("memory",)), "ok"),
    ):
        monkeypatch.setattr(
            cgroup_base, "inspect", lambda *_, base=base, **__: cgroup_base.Lookup(base, "none is mounted")
        )
        assert finding_of(node, "cgroup").level == level


Usage = namedtuple("Usage", "f_bavail f_frsize f_files f_favail")


@pytest.mark.parametrize(
    ("free_mb", "files", "free_files", "level"),
    [(100_000, 9**9, 9**9, "ok"), (100_000, 0, 0, "ok"), (2000, 9**9, 9**9, "warn"), (100, 9**9, 9**9, "fail"),
     (100_000, 9**9, 5000, "fail")],
)  # fmt: skip
def test_doctor_reports_a_nearly_full_disk(
    node: Path, monkeypatch: pytest.MonkeyPatch, free_mb: int, files: int, free_files: int, level: str
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: Usage(free_mb << 8, 4096, files, free_files))
    assert finding_of(node, "disk").level == level


@pytest.mark.parametrize(("free_mb", "free_files"), [(63, 9**9), (100_000, 999)])
def test_full_disk_is_reported_before_its_last_block(
    node: Path, monkeypatch: pytest.MonkeyPatch, free_mb: int, free_files: int
) -> None:
    """The server starts no jobs on the node: they would fail, and take the space for the ends of those that run."""
    monkeypatch.setattr(os, "statvfs", lambda _: Usage(free_mb << 8, 4096, 9**9, free_files))
    [hint] = [hint for hint in doctor.hints(config.load(), Nvml(), 0, {}, node) if "disk" in hint.check]
    assert (hint.check, hint.level, hint.next_step) == ("full_disk", "fail", f"free space on the disk of {node}")


def test_doctor_reports_a_credential_readable_by_others(node: Path) -> None:
    (node / "identity.json").chmod(0o644)
    assert finding_of(node, "joined").level == "fail"


@pytest.mark.parametrize(
    ("status", "check", "level", "sentence"),
    [
        (400, "credential", "ok", "the server accepts it"),
        (401, "credential", "fail", "does not accept this node's credential"),
        (404, "credential", "fail", "which is not a gpusched server"),
        (503, "server", "fail", "answers HTTP 503"),
    ],
)
def test_doctor_checks_the_credential_with_the_server(
    node: Path, server: Server, status: int, check: str, level: str, sentence: str
) -> None:
    server.status = status
    content = finding_of(node, check)
    assert content.level == level and sentence in content.says
    assert server.asked == [("/agent/logs", "Bearer n1.secret")]


def test_doctor_reports_an_unreachable_server(node: Path, server: Server) -> None:
    server.http.server_close()
    assert finding_of(node, "server").level == "fail"
    assert "no firewall" in finding_of(node, "server").next_step


@pytest.mark.parametrize(
    ("ahead", "level"), [(0.0, "ok"), (20.0, "warn"), (-20.0, "warn"), (300.0, "fail"), (-300.0, "fail")]
)
def test_doctor_reports_clock_skew(node: Path, server: Server, ahead: float, level: str) -> None:
    server.ahead_seconds = ahead
    clock = finding_of(node, "clock")
    assert clock.level == level
    if ahead:
        assert ("behind" if ahead > 0 else "ahead of") in clock.says
    server.has_date = False
    assert finding_of(node, "clock").level == "warn"


def test_doctor_reports_only_the_config_when_it_is_invalid(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSCHED_AGENT_CONFIG", written(tmp_path, "mount = []")["GPUSCHED_AGENT_CONFIG"])
    [only] = doctor.examine(node)
    assert (only.check, only.level) == ("config", "fail") and "unknown key 'mount'" in only.says


def test_unreadable_credential_is_a_finding_without_traceback(tmp_path: Path) -> None:
    (tmp_path / "identity.json").symlink_to("identity.json")  # as unreadable for root as others' files are for others
    [finding] = doctor._server(tmp_path)
    assert (finding.check, finding.level) == ("joined", "fail")
    assert "cannot be read" in finding.says


def test_identity_of_a_newer_agent_is_read(node: Path) -> None:
    """As after a downgrade of the agent."""
    record = json.loads((node / "identity.json").read_text())
    (node / "identity.json").write_text(json.dumps({**record, "of_a_newer_agent": 1}))
    assert finding_of(node, "credential").level == "ok"


def test_running_agent_sends_hints_about_its_machine(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows problems only, and none that only the server could know."""
    monkeypatch.setattr(doctor, "FEW_FREE_MB", 1 << 40)
    content = doctor.hints(config.load(), Nvml(), 0, {}, node)
    assert {hint.level for hint in content} <= {"warn", "fail"}
    checks = {hint.check for hint in content}
    assert {"runtimes", "disk"} <= checks and not checks & {"config", "server", "joined"}
    assert all(hint.next_step for hint in content if hint.check in ("runtimes", "disk"))
