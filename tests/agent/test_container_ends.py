"""A container's own end decides its rank's end, whatever happens to the attached client."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpusched.agent.containers import watch
from tests.agent.conftest import Agent, supervisors
from tests.agent.control import Control, eventually
from tests.agent.dockerd import Dockerd
from tests.processes import is_alive

# Says that it is ready, and ends when it may.
WAIT = "touch {0}/ready; while [ ! -e {0}/go ]; do sleep 0.05; done; echo later; exit 5"


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[Dockerd]:
    with Dockerd(tmp_path / "docker") as running:
        yield running


@pytest.fixture
def start(agent: Agent, docker: Dockerd, tmp_path: Path) -> Callable[[], object]:
    config = f'allow_root = true\n[runtimes.docker]\ncommand = ["{docker.path}"]\n'
    (tmp_path / "agent.toml").write_text(config)
    return lambda: agent.start(environment={"GPUSCHED_AGENT_CONFIG": f"{tmp_path}/agent.toml"})


def waiting(control: Control, home: Path) -> str:
    """A job that is ready, in its container."""
    key = control.run("sh", "-c", WAIT.format(home), image="ubuntu", max_runtime_seconds=600)
    eventually(lambda: (home / "ready").exists(), 20, "the job to be ready")
    return key


def test_killed_client_is_replaced_and_the_container_decides_the_end(
    start: Callable[[], object], control: Control, docker: Dockerd, tmp_path: Path
) -> None:
    start()
    key = waiting(control, tmp_path)
    os.kill(control.start_of(key).pid, 9)
    container = docker.only()
    eventually(lambda: len(container.attached) == 2, 20, "another client")
    assert not control.ended
    (tmp_path / "go").touch()
    end = control.end_of(key)
    assert (end.reason, end.exit_code, end.signal) == ("exited", 5, None)
    eventually(lambda: b"later" in control.logs.get(key, b""), 5, "what it printed since")
    assert control.logs[key].startswith(b"[gpusched: the client of the container was lost")
    assert docker.containers == {}, "nor is its name taken for ever"


def test_job_is_stopped_when_its_client_was_killed(
    start: Callable[[], object], control: Control, docker: Dockerd, tmp_path: Path
) -> None:
    start()
    key = waiting(control, tmp_path)
    os.kill(control.start_of(key).pid, 9)
    eventually(lambda: any(call[0] == "attach" for call in docker.calls), 20, "another client")
    container = docker.only()
    control.stop(key, grace_seconds=1)
    assert control.end_of(key).reason == "cancelled"
    assert not is_alive(container.pid) and docker.containers == {}


def test_rank_does_not_end_while_the_daemon_is_down(
    start: Callable[[], object], agent: Agent, control: Control, docker: Dockerd, tmp_path: Path
) -> None:
    """A34: its devices are offered only when the daemon says that the container is gone."""
    start()
    key = waiting(control, tmp_path)
    container = docker.only()
    docker.is_away = True
    os.kill(control.start_of(key).pid, 9)
    (tmp_path / "go").touch()
    eventually(lambda: not is_alive(container.pid) or container.code is not None, 10, "the container to end")
    call_count = len(docker.calls)
    eventually(lambda: len(docker.calls) > call_count + 2, 30, "the daemon to be asked again")
    assert not control.ended and len(supervisors(agent.directory)) == 1
    docker.is_away = False
    end = control.end_of(key)
    assert (end.reason, end.exit_code) == ("exited", 5), "and how it ended was not forgotten meanwhile"


def test_container_removed_with_its_client_is_a_node_fault(
    start: Callable[[], object], control: Control, docker: Dockerd, tmp_path: Path
) -> None:
    start()
    key = waiting(control, tmp_path)
    docker.only()
    docker.is_away = True
    os.kill(control.start_of(key).pid, 9)
    docker._rm(["rm", *docker.containers])
    docker.is_away = False
    end = control.end_of(key)
    assert (end.reason, end.detail) == (
        "node_fault", "the container's client ended by signal 9, and no container is left to ask for its exit code"
    )  # fmt: skip


def test_container_out_of_memory_is_reported_as_host_oom(
    start: Callable[[], object], control: Control, docker: Dockerd, tmp_path: Path
) -> None:
    start()
    key = waiting(control, tmp_path)
    container = docker.only()
    container.is_out_of_memory = True
    container.process.kill()
    end = control.end_of(key)
    assert (end.exit_code, end.exit_class) == (137, "host_oom")


@pytest.mark.parametrize("code", [125, 255])
@pytest.mark.parametrize("message", ["failed to retrieve the data", "docker: Cannot connect to the Docker daemon"])
def test_words_of_a_job_are_not_taken_for_its_runtimes(
    start: Callable[[], object], control: Control, code: int, message: str
) -> None:
    start()
    key = control.run("sh", "-c", f"echo '{message}'; exit {code}", image="ubuntu")
    end = control.end_of(key)
    assert (end.reason, end.exit_code, end.exit_class, end.detail) == ("exited", code, None, None)


def test_container_that_was_never_created_does_not_delay_the_end(
    start: Callable[[], object], control: Control, docker: Dockerd
) -> None:
    start()
    eventually(lambda: control.joins, 20, "the node to join")
    docker.is_away = True
    key = control.run("true", image="ubuntu")
    end = control.end_of(key)
    assert end.reason == "node_fault" and "Cannot connect to the Docker daemon" in (end.detail or "")


def test_client_that_ends_well_without_a_container_completes_no_job(
    agent: Agent, control: Control, tmp_path: Path
) -> None:
    """As podman does that gets a SIGTERM while it fetches the image."""
    (tmp_path / "podman").write_text("#!/bin/sh\n[ $1 = run ] || echo podman version 4.3.1\n")
    (tmp_path / "podman").chmod(0o755)
    (tmp_path / "agent.toml").write_text(f"allow_root = true\n[runtimes.podman]\ncommand = ['{tmp_path}/podman']\n")
    agent.start(environment={"GPUSCHED_AGENT_CONFIG": f"{tmp_path}/agent.toml"})
    end = control.end_of(control.run("true", image="ubuntu"))
    assert end.reason == "node_fault" and "before it had started the container" in (end.detail or "")


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("running 0 false ", watch.State("running")),
        ("paused 0 false ", watch.State("running")),
        ("exited 137 true ", watch.State("ended", 137, True)),
        ("created 128 false no such program", watch.State("unstarted", error="no such program")),
        ("exited 127 false exec: x: not found", watch.State("ended", 127, False, "exec: x: not found")),
    ],
)
def test_state_parses_the_runtimes_answer(tmp_path: Path, output: str, expected: watch.State) -> None:
    (tmp_path / "docker").write_text(f"#!/bin/sh\necho '{output}'\n")
    (tmp_path / "docker").chmod(0o755)
    spec = {"container": {"name": "x", "command": [f"{tmp_path}/docker"]}, "environment": {"PATH": os.defpath}}
    assert watch.state(spec) == expected
