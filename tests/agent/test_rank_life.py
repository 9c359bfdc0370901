"""One rank on one node: it starts once, keeps its limits, stops, and leaves nothing behind."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from gpusched.agent import processes
from gpusched.agent.rank_files import rank_dir
from gpusched.agent.ranks.journal import Journal
from gpusched.agent.ranks.launcher import Launcher
from gpusched.agent.supervisor import supervisor
from gpusched.protocol.agent_messages import RankSpec, Started
from tests.agent.conftest import Agent, supervisors
from tests.agent.control import Control, eventually
from tests.processes import is_alive
from tests.waiting import assert_stays

pytestmark = pytest.mark.long

DAEMONISE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
    time.sleep(0.01)
"""


def seconds_between(first: str, second: str) -> float:
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()


def test_rank_runs_and_reports_its_end(agent: Agent, control: Control) -> None:
    key = control.run("sh", "-c", "echo out; echo err >&2; exit 3")
    agent.start()
    end = control.end_of(key)
    assert (end.reason, end.exit_code, end.signal) == ("exited", 3, None)
    assert end.started_at is not None and seconds_between(end.started_at, end.at) >= 0
    assert end.log_bytes == 8 and end.peak_memory_mb is not None
    eventually(lambda: control.logs.get(key) == b"out\nerr\n", 5, "the log")
    eventually(lambda: not list(agent.ranks.iterdir()), 5, "the rank to be forgotten")


def test_rank_starts_once_when_ordered_ten_times(agent: Agent, control: Control, tmp_path: Path) -> None:
    """A30. The control plane of the tests repeats each order twice with every answer."""
    key = control.run("sh", "-c", f"echo ran >> {tmp_path}/ran; sleep 1")
    agent.start()
    control.end_of(key)
    syncs_before = len(control.syncs)
    eventually(lambda: len(control.syncs) > syncs_before + 5, 10, "more orders after the end")
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert {report.pid for sync in control.syncs for report in sync.reports if isinstance(report, Started)} == {
        control.started[key].pid
    }


def test_report_that_the_server_cannot_write_is_repeated_once_per_heartbeat(agent: Agent, control: Control) -> None:
    control.is_acknowledging, control.error = False, "not all of it could be written"
    key = control.run("true")
    agent.start()
    control.end_of(key)
    before = len(control.syncs)
    assert_stays(lambda: len(control.syncs) - before <= 15, 1)  # the heartbeat is 0.1 s


def test_order_after_the_end_is_ignored_even_after_a_restart(agent: Agent, control: Control, tmp_path: Path) -> None:
    """A30: a message that was overtaken by the end of what it orders."""
    key = control.run("sh", "-c", f"echo ran >> {tmp_path}/ran")
    agent.start()
    control.end_of(key)
    eventually(lambda: not list(agent.ranks.iterdir()), 5, "the rank to be forgotten")
    agent.kill()
    agent.start()
    syncs_before = len(control.syncs)
    eventually(lambda: len(control.syncs) > syncs_before + 3, 10, "more orders")
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_start_is_reported_again_over_a_new_connection(agent: Agent, control: Control) -> None:
    """A85: a backup from just before a start has the rank as assigned, and would count it as never started."""
    key = control.run("sleep", "60")
    agent.start()
    reported = control.start_of(key)
    eventually(lambda: control.syncs[-1].running and not control.syncs[-1].reports, 10, "the start to be acknowledged")
    control.started.clear()
    control.restart()
    assert control.start_of(key).pid == reported.pid


def test_stop_before_the_start_prevents_it(agent: Agent, control: Control) -> None:
    key = control.run("sleep", "60")
    order = control.orders[key]
    control.stop(key)
    agent.start()
    end = control.end_of(key)
    assert (end.reason, end.started_at, end.exit_code) == ("cancelled", None, None)
    control.orders[key] = order
    syncs_before = len(control.syncs)
    eventually(lambda: len(control.syncs) > syncs_before + 3, 10, "more orders")
    assert key not in control.started


def test_stop_sends_notice_term_and_kill_to_all_processes(agent: Agent, control: Control, tmp_path: Path) -> None:
    """A36: the notice file has the deadline, TERM reaches all, what ignores it is killed after the grace."""
    script = (
        f"trap 'cat $GPUSCHED_PREEMPT_FILE > {tmp_path}/notice' TERM; sh -c 'trap \"\" TERM; sleep 60' & "
        f"echo $! > {tmp_path}/child; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    )
    key = control.run("sh", "-c", script)
    agent.start()
    eventually(lambda: (tmp_path / "ready").exists(), 10, "the job to be ready")
    child = int((tmp_path / "child").read_text())
    control.stop(key, grace_seconds=1)
    end = control.end_of(key)
    assert (end.reason, end.signal) == ("cancelled", 9)
    assert not is_alive(child)
    notice = json.loads((tmp_path / "notice").read_text())
    assert notice["reason"] == "cancelled"
    assert -0.2 < seconds_between(notice["deadline_at"], end.at) < 1.0


def test_rank_that_handles_term_ends_at_once(agent: Agent, control: Control) -> None:
    key = control.run("sleep", "60")
    agent.start()
    control.start_of(key)
    began = time.monotonic()
    control.stop(key, grace_seconds=30)
    assert control.end_of(key).signal == 15
    assert time.monotonic() - began < 10


def test_time_limit_ends_the_rank(agent: Agent, control: Control) -> None:
    """A36."""
    key = control.run("sh", "-c", 'trap "" TERM; while :; do sleep 0.05; done', max_runtime_seconds=1, grace_seconds=1)
    agent.start()
    end = control.end_of(key)
    assert (end.reason, end.signal) == ("time_limit", 9)
    assert end.started_at is not None and 1.9 < seconds_between(end.started_at, end.at) < 5


def test_rank_without_a_time_limit_is_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the supervisor has waited for an event."""
    monkeypatch.setattr(supervisor, "MAX_WAIT_SECONDS", 0.05)
    spec = RankSpec(job_id=1, attempt=1, rank=0, ranks=1, name="test", argv=["sh", "-c", "sleep 0.5; exit 4"])
    directory = Journal(tmp_path, rank_dir.boot_id()).prepare("1.1.0", spec, "node")
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.SIGNALS)
        supervisor.run(str(directory), f"{tmp_path}/doorbell", None)
        os._exit(0)
    os.waitpid(pid, 0)
    end = rank_dir.read(directory, rank_dir.EXIT)
    assert end is not None
    assert (end["reason"], end["exit_code"]) == ("exited", 4)


def test_supervisor_ends_with_its_job_when_its_directory_is_removed(tmp_path: Path) -> None:
    spec = RankSpec(job_id=1, attempt=1, rank=0, ranks=1, name="test", argv=["sh", "-c", f"rm -rf {tmp_path}/ranks"])
    directory = Journal(tmp_path, rank_dir.boot_id()).prepare("1.1.0", spec, "node")
    if (pid := os.fork()) == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.SIGNALS)
        supervisor.run(str(directory), f"{tmp_path}/doorbell", None)
        os._exit(0)
    eventually(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, 10, "the supervisor to end")


@pytest.mark.parametrize("emptied", [rank_dir.STARTED, rank_dir.LOCK])
def test_rank_with_files_emptied_by_a_power_cut_ends_as_rebooted(
    agent: Agent, control: Control, tmp_path: Path, emptied: str
) -> None:
    key = control.run("sh", "-c", f"echo ran >> {tmp_path}/ran; exec sleep 600")
    agent.start()
    pid = control.start_of(key).pid
    agent.kill()
    for process in (*supervisors(agent.directory), pid):
        os.kill(process, signal.SIGKILL)
    eventually(lambda: not is_alive(pid), 5, "the job to be gone")
    spec = rank_dir.read(agent.ranks / key, rank_dir.SPEC)
    assert spec is not None
    rank_dir.write(agent.ranks / key, rank_dir.SPEC, {**spec, "boot_id": "the boot before"})
    (agent.ranks / key / emptied).write_text("")
    agent.start()
    assert control.end_of(key).reason == "node_rebooted"
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_error_for_a_huge_command_is_short(agent: Agent, control: Control) -> None:
    key = control.run("x" * 200_000)
    agent.start()
    end = control.end_of(key)
    assert end.reason == "launch_failed"
    assert end.detail is not None and len(end.detail) <= 500


def test_no_process_is_left_when_the_end_is_reported(agent: Agent, control: Control, tmp_path: Path) -> None:
    """A34: a daemonised grandchild in a session of its own is dead before the end is reported."""
    import sys

    key = control.run(sys.executable, "-c", DAEMONISE, str(tmp_path / "pid"))
    agent.start()
    end = control.end_of(key)
    assert (end.reason, end.exit_code) == ("exited", 0)
    assert not is_alive(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("argv", "fields", "sentence"),
    [
        (["/no/such/program"], {}, "/no/such/program: No such file or directory"),
        (["true"], {"workdir": "/no/such/place"}, "workdir /no/such/place: No such file or directory"),
        (["/etc/passwd"], {}, "/etc/passwd: Permission denied"),
        ([], {"script": "#!/no/such/shell\necho"}, "No such file or directory"),
    ],
)
def test_failed_start_reports_its_reason(
    agent: Agent, control: Control, argv: list[str], fields: dict[str, Any], sentence: str
) -> None:
    key = control.run(*argv, **fields)
    agent.start()
    end = control.end_of(key)
    assert (end.reason, end.exit_code, end.started_at) == ("launch_failed", None, None)
    assert end.detail is not None and sentence in end.detail


def test_environment_of_a_job_is_as_documented(agent: Agent, control: Control) -> None:
    """A job gets its own variables and its GPUs, and none of the agent's secrets."""
    script = "#!/bin/sh\nenv | sort; echo args $1; pwd"
    key = control.run(
        "first", script=script, workdir="/tmp", environment={"LR": "0.1"}, device_uuids=["GPU-1", "GPU-2"]
    )
    agent.start(environment={"GPUSCHED_DATABASE_URL": "postgres://secret"})
    control.end_of(key)
    eventually(lambda: b"/tmp\n" in control.logs.get(key, b""), 5, "the log")
    text = control.logs[key].decode()
    for line in ("LR=0.1", "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2", "GPUSCHED_JOB_ID=1", "GPUSCHED_ATTEMPT=1",
                 "GPUSCHED_NODE=node-a", "GPUSCHED_RANKS=1", "args first", "/tmp"):  # fmt: skip
        assert f"{line}\n" in text
    assert "secret" not in text and "j1.token" not in text


def test_script_is_utf8_whatever_the_locale_of_the_agent(agent: Agent, control: Control) -> None:
    """Else one that the locale cannot encode counts as a fault of the node."""
    agent.start(environment={"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"})
    key = control.run(script="#!/bin/sh\n[ 'ü→' = \"$(printf '\\303\\274\\342\\206\\222')\" ]\n")
    assert control.end_of(key).exit_code == 0


def test_job_without_gpus_sees_none(agent: Agent, control: Control) -> None:
    key = control.run("sh", "-c", 'echo "[$CUDA_VISIBLE_DEVICES]"')
    agent.start()
    control.end_of(key)
    eventually(lambda: control.logs.get(key) == b"[]\n", 5, "the log")


def test_many_nodes_share_one_launcher(tmp_path: Path) -> None:
    """Each launches from its own thread, all at the same moment; jobs that belong to the launcher must not lose it."""
    launcher = Launcher(tmp_path / "doorbell", own_jobs=True)
    ready = Barrier(16)
    command = ["sh", "-c", "sleep 0.3"]

    def launch(number: int) -> Path:
        spec = RankSpec(job_id=number, attempt=1, rank=0, ranks=1, name="test", argv=command)
        directory = Journal(tmp_path / str(number), rank_dir.boot_id()).prepare(f"{number}.1.0", spec, "node")
        ready.wait()
        launcher.launch(directory)
        return directory

    with ThreadPoolExecutor(16) as pool:
        directories = list(pool.map(launch, range(16)))
    try:
        eventually(lambda: all((rank / rank_dir.EXIT).exists() for rank in directories), 20, "all ends")
        assert {fact["reason"] for rank in directories if (fact := rank_dir.read(rank, rank_dir.EXIT))} == {"exited"}
    finally:
        launcher.close()


def test_strays_are_found_by_scope_and_by_a_session_that_is_still_theirs() -> None:
    """A pid, and so a session, may be another's after a while."""
    import subprocess

    children = [
        subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True)
        for environment in ({"GPUSCHED_SCOPE": "0123abcd"}, {})
    ]
    marked, other = (child.pid for child in children)
    try:
        eventually(lambda: processes.strays("0123abcd") == [marked], 5, "the stray")
        start = processes.start_of(other)
        assert start is not None
        assert processes.kill_strays("0123abcd", (other, start - 1)) == [marked], "another process had that number"
        assert children[0].wait(5) == -9
        assert is_alive(other)
        assert processes.kill_strays("0123abcd", (other, start)) == [other]
        assert children[1].wait(5) == -9
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert processes.strays("0123abcd") == []


def test_agent_inside_a_job_does_not_kill_itself() -> None:
    import subprocess
    import sys

    code = "from gpusched.agent import processes; print(processes.kill_strays('ab12'))"
    result = subprocess.run(
        [sys.executable, "-c", code], env={"GPUSCHED_SCOPE": "ab12"}, capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
