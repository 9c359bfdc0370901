"""A rank runs as its configured user, without the agent's rights or secrets, and cannot access its control files."""

import json
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.agent import processes
from gpusched.agent.isolation.unix_user import AccountError, resolve_user
from tests.agent.conftest import Agent, supervisors
from tests.agent.control import Control, eventually

USER = "nobody"  # an ordinary user to the kernel, and there on every Linux
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
REFUSING = {"GPUSCHED_AGENT_ALLOW_ROOT": "false"}


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory that other users can pass, as below /var/lib; pytest's directories are closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="gpusched-agent-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def agent(directory: Path, agent: Agent) -> Agent:
    agent.directory = directory / "agent"
    return agent


def log_of(control: Control, key: str) -> str:
    eventually(lambda: len(control.logs.get(key, b"")) >= control.end_of(key).log_bytes, 5, "the log")
    return control.logs[key].decode()


@needs_root
def test_rank_runs_as_the_user_of_its_tenant(agent: Agent, control: Control) -> None:
    script = (
        "#!/bin/sh\nid -un; id -G; umask; pwd; echo $HOME $USER $LOGNAME; touch $TMPDIR/x && stat -c %a:%U $TMPDIR/x"
    )
    key = control.run(script=script, user=USER)
    agent.start(environment=REFUSING)
    assert control.end_of(key).exit_code == 0
    output = log_of(control, key).splitlines()
    entry = pwd.getpwnam(USER)
    home = entry.pw_dir if os.path.isdir(entry.pw_dir) else "/"
    groups = " ".join(map(str, sorted(os.getgrouplist(USER, entry.pw_gid))))
    assert output == [USER, groups, "0077", home, f"{home} {USER} {USER}", f"600:{USER}"]


@needs_root
def test_default_user_runs_jobs_without_a_tenant_user(agent: Agent, control: Control) -> None:
    key = control.run("id", "-un")
    agent.start(environment={**REFUSING, "GPUSCHED_AGENT_DEFAULT_USER": USER, "GPUSCHED_AGENT_UMASK": "027"})
    assert log_of(control, key) == f"{USER}\n"
    key = control.run("sh", "-c", "umask", job=2)
    assert log_of(control, key) == "0027\n"


@needs_root
def test_job_accesses_its_notice_and_checkpoint_but_no_control_file(agent: Agent, control: Control) -> None:
    """A36 for another user: its notice has the deadline, and it is stopped."""
    script = """
        cd "$(dirname "$GPUSCHED_PREEMPT_FILE")" || exit 9
        for file in spec.json lock started.json output.log; do cat $file 2>/dev/null && echo read $file; done
        for file in spec.json stop.json exit.json lock output.log preempt.json; do
            echo x 2>/dev/null > $file && echo wrote $file; rm -f $file 2>/dev/null && echo removed $file; done
        ls 2>/dev/null && echo listed
        cd ../.. 2>/dev/null; cat identity.json 2>/dev/null && echo read the credential
        touch "$GPUSCHED_CHECKPOINT_FILE" && echo saved
        trap 'cat "$GPUSCHED_PREEMPT_FILE"; exit 0' TERM
        echo ready; while :; do sleep 0.05; done"""
    key = control.run("sh", "-c", script, user=USER)
    idle = control.run("sleep", "60", user=USER, job=2)
    agent.start(environment=REFUSING)
    log = agent.ranks / key / "output.log"
    eventually(lambda: log.exists() and "ready" in log.read_text(), 10, "the job to be ready")
    control.start_of(idle)
    # The file is there from the start, so that another user can touch it; that is no time of the job's.
    assert (agent.ranks / idle / "checkpoint").stat().st_uid == pwd.getpwnam(USER).pw_uid
    eventually(lambda: list(control.syncs[-1].saved) == [key], 10, "the checkpoint of the rank that saved")
    control.stop(key, "preempted")
    assert control.end_of(key).exit_code == 0
    lines = log_of(control, key).splitlines()
    # `rm -f` of what is not there succeeds and changes nothing.
    assert [line for line in lines if not line.startswith(("{", "Terminated"))] == [
        "removed stop.json", "removed exit.json", "removed preempt.json", "saved", "ready",
    ]  # fmt: skip
    assert json.loads(lines[-1])["reason"] == "preempted"


@needs_root
def test_refused_user_is_a_node_fault_with_a_sentence(agent: Agent, control: Control) -> None:
    expected = {
        "no-such-user": "there is no Unix user no-such-user on the node",
        "root": "root is root; choose another unix_user",
        "daemon": "daemon is a system user (uid 1)",
        "": "neither the tenant nor the node names the job's user",
    }
    keys = {control.run("true", user=user, job=number): user for number, user in enumerate(expected, 1)}
    agent.start(environment=REFUSING)
    for key, user in keys.items():
        end = control.end_of(key)
        assert (end.reason, end.started_at, end.log_bytes) == ("no_account", None, 0)
        assert end.detail is not None and expected[user] in end.detail


@needs_root
def test_program_or_workdir_closed_to_the_user_is_the_jobs_failure(
    agent: Agent, control: Control, directory: Path
) -> None:
    closed = directory / "closed"
    closed.mkdir(mode=0o700)
    program = control.run("/no/such/program", user=USER, job=1)
    place = control.run("true", user=USER, workdir=str(closed), job=2)
    agent.start(environment=REFUSING)
    ends = [control.end_of(key) for key in (program, place)]
    assert [end.reason for end in ends] == ["launch_failed"] * 2
    assert ends[0].detail == "/no/such/program: No such file or directory"
    assert ends[1].detail == f"workdir {closed}: Permission denied"


def test_allow_root_allows_root_and_system_users() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start processes of other users")
    assert resolve_user("", "", True) is None and resolve_user("root", "", True) is None
    account = resolve_user("", "daemon", True)
    assert account is not None and account.uid == 1


def test_agent_that_is_not_root_cannot_change_users(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = pwd.getpwnam("daemon")
    monkeypatch.setattr(os, "geteuid", lambda: daemon.pw_uid)
    assert resolve_user("", "", False) is None and resolve_user("daemon", "", False) is None
    with pytest.raises(AccountError, match="runs as daemon and cannot become nobody"):
        resolve_user(USER, "", True)


def environ(pid: int) -> dict[str, str]:
    job_process = processes.inspect(pid)
    assert job_process is not None
    return job_process.environment


@pytest.mark.parametrize("user", ["", pytest.param(USER, marks=needs_root)])
def test_environment_of_children_contains_no_secret_of_the_agent(agent: Agent, control: Control, user: str) -> None:
    """A56: of a job exactly what it was given; neither does its supervisor have what the job's user could read there."""
    key = control.run("sleep", "60", user=user, environment={"LR": "0.1"})
    process = agent.start(
        environment={"GPUSCHED_DATABASE_URL": "postgres://top-secret", "AWS_SECRET_ACCESS_KEY": "top-secret"}
    )
    variables = environ(control.start_of(key).pid)
    assert set(variables) <= {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "TMPDIR", "LR",
        "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPUSCHED_JOB_ID", "GPUSCHED_ATTEMPT",
        "GPUSCHED_RANK", "GPUSCHED_RANKS", "GPUSCHED_NODE", "GPUSCHED_SCOPE", "GPUSCHED_PREEMPT_FILE",
        "GPUSCHED_CHECKPOINT_FILE", "GPUSCHED_DEADLINE_FILE", "GPUSCHED_SOCKET_DIR", "",
    }  # fmt: skip
    for pid in (*supervisors(agent.directory), *processes.descendants(process.pid)):
        output = " ".join(f"{name}={value}" for name, value in environ(pid).items())
        assert "top-secret" not in output and "j1.token" not in output


@pytest.mark.parametrize("user", ["", pytest.param(USER, marks=needs_root)])
def test_sockets_fit_into_the_directory_for_temporary_files(agent: Agent, control: Control, user: str) -> None:
    """However long the path of the rank's directory is: PyTorch's DataLoader hangs without them."""
    agent.directory /= "long" * 15
    script = "import multiprocessing.connection as m; m.Listener(family='AF_UNIX'); print('bound')"
    key = control.run("/usr/bin/python3", "-c", script, user=user)
    agent.start()
    assert control.end_of(key).exit_code == 0


def test_temporary_files_are_removed_when_the_job_ends(agent: Agent, control: Control) -> None:
    control.is_acknowledging = False
    key = control.run("sh", "-c", 'mkdir -p "$TMPDIR/a/b"; ln -s /etc "$TMPDIR/a/etc"; touch "$TMPDIR/a/b/c"')
    agent.start()
    assert control.end_of(key).exit_code == 0
    assert not (agent.ranks / key / "tmp").exists()
    assert os.path.exists("/etc/passwd")
