"""The command lines of container runtimes, what a node refuses, and jobs whose container is no child of anybody here."""

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


def test_docker_gets_gpus_by_uuid_limits_the_user_and_no_rights() -> None:
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


def test_podman_gets_gpus_as_cdi_devices_and_maps_the_user_as_the_agent_may(monkeypatch: pytest.MonkeyPatch) -> None:
    for euid, expected in ((0, ("--user", "1001:1002")), (1001, ("--userns", "keep-id"))):
        monkeypatch.setattr(os, "geteuid", lambda euid=euid: euid)
        argv = command_lines.podman(["podman"], BOX)
        assert expected in pairs(argv)
        assert {("--device", "nvidia.com/gpu=GPU-a"), ("--device", "nvidia.com/gpu=GPU-b")} <= pairs(argv)
        assert "--gpus" not in argv


def test_apptainer_gets_the_driver_only_with_gpus_and_knows_images_of_registries() -> None:
    from dataclasses import replace

    argv = command_lines.apptainer(["apptainer"], BOX)
    assert argv[:4] == ["apptainer", "exec", "--containall", "--env-file"]
    assert "--nv" in argv and {("--bind", "/data:/data:ro"), ("--pwd", "/work")} <= pairs(argv)
    assert argv[-4:] == ["docker://ghcr.io/team/train:1", "python", "train.py", "--x"]
    assert "/i.sif" in command_lines.apptainer(["apptainer"], replace(BOX, image="/i.sif"))
    assert "--nv" not in command_lines.apptainer(["apptainer"], replace(BOX, devices=[]))


def test_cpu_is_a_ceiling_where_the_nodes_owner_says_so() -> None:
    from dataclasses import replace

    for build in (command_lines.docker, command_lines.podman):
        assert "--cpus" not in build(["x"], BOX)
        assert ("--cpus", "8") in pairs(build(["x"], replace(BOX, has_ceiling=True)))


def test_a_fork_bomb_in_docker_ends_at_the_limit_of_every_rank() -> None:
    assert ("--pids-limit", "16384") in pairs(command_lines.docker(["docker"], BOX))


def test_ranks_of_a_gang_share_the_network_of_their_nodes() -> None:
    from dataclasses import replace

    for build in (command_lines.docker, command_lines.podman):
        assert ("--network", "host") in pairs(build(["x"], replace(BOX, ranks=2)))


def test_the_owner_of_a_node_has_arguments_of_his_own_before_the_image() -> None:
    from dataclasses import replace

    argv = command_lines.docker(["docker"], replace(BOX, arguments=["--ulimit", "memlock=-1"]))
    assert argv.index("memlock=-1") < argv.index("--entrypoint")


# --- what a node refuses ---


def test_mounts_are_those_of_the_allow_list_with_links_followed(tmp_path: Path) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"
    for place in (data / "set", kept):
        place.mkdir(parents=True)
    (data / "out").symlink_to("/etc")
    allowed = [f"{data}:ro", str(kept)]
    assert mounts.binds([f"{data}/set:/in", f"{kept}:/out:rw", f"{kept}:/o:ro"], allowed) == [
        f"{data}/set:/in:ro", f"{kept}:/out", f"{kept}:/o:ro"
    ]  # fmt: skip
    for refused in ("/etc:/etc", f"{data}/out:/etc", f"{data}:/in:rw", f"{data}-2:/x", f"{tmp_path}:/x"):
        with pytest.raises(mounts.NotAllowed, match=f"mount {refused} is not allowed .*; allowed: {data}:ro, {kept}"):
            mounts.binds([refused], allowed)
    with pytest.raises(mounts.NotAllowed, match="allowed: nothing"):
        mounts.binds(["/data:/data"], [])
    with pytest.raises(mounts.NotAllowed, match="does not exist"):
        mounts.binds([f"{kept}/none:/x"], allowed)


@pytest.mark.parametrize("name", ["a,", "a\n", "a:b"])
def test_a_path_that_a_runtime_would_split_is_refused(tmp_path: Path, name: str) -> None:
    """A link with a plain name may lead there."""
    (tmp_path / name / "etc").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / name / "etc")
    with pytest.raises(mounts.NotAllowed, match="a colon, comma or line break"):
        mounts.binds([f"{tmp_path}/link:/x"], [str(tmp_path)])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_what_is_closed_to_the_user_outside_cannot_be_mounted() -> None:
    """Docker follows the path as root, and nothing in the container would close it again."""
    account = {"uid": 12345, "gid": 12345, "groups": [12345]}
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        top, code = Path(made), Path(made) / "alice" / "code"
        code.mkdir(parents=True)
        top.chmod(0o755)
        assert mounts.binds([f"{code}:/x"], [made], account) == [f"{code}:/x"]
        code.parent.chmod(0o700)
        for source in (code, code / "none"):
            with pytest.raises(mounts.NotAllowed, match="or is not readable for uid 12345"):
                mounts.binds([f"{source}:/x"], [made], account)
        os.chown(code.parent, 0, 12345)
        code.parent.chmod(0o750)
        assert mounts.binds([f"{code}:/x"], [made], account) == [f"{code}:/x"]


def spec(**fields: Any) -> RankSpec:
    whole = {"job_id": 1, "attempt": 1, "rank": 0, "ranks": 1, "name": "t", "argv": ["true"], "image": "ubuntu"}
    return RankSpec(**{**whole, **fields})


def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Config, **fields: Any) -> dict[str, Any]:
    from gpusched.agent.isolation import cgroup

    monkeypatch.setattr(config, "current", lambda: told)
    how = Confinement(cgroup.Lookup(None, ""), "", "", True, 0o077)
    return job_spec(tmp_path, spec(**fields), "node", how)


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[Dockerd]:
    with Dockerd(tmp_path / "docker") as running:
        yield running


def of(docker: Dockerd) -> Config:
    return Config(runtimes={"docker": Runtime((str(docker.path),))})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"image": "-v/:/host"}, "not a valid image name"),
        ({"runtime": "podman"}, "this node has no podman that can run image ubuntu; it has docker"),
        ({"image": "/images/a.sif"}, "this node has no container runtime that can run image /images/a.sif"),
        ({"mounts": ["/etc:/etc"]}, "mount /etc:/etc is not allowed on this node; allowed: nothing"),
        ({"environment": {"A": "1\n2"}}, "the value of A has a line break"),
    ],
)
def test_what_cannot_be_run_in_a_container_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Dockerd, fields: dict[str, Any], words: str
) -> None:
    (tmp_path / "rank").mkdir()
    assert words in made(tmp_path / "rank", monkeypatch, of(docker), **fields)["unfit"]


def test_no_job_gets_gpus_by_what_its_image_or_its_request_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Dockerd
) -> None:
    (tmp_path / "rank").mkdir()
    made(tmp_path / "rank", monkeypatch, of(docker), environment={"NVIDIA_VISIBLE_DEVICES": "all"})
    text = (tmp_path / "rank" / "container.env").read_text()
    assert "NVIDIA_VISIBLE_DEVICES=void\n" in text and "=all" not in text
    assert "HOME=" not in text, "what is of this machine stays here"


def test_a_runtime_that_does_not_answer_is_not_there(tmp_path: Path) -> None:
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
        (255, "FATAL:   could not open image /images/a.sif: no such file or directory", "image_missing"),
        (125, "docker: Error response from daemon: no such device", None),
        (1, "train.py: manifest unknown", None),
    ],
)
def test_only_the_runtimes_own_code_and_words_say_that_an_image_is_missing(
    tmp_path: Path, code: int, output: str, expected: str | None
) -> None:
    (tmp_path / "log").write_text(output)
    assert failure_class.container_class(str(tmp_path / "log"), code) == expected


# --- a daemon's containers ---


@pytest.fixture
def start(agent: Agent, docker: Dockerd, tmp_path: Path) -> Callable[[], object]:
    told = f'allow_root = true\n[runtimes.docker]\ncommand = ["{docker.path}"]\n'
    (tmp_path / "agent.toml").write_text(told)
    return lambda: agent.start(environment={"GPUSCHED_AGENT_CONFIG": f"{tmp_path}/agent.toml"})


def test_the_exit_code_of_a_container_is_the_jobs_and_no_value_stands_in_a_command_line(
    start: Callable[[], object], control: Control, docker: Dockerd
) -> None:
    """A56"""
    key = control.run("sh", "-c", "echo $LR $GPUSCHED_RANK; exit 3", image="ubuntu", environment={"LR": "hunter2"})
    start()
    assert (control.end_of(key).exit_code, control.ended[key][0].reason) == (3, "exited")
    eventually(lambda: control.logs.get(key) == b"hunter2 0\n", 5, "the log")
    assert all("hunter2" not in word for call in docker.calls for word in call)
    assert "LR" not in docker.runs[0][1]


def test_a_container_is_stopped_through_its_runtime(
    start: Callable[[], object], control: Control, docker: Dockerd, tmp_path: Path
) -> None:
    """A36: TERM once, KILL after the grace, and the container is gone before the end is told."""
    script = f"trap 'echo told' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    key = control.run("sh", "-c", script, image="ubuntu")
    start()
    eventually(lambda: (tmp_path / "ready").exists(), 20, "the job to be ready")
    control.stop(key, grace_seconds=1)
    assert control.end_of(key).reason == "cancelled"
    assert docker.containers == {}
    signals = [call[2] for call in docker.calls if call[0] == "kill"]
    assert signals[:2] == ["TERM", "KILL"]
    eventually(lambda: control.logs.get(key, b"").count(b"told") == 1, 5, "one SIGTERM to be told")


def test_a_container_whose_client_and_supervisor_are_killed_is_removed(
    start: Callable[[], object], agent: Agent, control: Control, docker: Dockerd
) -> None:
    """A34: it is no descendant of the supervisor, and yet nothing of it is left when the end is told."""
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


def test_the_refusal_of_a_mount_is_the_end_of_the_attempt(start: Callable[[], object], control: Control) -> None:
    key = control.run("true", image="ubuntu", mounts=["/etc:/etc:ro"])
    start()
    end = control.end_of(key)
    assert (end.reason, end.started_at) == ("launch_failed", None)
    assert end.detail == "mount /etc:/etc:ro is not allowed on this node; allowed: nothing"


def test_the_node_says_which_runtimes_it_has(start: Callable[[], object], control: Control) -> None:
    start()
    eventually(lambda: control.joins, 10, "the node to join")
    assert json.loads(json.dumps(control.joins[0].facts.runtimes)) == {"docker": "27.1.2"}
