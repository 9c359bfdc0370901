"""`gpusched-agent doctor` finds each thing that may be wrong, in one line with what to do about it."""

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
from gpusched.agent.host.doctor import Finding
from gpusched.agent.identity import Identity
from gpusched.agent.isolation import cgroup
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
    made = Server()
    threading.Thread(target=made.http.serve_forever, args=(0.02,), daemon=True).start()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def node(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node that has joined the server."""
    monkeypatch.setenv("GPUSCHED_AGENT_RUNTIMES", "")
    directory = tmp_path / "nodes" / "gpu-1"
    identity._save(directory, Identity("gpu-1", "k" * 32, server.url, 1, "n1.secret"))
    return directory


def found(directory: Path, check: str) -> Finding:
    [one] = [finding for finding in doctor.examine(directory) if finding.check == check]
    return one


def test_a_well_node_is_told_line_by_line_and_the_exit_code_says_so(
    node: Path, server: Server, environment: dict[str, str], tmp_path: Path
) -> None:
    set_devices(environment, A100, A100)
    told = written(tmp_path, "allow_root = true\n")
    done = gpusched_agent("doctor", "--data-dir", str(tmp_path), **environment, **told)
    assert done.returncode == 0, done.stdout
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    levels = {check: level for level, check, _ in lines}
    assert all(levels[check] == "ok" for check in ("driver", "gpus", "joined", "server", "credential", "clock"))
    assert ["ok", "joined", f"node gpu-1 of {server.url}"] in lines
    done = gpusched_agent("doctor", "--json", "--data-dir", str(tmp_path), **environment, **told)
    assert {one["check"]: one["says"] for one in json.loads(done.stdout)}["gpus"] == "2 available to jobs"


def test_anything_that_fails_makes_the_exit_code_1(tmp_path: Path) -> None:
    done = gpusched_agent("doctor", "--json", "--data-dir", str(tmp_path / "none"))
    assert done.returncode == 1
    [joined] = [one for one in json.loads(done.stdout) if one["check"] == "joined"]
    assert joined["level"] == "fail" and joined["next_step"] == "gpusched-agent join URL TOKEN"


@pytest.mark.parametrize(
    ("devices", "level", "words"),
    [
        ([A100.replace("|ok|", "|lost|")], "fail", "lost"),
        ([], "warn", "the driver reports no GPU"),
        ([A100], "ok", "1 available to jobs"),
    ],
)
def test_gpus_that_are_lost_or_missing_are_told(
    tmp_path: Path, environment: dict[str, str], devices: list[str], level: str, words: str
) -> None:
    """Through the real binding, in a process of its own: a library is loaded once."""
    set_devices(environment, *devices)
    done = gpusched_agent("doctor", "--json", "--data-dir", str(tmp_path), **environment)
    [gpus] = [one for one in json.loads(done.stdout) if one["check"] == "gpus"]
    assert gpus["level"] == level and words in gpus["says"]


@pytest.mark.parametrize(("is_loaded", "level"), [(False, "warn"), (True, "fail")])
def test_a_driver_without_its_library_is_broken_and_no_driver_is_a_node_without_gpus(
    node: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_loaded: bool, level: str
) -> None:
    (tmp_path / "version").touch()
    monkeypatch.setattr(doctor, "DRIVER", tmp_path / ("version" if is_loaded else "none"))
    monkeypatch.setattr("pynvml.nvmlInit", _no_library)
    assert found(node, "driver").level == level


def _no_library() -> None:
    import pynvml

    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def test_runtimes_are_told_with_their_versions_and_what_keeps_gpus_from_them(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(node, "runtimes").level == "warn"
    (tmp_path / "podman").write_text("#!/bin/sh\necho podman version 5.1.2\n")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.delenv("GPUSCHED_AGENT_RUNTIMES")
    told = written(tmp_path, f"[runtimes.podman]\ncommand = ['{tmp_path}/podman']\n")
    monkeypatch.setenv("GPUSCHED_AGENT_CONFIG", told["GPUSCHED_AGENT_CONFIG"])
    assert found(node, "podman") == Finding("podman", "ok", "5.1.2")
    monkeypatch.setattr(gpu_support, "CDI", (tmp_path / "cdi",))
    monkeypatch.setattr("gpusched.agent.gpus.nvml.Nvml.devices", lambda _: [None])
    assert (found(node, "podman").level, "nvidia-ctk cdi generate" in found(node, "podman").next_step) == ("warn", True)
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "other.yaml").write_text("kind: vendor.example/net\n")
    assert found(node, "podman").level == "warn"
    (tmp_path / "cdi" / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    assert found(node, "podman").level == "ok"


@pytest.mark.parametrize(
    ("told", "level"),
    [
        ('{"Runtimes": {"nvidia": {}, "runc": {}}}', "ok"),
        ('{"Runtimes": {"runc": {}}, "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]}', "ok"),
        ('{"Runtimes": {"runc": {}}, "DiscoveredDevices": null}', "warn"),
        ("no JSON", "warn"),
    ],
)
def test_dockers_daemon_is_asked_whether_it_can_give_gpus(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, level: str
) -> None:
    """A tool of NVIDIA's on PATH says nothing of what the daemon was told."""
    client = tmp_path / "docker"
    client.write_text(f"#!/bin/sh\n[ $1 = info ] && echo '{told}' || echo 27.1.2\n")
    (tmp_path / "nvidia-ctk").write_text("#!/bin/sh\n")
    for program in (client, tmp_path / "nvidia-ctk"):
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("GPUSCHED_AGENT_RUNTIMES")
    config = written(tmp_path, f"[runtimes.docker]\ncommand = ['{client}']\n")
    monkeypatch.setenv("GPUSCHED_AGENT_CONFIG", config["GPUSCHED_AGENT_CONFIG"])
    monkeypatch.setattr("gpusched.agent.gpus.nvml.Nvml.devices", lambda _: [None])
    assert found(node, "docker").level == level


@pytest.mark.parametrize(
    ("euid", "user", "allow_root", "level", "words"),
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
def test_who_jobs_would_run_as_is_told(
    node: Path, monkeypatch: pytest.MonkeyPatch, euid: int, user: str, allow_root: str, level: str, words: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    monkeypatch.setenv("GPUSCHED_AGENT_DEFAULT_USER", user)
    monkeypatch.setenv("GPUSCHED_AGENT_ALLOW_ROOT", allow_root)
    users = found(node, "users")
    assert users.level == level and words in users.says


def test_cgroups_without_a_memory_controller_limit_nothing(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for base, level in ((None, "warn"), (cgroup.Base("/g", ("cpu",)), "warn"), (cgroup.Base("/g", ("memory",)), "ok")):
        monkeypatch.setattr(cgroup, "inspect", lambda *_, base=base, **__: cgroup.Lookup(base, "none is mounted"))
        assert found(node, "cgroup").level == level


Room = namedtuple("Room", "f_bavail f_frsize f_files f_favail")


@pytest.mark.parametrize(
    ("free_mb", "files", "free_files", "level"),
    [(100_000, 9**9, 9**9, "ok"), (100_000, 0, 0, "ok"), (2000, 9**9, 9**9, "warn"), (100, 9**9, 9**9, "fail"),
     (100_000, 9**9, 5, "fail")],
)  # fmt: skip
def test_a_disk_that_is_nearly_full_is_told(
    node: Path, monkeypatch: pytest.MonkeyPatch, free_mb: int, files: int, free_files: int, level: str
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: Room(free_mb << 8, 4096, files, free_files))
    assert found(node, "disk").level == level


def test_a_credential_that_others_may_read_is_told(node: Path) -> None:
    (node / "identity.json").chmod(0o644)
    assert found(node, "joined").level == "fail"


@pytest.mark.parametrize(
    ("status", "check", "level", "words"),
    [
        (400, "credential", "ok", "the server accepts it"),
        (401, "credential", "fail", "does not accept this node's credential"),
        (404, "credential", "fail", "which is not a gpusched server"),
        (503, "server", "fail", "answers HTTP 503"),
    ],
)
def test_the_server_is_asked_whether_it_knows_the_node(
    node: Path, server: Server, status: int, check: str, level: str, words: str
) -> None:
    server.status = status
    told = found(node, check)
    assert told.level == level and words in told.says
    assert server.asked == [("/agent/logs", "Bearer n1.secret")]


def test_a_server_that_is_not_there_is_told(node: Path, server: Server) -> None:
    server.http.server_close()
    assert found(node, "server").level == "fail"
    assert "no firewall" in found(node, "server").next_step


@pytest.mark.parametrize(
    ("ahead", "level"), [(0.0, "ok"), (20.0, "warn"), (-20.0, "warn"), (300.0, "fail"), (-300.0, "fail")]
)
def test_clocks_that_differ_are_told(node: Path, server: Server, ahead: float, level: str) -> None:
    server.ahead_seconds = ahead
    clock = found(node, "clock")
    assert clock.level == level
    if ahead:
        assert ("behind" if ahead > 0 else "ahead of") in clock.says
    server.has_date = False
    assert found(node, "clock").level == "warn"


def test_a_config_that_is_wrong_is_all_that_is_told(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSCHED_AGENT_CONFIG", written(tmp_path, "mount = []")["GPUSCHED_AGENT_CONFIG"])
    [only] = doctor.examine(node)
    assert (only.check, only.level) == ("config", "fail") and "unknown key 'mount'" in only.says


def test_a_credential_that_it_may_not_read_is_a_finding_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "identity.json").symlink_to("identity.json")  # as unreadable for root as others' files are for others
    [finding] = doctor._server(tmp_path)
    assert (finding.check, finding.level) == ("joined", "fail")
    assert "cannot be read" in finding.says


def test_the_running_agent_tells_what_is_not_well_of_its_machine(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows it: what is well is not in it, and neither is what only the server's page could not be told."""
    monkeypatch.setattr(doctor, "FEW_FREE_MB", 1 << 40)
    told = doctor.hints(config.load(), Nvml(), 0, {}, node)
    assert {hint.level for hint in told} <= {"warn", "fail"}
    checks = {hint.check for hint in told}
    assert {"runtimes", "disk"} <= checks and not checks & {"config", "server", "joined"}
    assert all(hint.next_step for hint in told if hint.check in ("runtimes", "disk"))
