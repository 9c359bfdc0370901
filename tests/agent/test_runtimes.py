"""The command lines of container runtimes, a node's refusals, and jobs whose container is not a child of the agent."""

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpusched.agent import config
from gpusched.agent.config import Config, Runtime
from gpusched.agent.containers import command_lines, mounts, runtimes
from gpusched.agent.containers.command_lines import ContainerSpec
from gpusched.agent.isolation.confinement import Confinement
from gpusched.agent.ranks.environment import job_spec
from gpusched.agent.supervisor import failure_class
from gpusched.protocol.agent_messages import RankSpec
from tests.agent.conftest import Agent, supervisors
from tests.agent.control import Control, eventually
from tests.agent.dockerd import Dockerd
from tests.processes import is_alive

BOX = ContainerSpec(
    name="gpusched-7-2-0", image="ghcr.io/team/train:1", argv=["python", "train.py", "--x"], devices=["GPU-a", "GPU-b"],
    binds=["/data:/data:ro"], environment_file="/r/container.env", late=["GPUSCHED_DEADLINE"], cpu_cores=8,
    memory_mb=65536, ranks=1, uid=1001, gid=1002, groups=[1002, 44], workdir="/work",
)  # fmt: skip


def pairs(argv: list[str]) -> set[tuple[str, str]]:
    return set(pairwise(argv))


# --- the command lines ---


def test_docker_command_has_gpus_by_uuid_limits_and_user_without_rights() -> None:
    argv = command_lines.docker(["/usr/bin/docker"], BOX)
    assert argv[:2] == ["/usr/bin/docker", "run"]
    assert {
        ("--gpus", '"device=GPU-a,GPU-b"'), ("--memory", "65536m"), ("--cpu-shares", "8192"), ("--shm-size", "65536m"),
        ("--user", "1001:1002"), ("--group-add", "44"), ("--name", "gpusched-7-2-0"), ("--cap-drop", "ALL"),
        ("--security-opt", "no-new-privileges"), ("--volume", "/data:/data:ro"), ("--workdir", "/work"),
        ("--env-file", "/r/container.env"), ("--env", "GPUSCHED_DEADLINE"),
    } <= pairs(argv)  # fmt: skip
    assert "--rm" not in argv and "--init" in argv and "--network" not in argv
    assert argv[-5:] == ["--entrypoint", "python", "ghcr.io/team/train:1", "train.py", "--x"]


def test_podman_command_has_cdi_devices_and_maps_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for euid, expected in ((0, ("--user", "1001:1002")), (1001, ("--userns", "keep-id"))):
        monkeypatch.setattr(os, "geteuid", lambda euid=euid: euid)
        argv = command_lines.podman(["podman"], BOX)
        assert expected in pairs(argv)
        assert {("--device", "nvidia.com/gpu=GPU-a"), ("--device", "nvidia.com/gpu=GPU-b")} <= pairs(argv)
        assert "--gpus" not in argv


def test_apptainer_command_has_the_driver_only_with_gpus_and_accepts_registry_images() -> None:
    from dataclasses import replace

    argv = command_lines.apptainer(["apptainer"], BOX)
    assert argv[:4] == ["apptainer", "exec", "--containall", "--env-file"]
    assert "--nv" in argv and {("--bind", "/data:/data:ro"), ("--pwd", "/work")} <= pairs(argv)
    assert argv[-4:] == ["docker://ghcr.io/team/train:1", "python", "train.py", "--x"]
    assert "/i.sif" in command_lines.apptainer(["apptainer"], replace(BOX, image="/i.sif"))
    assert "--nv" not in command_lines.apptainer(["apptainer"], replace(BOX, devices=[]))


def test_container_cpu_is_a_ceiling_when_configured() -> None:
    from dataclasses import replace

    for build in (command_lines.docker, command_lines.podman):
        assert "--cpus" not in build(["x"], BOX)
        assert ("--cpus", "8") in pairs(build(["x"], replace(BOX, has_ceiling=True)))


@pytest.mark.parametrize(("cores", "shares"), [(0.0, "2"), (2.0, "2048"), (384.0, "262144")])
def test_container_of_a_large_machine_has_no_more_shares_than_the_kernel_takes(cores: float, shares: str) -> None:
    from dataclasses import replace

    argv = command_lines.docker(["docker"], replace(BOX, cpu_cores=cores))
    assert argv[argv.index("--cpu-shares") + 1] == shares


def test_docker_limits_processes_as_every_rank() -> None:
    assert ("--pids-limit", "16384") in pairs(command_lines.docker(["docker"], BOX))


def test_ranks_of_a_gang_share_the_network_of_their_nodes() -> None:
    from dataclasses import replace

    for build in (command_lines.docker, command_lines.podman):
        assert ("--network", "host") in pairs(build(["x"], replace(BOX, ranks=2)))
        for chosen in (["--network=none"], ["--net", "host"]):
            argv = build(["x"], replace(BOX, ranks=2, arguments=chosen))
            assert argv.count("--network") == 0 and set(chosen) <= set(argv), "the runtimes refuse a second one"


def test_shared_memory_has_no_size_where_the_config_chooses_it() -> None:
    """Podman refuses a size together with --ipc=host, which PyTorch recommends."""
    from dataclasses import replace

    for build in (command_lines.docker, command_lines.podman):
        assert "--shm-size" not in build(["x"], replace(BOX, arguments=["--ipc=host"]))


def test_configured_arguments_come_before_the_image() -> None:
    from dataclasses import replace

    argv = command_lines.docker(["docker"], replace(BOX, arguments=["--ulimit", "memlock=-1"]))
    assert argv.index("memlock=-1") < argv.index("--entrypoint")


# --- what a node refuses ---


def test_mounts_must_be_on_the_allow_list_after_resolving_links(tmp_path: Path) -> None:
    data, permitted = tmp_path / "data", tmp_path / "kept"
    for place in (data / "set", permitted):
        place.mkdir(parents=True)
    (data / "out").symlink_to("/etc")
    allowed = [f"{data}:ro", str(permitted)]
    assert mounts.binds([f"{data}/set:/in", f"{permitted}:/out:rw", f"{permitted}:/o:ro"], allowed) == [
        f"{data}/set:/in:ro", f"{permitted}:/out", f"{permitted}:/o:ro"
    ]  # fmt: skip
    for refused in ("/etc:/etc", f"{data}/out:/etc", f"{data}:/in:rw", f"{data}-2:/x", f"{tmp_path}:/x"):
        with pytest.raises(
            mounts.NotAllowed, match=f"mount {refused} is not allowed .*; allowed: {data}:ro, {permitted}"
        ):
            mounts.binds([refused], allowed)
    with pytest.raises(mounts.NotAllowed, match="allowed: nothing"):
        mounts.binds(["/data:/data"], [])
    with pytest.raises(mounts.NotAllowed, match="does not exist"):
        mounts.binds([f"{permitted}/none:/x"], allowed)


@pytest.mark.parametrize("name", ["a,", "a\n", "a:b"])
def test_mount_path_that_a_runtime_would_split_is_refused(tmp_path: Path, name: str) -> None:
    """A link with a plain name may lead there."""
    (tmp_path / name / "etc").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / name / "etc")
    with pytest.raises(mounts.NotAllowed, match="a colon, comma or line break"):
        mounts.binds([f"{tmp_path}/link:/x"], [str(tmp_path)])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_directory_closed_to_the_user_cannot_be_mounted() -> None:
    """Docker follows the path as root, and nothing in the container would close it again."""
    account = {"uid": 12345, "gid": 12345, "groups": [12345]}
    with tempfile.TemporaryDirectory(dir="/tmp") as prepared:
        top, code = Path(prepared), Path(prepared) / "alice" / "code"
        code.mkdir(parents=True)
        top.chmod(0o755)
        assert mounts.binds([f"{code}:/x"], [prepared], account) == [f"{code}:/x"]
        code.parent.chmod(0o700)
        for source in (code, code / "none"):
            with pytest.raises(mounts.NotAllowed, match="or is not readable for uid 12345"):
                mounts.binds([f"{source}:/x"], [prepared], account)
        os.chown(code.parent, 0, 12345)
        code.parent.chmod(0o750)
        assert mounts.binds([f"{code}:/x"], [prepared], account) == [f"{code}:/x"]


def spec(**fields: Any) -> RankSpec:
    request = {"job_id": 1, "attempt": 1, "rank": 0, "ranks": 1, "name": "t", "argv": ["true"], "image": "ubuntu"}
    return RankSpec(**{**request, **fields})


def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Config, **fields: Any) -> dict[str, Any]:
    from gpusched.agent.isolation import cgroup_base

    monkeypatch.setattr(config, "current", lambda: settings)
    node_isolation = Confinement(cgroup_base.Lookup(None, ""), "", "", True, 0o077)
    return job_spec(tmp_path, spec(**fields), "node", node_isolation)


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[Dockerd]:
    with Dockerd(tmp_path / "docker") as running:
        yield running


def of(docker: Dockerd) -> Config:
    return Config(runtimes={"docker": Runtime((str(docker.path),))})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"image": "-v/:/host"}, "not a valid image name"),
        ({"runtime": "podman"}, "this node has no podman that can run image ubuntu; it has docker"),
        ({"image": "/images/a.sif"}, "this node has no container runtime that can run image /images/a.sif"),
        ({"mounts": ["/etc:/etc"]}, "mount /etc:/etc is not allowed on this node; allowed: nothing"),
        ({"environment": {"A": "1\n2"}}, "the value of A has a line break"),
        ({"environment": {"A": "é" * 33_000}}, "A has more than 64 KiB, which docker cannot pass to a container"),
    ],
)
def test_container_refusal_explains_the_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Dockerd, fields: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "rank").mkdir()
    assert sentence in prepared(tmp_path / "rank", monkeypatch, of(docker), **fields)["unfit"]


def test_image_and_request_cannot_add_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Dockerd) -> None:
    (tmp_path / "rank").mkdir()
    prepared(tmp_path / "rank", monkeypatch, of(docker), environment={"NVIDIA_VISIBLE_DEVICES": "all"})
    text = (tmp_path / "rank" / "container.env").read_text()
    assert "NVIDIA_VISIBLE_DEVICES=void\n" in text and "=all" not in text
    assert "HOME=" not in text, "what is of this machine stays here"


def test_runtime_that_does_not_answer_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("#!/bin/sh\necho 27.1; exit 1\n")
    (tmp_path / "broken").chmod(0o755)
    assert runtimes.version("docker", Runtime((f"{tmp_path}/broken",))) is None
    assert runtimes.version("podman", Runtime((f"{tmp_path}/none",))) is None
    (tmp_path / "podman").write_text("#!/bin/sh\necho podman version 5.2.1-rc1\n")
    (tmp_path / "podman").chmod(0o755)
    assert runtimes.version("podman", Runtime((f"{tmp_path}/podman",))) == "5.2.1-rc1"


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (125, "docker: Error response from daemon: manifest unknown: manifest unknown.", "image_missing"),
        (125, "Error: localhost/x:1: image not known", "image_missing"),
        (125, "Error: choosing an image from manifest list docker://x: no image found", "image_missing"),
        (125, "Error: initializing image from source docker://x: invalid character '<'", "image_missing"),
        (125, "Error: parsing image configuration: Error fetching blob: 404 (Not Found)", "image_missing"),
        (125, "Error: reading blob sha256:93f6: Error fetching blob: 500", "image_missing"),
        (125, "Error: writing blob: storing blob to file: happened during read: unexpected EOF", "image_missing"),
        (
            125,
            "Unable to find image 'x' locally\n" + "93f6: Waiting\n" * 999 + "docker: unexpected EOF",
            "image_missing",
        ),
        (255, "FATAL:   could not open image /images/a.sif: no such file or directory", "image_missing"),
        (125, "docker: Error response from daemon: no such device", None),
        (1, "train.py: manifest unknown", None),
    ],
)
def test_missing_image_needs_the_runtimes_exit_code_and_error(
    tmp_path: Path, code: int, output: str, expected: str | None
) -> None:
    (tmp_path / "log").write_text(output)
    assert failure_class.container_class(str(tmp_path / "log"), code) == expected


# --- a daemon's containers ---


@pytest.fixture
def start(agent: Agent, docker: Dockerd, tmp_path: Path) -> Callable[[], object]:
    settings = f'allow_root = true\n[runtimes.docker]\ncommand = ["{docker.path}"]\n'
    (tmp_path / "agent.toml").write_text(settings)
    return lambda: agent.start(environment={"GPUSCHED_AGENT_CONFIG": f"{tmp_path}/agent.toml"})


def test_exit_code_of_a_container_is_the_jobs_and_no_value_is_in_a_command_line(
    start: Callable[[], object], control: Control, docker: Dockerd
) -> None:
    """A56"""
    key = control.run("sh", "-c", "echo $LR $GPUSCHED_RANK; exit 3", image="ubuntu", environment={"LR": "hunter2"})
    start()
    assert (control.end_of(key).exit_code, control.ended[key][0].reason) == (3, "exited")
    eventually(lambda: control.logs.get(key) == b"hunter2 0\n", 5, "the log")
    assert all("hunter2" not in word for call in docker.calls for word in call)
    assert "LR" not in docker.runs[0][1]


def test_container_is_stopped_through_its_runtime(
    start: Callable[[], object], control: Control, docker: Dockerd, tmp_path: Path
) -> None:
    """A36: TERM once, KILL after the grace, and the container is removed before the end is reported."""
    script = f"trap 'echo told' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    key = control.run("sh", "-c", script, image="ubuntu")
    start()
    eventually(lambda: (tmp_path / "ready").exists(), 20, "the job to be ready")
    control.stop(key, grace_seconds=1)
    assert control.end_of(key).reason == "cancelled"
    assert docker.containers == {}
    signals = [call[2] for call in docker.calls if call[0] == "kill"]
    assert signals[:2] == ["TERM", "KILL"]
    eventually(lambda: control.logs.get(key, b"").count(b"told") == 1, 5, "one SIGTERM in the log")


def test_container_is_removed_when_client_and_supervisor_are_killed(
    start: Callable[[], object], agent: Agent, control: Control, docker: Dockerd
) -> None:
    """A34: it is no descendant of the supervisor, but no process of it is left when the end is reported."""
    key = control.run("sleep", "60", image="ubuntu")
    start()
    pid = control.start_of(key).pid
    eventually(lambda: docker.containers, 10, "the container")
    [name] = docker.containers
    assert re.fullmatch("gpusched-1-1-0-[0-9a-f]{12}", name), "another agent's job 1 has another"
    container = docker.containers[name].pid
    for process in (*supervisors(agent.directory), pid):
        os.kill(process, 9)
    assert control.end_of(key).reason == "supervisor_lost"
    assert not is_alive(container)
    assert ["rm", "--force", name] in docker.calls


def test_refused_mount_ends_the_attempt(start: Callable[[], object], control: Control) -> None:
    key = control.run("true", image="ubuntu", mounts=["/etc:/etc:ro"])
    start()
    end = control.end_of(key)
    assert (end.reason, end.started_at) == ("launch_failed", None)
    assert end.detail == "mount /etc:/etc:ro is not allowed on this node; allowed: nothing"


def test_runtime_that_does_not_answer_is_a_node_fault(agent: Agent, control: Control, tmp_path: Path) -> None:
    """The server placed the job while the daemon was up: it must run elsewhere, or later."""
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "agent.toml").write_text(f"allow_root = true\n[runtimes.docker]\ncommand = ['{tmp_path}/docker']\n")
    key = control.run("true", image="ubuntu", runtime="docker")
    agent.start(environment={"GPUSCHED_AGENT_CONFIG": f"{tmp_path}/agent.toml"})
    end = control.end_of(key)
    assert (end.reason, end.detail) == ("node_fault", "docker is on this node, but does not answer")


def test_node_reports_its_runtimes(start: Callable[[], object], control: Control) -> None:
    start()
    eventually(lambda: control.joins, 10, "the node to join")
    assert json.loads(json.dumps(control.joins[0].facts.runtimes)) == {"docker": "27.1.2"}
