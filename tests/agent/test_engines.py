"""Jobs in containers of a real podman and of a real docker."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent import engines
from tests.agent.conftest import Agent, supervisors
from tests.agent.control import Control, eventually
from tests.agent.engines import Engine, names
from tests.agent.test_rank_life import seconds_between
from tests.processes import is_alive

pytestmark = pytest.mark.e2e
# Nothing else on the machine sleeps for as long.
SLEEP = ("sleep", "4711")


@pytest.fixture(scope="session", params=["podman", "docker"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    # The path of podman's run root has at most 50 characters, and pytest's own directories are longer in its workers.
    with tempfile.TemporaryDirectory(prefix="engine-", dir="/tmp", ignore_cleanup_errors=True) as home:
        with engines.working(request.param, Path(home)) as running:
            yield running


@pytest.fixture
def start(agent: Agent, engine: Engine, tmp_path: Path) -> Callable[[], object]:
    """Starts the agent of a node that has this engine, and lets `tmp_path/data` be mounted."""
    name, command, arguments, _ = engine
    (tmp_path / "data").mkdir()
    (tmp_path / "agent.toml").write_text(
        f"allow_root = true\nmounts = ['{tmp_path}/data']\n"
        f"[runtimes.{name}]\ncommand = {json.dumps(command)}\narguments = {json.dumps(arguments)}\n"
    )
    return lambda: agent.start(environment={"GPUSCHED_AGENT_CONFIG": str(tmp_path / "agent.toml")})


def run(control: Control, *argv: str, **fields: Any) -> str:
    return control.run(*argv, **{"image": engines.IMAGE, "cpu_cores": 0.5, "memory_mb": 256, **fields})


def log_of(control: Control, key: str) -> str:
    end = control.end_of(key)
    eventually(lambda: len(control.logs.get(key, b"")) == end.log_bytes, 5, "the log")
    return control.logs.get(key, b"").decode()


def test_job_runs_in_its_image_and_reports_its_exit_code(
    start: Callable[[], object], agent: Agent, control: Control, engine: Engine
) -> None:
    key = run(control, "sh", "-c", 'ls /; echo "$LR"; pwd; exit "$1"', "sh", "7", workdir="/etc",
              environment={"LR": 'a "b" $c  # d', "PATH": "/bin:/own"})  # fmt: skip
    script = run(control, "one", job=2, script="#!/bin/sh\necho $0 $1; echo $PATH", environment={"PATH": "/bin:/own"})
    start()
    end = control.end_of(key)
    assert (end.reason, end.exit_code, end.signal) == ("exited", 7, None)
    text = log_of(control, key)
    assert "busybox" not in text and 'a "b" $c  # d\n/etc\n' in text
    assert log_of(control, script).splitlines() == [f"{agent.ranks}/2.1.0/script one", "/bin:/own"]
    assert names(engine.command) == [], "nothing of it is left"
    assert control.joins[0].facts.runtimes.keys() == {engine.name}


def test_values_of_variables_are_in_no_command_line_or_runtime_environment(
    start: Callable[[], object], agent: Agent, control: Control
) -> None:
    """A56: whoever lists processes sees names alone; what a job sets does not steer the engine, which runs as the agent."""
    key = run(control, *SLEEP, environment={"TOKEN": "hunter2", "CONTAINERS_CONF": "/own"})
    start()
    control.start_of(key)
    container = eventually_container()
    for pid in (container, *supervisors(agent.directory), *descendants(supervisors(agent.directory))):
        assert b"hunter2" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    client = Path(f"/proc/{control.started[key].pid}/environ").read_bytes()
    assert b"hunter2" not in client and b"CONTAINERS_CONF" not in client
    assert b"TOKEN=hunter2" in Path(f"/proc/{container}/environ").read_bytes()
    assert b"j1.token" not in Path(f"/proc/{container}/environ").read_bytes()


def descendants(pids: list[int]) -> list[int]:
    from gpusched.agent import processes

    return [below for pid in pids for below in processes.descendants(pid)]


def eventually_container() -> int:
    """The process of `sleep` in the container. Docker's is no child of the supervisor."""
    found: list[int] = []

    def is_there() -> bool:
        found.extend(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _argv(pid) == list(SLEEP))
        return bool(found)

    eventually(is_there, 20, "the container")
    return found[0]


def _argv(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except (OSError, UnicodeDecodeError):
        return []


def test_container_that_ignores_term_is_killed_after_the_grace_and_sees_the_notice(
    start: Callable[[], object], control: Control, engine: Engine, tmp_path: Path
) -> None:
    """A36 in a container."""
    script = (
        'trap "echo told; cat $GPUSCHED_PREEMPT_FILE" TERM; touch $GPUSCHED_CHECKPOINT_FILE; touch /data/ready; '
        "while :; do sleep 0.1; done"
    )
    key = run(control, "sh", "-c", script, mounts=[f"{tmp_path}/data:/data"])
    start()
    eventually(lambda: (tmp_path / "data" / "ready").exists(), 20, "the job to be ready")
    eventually(lambda: control.syncs and control.syncs[-1].saved.get(key), 5, "the checkpoint to be reported")
    control.stop(key, reason="preempted", grace_seconds=1)
    end = control.end_of(key)
    text = log_of(control, key)
    assert text.count("told") == 1, "one SIGTERM, not one from each process above it"
    notice = json.loads(text.partition("told")[2])
    assert notice["reason"] == "preempted"
    assert 0 <= seconds_between(notice["deadline_at"], end.at) < 10
    assert end.reason == "preempted" and names(engine.command) == []


def test_time_limit_ends_a_container(start: Callable[[], object], control: Control, engine: Engine) -> None:
    key = run(control, "sh", "-c", "echo $GPUSCHED_DEADLINE; sleep 60", max_runtime_seconds=1, grace_seconds=1)
    start()
    assert control.end_of(key).reason == "time_limit"
    assert log_of(control, key).startswith("20") and names(engine.command) == []


def test_container_outlives_its_agent_and_ends_with_its_supervisor(
    start: Callable[[], object], agent: Agent, control: Control, engine: Engine
) -> None:
    """A31: the next agent adopts it; when the supervisor is killed, the agent removes the container by its name."""
    key = run(control, *SLEEP)
    start()
    control.start_of(key)
    container = eventually_container()
    agent.kill()
    [name] = names(engine.command)
    assert name.startswith("gpusched-1-1-0-")
    start()
    eventually(lambda: key in control.syncs[-1].running, 10, "the container to be adopted")
    assert is_alive(container)
    for pid in supervisors(agent.directory):
        os.kill(pid, 9)
    assert control.end_of(key).reason == "supervisor_lost"
    assert not is_alive(container) and names(engine.command) == []


def test_end_of_a_client_does_not_end_its_container(
    start: Callable[[], object], control: Control, engine: Engine, tmp_path: Path
) -> None:
    """A34: another client is attached, and the exit code and the rest of the output are the container's."""
    script = "while [ ! -e /data/go ]; do echo tick; sleep 0.1; done; echo later; exit 5"
    key = run(control, "sh", "-c", script, mounts=[f"{tmp_path}/data:/data"])
    start()
    # The job may run a moment before the engine has written down that it does; a client killed until then has started none.
    eventually(lambda: names(engine.command, "--filter", "status=running"), 20, "the container to run")
    os.kill(control.start_of(key).pid, 9)
    eventually(lambda: b"tick" in control.logs.get(key, b"").partition(b"was lost")[2], 30, "another client")
    (tmp_path / "data" / "go").touch()
    end = control.end_of(key)
    assert (end.reason, end.exit_code, end.signal) == ("exited", 5, None)
    assert "later" in log_of(control, key) and names(engine.command) == []


def test_container_without_its_monitor_is_a_fault_of_the_node(
    start: Callable[[], object], control: Control, engine: Engine
) -> None:
    """Without it podman shows the container as running for ever, and cannot report its exit code."""
    if engine.name != "podman":
        pytest.skip("docker has no monitor")
    key = run(control, "sleep", "60")
    start()
    eventually(lambda: names(engine.command, "--filter", "status=running"), 20, "the container to run")
    asked = [*engine.command, "inspect", "--format", "{{.State.ConmonPid}} {{.State.Pid}}", *names(engine.command)]
    monitor, container = map(int, subprocess.check_output(asked).split())
    os.kill(monitor, 9)
    end = control.end_of(key)
    assert end.reason == "node_fault" and "conmon" in (end.detail or "")
    assert not is_alive(container) and names(engine.command) == []


def test_container_that_docker_stops_with_its_daemon_is_a_fault_of_the_node(
    start: Callable[[], object], control: Control, engine: Engine
) -> None:
    """Also one that handles SIGTERM and exits with 0: its job has not completed."""
    if engine.name != "docker":
        pytest.skip("podman has no daemon")
    killed = run(control, *SLEEP)
    handles = run(control, "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done", job=2)
    start()
    eventually(lambda: len(names(engine.command, "--filter", "status=running")) == 2, 20, "the containers to run")
    engine.restart()
    for key, code in ((killed, 143), (handles, 0)):
        end = control.end_of(key, 30)
        assert (end.reason, end.exit_code) == ("node_fault", code)
        assert "docker's daemon was stopped" in (end.detail or "")
    assert names(engine.command) == []


def test_container_has_only_the_rights_of_its_user(start: Callable[[], object], control: Control) -> None:
    script = "cat /proc/self/status; mount -t tmpfs none /tmp || echo refused"
    key = run(control, "sh", "-c", script)
    start()
    text = log_of(control, key)
    assert "CapEff:\t0000000000000000" in text and "NoNewPrivs:\t1" in text and "refused" in text


def test_container_has_the_umask_of_jobs(start: Callable[[], object], control: Control, engine: Engine) -> None:
    """Other users of the node must not read what the job writes to a mount. Docker has no option for it."""
    key = run(control, "sh", "-c", "umask")
    start()
    assert log_of(control, key) == {"podman": "0077\n", "docker": "0022\n"}[engine.name]


def test_gang_starts_where_the_config_names_the_network(start: Callable[[], object], control: Control) -> None:
    """The arguments of the node's config have a network, and a gang uses that of its node."""
    key = run(control, "echo", "started", ranks=2, master_port=20_000)
    start()
    assert control.end_of(key).exit_code == 0
    assert log_of(control, key) == "started\n"


def test_missing_image_has_its_own_exit_class(start: Callable[[], object], control: Control) -> None:
    key = run(control, "true", image="localhost/gpusched-no-such:1")
    start()
    end = control.end_of(key)
    assert (end.reason, end.exit_code, end.exit_class) == ("exited", 125, "image_missing")


def test_gpu_that_the_runtime_does_not_find_is_a_fault_of_the_node(
    start: Callable[[], object], control: Control
) -> None:
    key = run(control, "true", device_uuids=["GPU-11111111-2222-3333-4444-555555555555"])
    start()
    end = control.end_of(key)
    assert end.reason == "node_fault" and "device" in (end.detail or "")


def test_read_only_mount_cannot_be_written(start: Callable[[], object], control: Control, tmp_path: Path) -> None:
    key = run(control, "sh", "-c", "touch /data/x", mounts=[f"{tmp_path}/data:/data:ro"])
    start()
    assert control.end_of(key).exit_code == 1
    assert "Read-only file system" in log_of(control, key)


def test_secrets_are_files_in_the_container_and_no_variables(
    start: Callable[[], object], agent: Agent, control: Control
) -> None:
    """A56"""
    script = "cat $GPUSCHED_SECRETS_DIR/WANDB; echo; env; touch $GPUSCHED_SECRETS_DIR/x || echo kept"
    key = run(control, "sh", "-c", script, secrets={"WANDB": "hunter2"})
    start()
    text = log_of(control, key)
    # The words of touch come by another stream, sometimes earlier or later.
    assert "hunter2\n" in text and text.count("hunter2") == 1 and "kept\n" in text


def test_container_runs_as_the_jobs_user(start: Callable[[], object], control: Control) -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    body = "#!/bin/sh\nid -u; id -g; touch $GPUSCHED_CHECKPOINT_FILE && echo saved"
    key = run(control, script=body, user="daemon")
    start()
    assert log_of(control, key).split() == ["1", "1", "saved"]
