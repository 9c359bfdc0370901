"""Kill anything at any moment: exactly one run, no orphan, and a correct report afterwards."""

import os
import random
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpusched.agent import processes
from gpusched.agent.rank_files import rank_dir
from gpusched.agent.rank_files.rank_dir import SCOPE_VARIABLE
from gpusched.agent.supervisor import supervisor
from gpusched.protocol.agent_messages import RankSpec
from tests.agent.conftest import Agent, supervised, supervisors
from tests.agent.control import Control, eventually
from tests.agent.test_rank_life import seconds_between
from tests.processes import is_alive
from tests.waiting import until_random_moment

pytestmark = pytest.mark.long

ROUNDS = 9
JOBS = 6


def test_jobs_survive_a_sigkill_of_the_agent_at_any_moment(agent: Agent, control: Control, tmp_path: Path) -> None:
    """A31: through launch, run and finish of many jobs; each runs exactly once and ends exactly once."""
    chance = random.Random(31)
    ran = tmp_path / "ran"
    keys = []
    for round_ in range(ROUNDS):
        for number in range(JOBS):
            job = round_ * JOBS + number + 1
            keys.append(control.run("sh", "-c", f"echo {job} >> {ran}; sleep 0.{chance.randrange(10)}", job=job))
        agent.start()
        syncs_before = len(control.syncs)
        if round_ % 3:  # from the first message on: sometimes before it, mostly during the launches
            eventually(lambda: len(control.syncs) > syncs_before, 20, "the first message")  # noqa: B023
        until_random_moment(chance, 0, 0.5)
        agent.kill()
    agent.start()
    for key in keys:
        control.end_of(key)
    assert sorted(map(int, ran.read_text().split())) == list(range(1, ROUNDS * JOBS + 1))
    assert {(end.reason, end.exit_code) for ends in control.ended.values() for end in ends} == {("exited", 0)}
    assert all(len({end.at for end in ends}) == 1 for ends in control.ended.values())
    eventually(lambda: not list(agent.ranks.iterdir()), 10, "all ranks to be forgotten")


def test_job_outlives_its_agent_and_is_adopted(agent: Agent, control: Control) -> None:
    """A31: the same process; its end is reported with its true time although no agent ran."""
    long = control.run("sleep", "30", job=1)
    short = control.run("sh", "-c", "sleep 1; exit 7", job=2)
    agent.start()
    pid = control.start_of(long).pid
    control.start_of(short)
    agent.kill()
    eventually(lambda: (agent.ranks / short / "exit.json").exists(), 10, "the end without an agent")
    ended_by = datetime.now(UTC)
    eventually(lambda: datetime.now(UTC) > ended_by + timedelta(seconds=0.5), 10, "its end to be in the past")
    agent.start()
    end = control.end_of(short)
    assert (end.exit_code, end.reason) == (7, "exited")
    assert datetime.fromisoformat(end.at) <= ended_by
    assert is_alive(pid)
    eventually(lambda: long in control.syncs[-1].running, 10, "the long job to be adopted")
    control.stop(long)
    assert control.end_of(long).signal == 15


def test_jobs_continue_and_are_reported_after_an_outage_of_the_control_plane(agent: Agent, control: Control) -> None:
    """A32: ends in between are reported with their true time and code, and limits were enforced."""
    ends = control.run("sh", "-c", "sleep 0.5; exit 5", job=1)
    limited = control.run("sleep", "60", job=2, max_runtime_seconds=1)
    lasts = control.run("sleep", "60", job=3)
    agent.start()
    for key in (ends, limited, lasts):
        control.start_of(key)
    control.is_away = True
    for key in (ends, limited):
        eventually((agent.ranks / key / rank_dir.EXIT).exists, 10, "its end during the outage")
    began = datetime.now(UTC)
    eventually(lambda: datetime.now(UTC) > began + timedelta(seconds=1), 10, "these ends to be in the past")
    assert ends not in control.ended
    back_at = datetime.now(UTC).isoformat()
    control.is_away = False
    assert control.end_of(ends).exit_code == 5
    assert (control.end_of(limited).reason, control.end_of(limited).signal) == ("time_limit", 15)
    for key in (ends, limited):
        assert seconds_between(control.end_of(key).at, back_at) > 1
    assert lasts not in control.ended


def test_reports_are_repeated_until_they_are_acknowledged(agent: Agent, control: Control) -> None:
    """A32: also over a restart of the agent."""
    control.is_acknowledging = False
    key = control.run("true")
    agent.start()
    control.end_of(key)
    eventually(lambda: len(control.ended[key]) > 3, 10, "repetitions")
    agent.kill()
    reports_before = len(control.ended[key])
    agent.start()
    eventually(lambda: len(control.ended[key]) > reports_before, 10, "repetitions after the restart")
    assert len({end.at for end in control.ended[key]}) == 1
    control.is_acknowledging = True
    eventually(lambda: not list(agent.ranks.iterdir()), 10, "the rank to be forgotten")


def test_rank_ends_when_its_supervisor_is_killed(agent: Agent, control: Control, tmp_path: Path) -> None:
    """Its process and all descendants are killed, and only then is the end reported."""
    key = control.run("sh", "-c", f"setsid sleep 600 & echo $! > {tmp_path}/child; sleep 600")
    agent.start()
    pid = control.start_of(key).pid
    eventually(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text(), 5, "the child")
    [watcher] = supervisors(agent.directory)
    [scope] = agent.scopes()
    os.kill(watcher, signal.SIGKILL)
    end = control.end_of(key)
    assert (end.reason, end.exit_code) == ("supervisor_lost", None)
    assert end.started_at is not None
    assert not is_alive(pid) and not processes.strays(scope)


# Its first thread ends: then the kernel shows a zombie without an environment.
HEADLESS = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


def test_process_without_its_first_thread_is_found_and_killed() -> None:
    """A34: its other threads still compute after the end of its supervisor."""
    scope = os.urandom(16).hex()
    with subprocess.Popen([sys.executable, "-c", HEADLESS], env={**os.environ, SCOPE_VARIABLE: scope}) as process:
        eventually(lambda: b") Z " in Path(f"/proc/{process.pid}/stat").read_bytes(), 20, "its first thread to end")
        found = processes.kill_strays(scope)
        process.kill()
    assert found == [process.pid] and processes.strays(scope) == []


def test_launcher_is_replaced_when_it_is_killed(agent: Agent, control: Control) -> None:
    """Running jobs do not notice; the next job gets another launcher."""
    first = control.run("sleep", "60", job=1)
    process = agent.start()
    control.start_of(first)
    [launcher] = processes.children(process.pid)
    os.kill(launcher, signal.SIGKILL)
    second = control.run("true", job=2)
    assert control.end_of(second).exit_code == 0
    assert first not in control.ended


def test_ranks_end_and_do_not_restart_after_a_reboot(agent: Agent, control: Control) -> None:
    """Ranks of the previous boot are reported as ended by the reboot, with an end not before their start."""
    key = control.run("sleep", "60")
    agent.start()
    pid = control.start_of(key).pid
    agent.kill()
    [watcher] = supervisors(agent.directory)
    for process in (watcher, pid):  # a reboot takes both
        os.kill(process, signal.SIGKILL)
    eventually(lambda: not is_alive(pid), 5, "the job to be gone")
    assert rank_dir.try_lock(agent.ranks / key) == rank_dir.boot_id()
    (agent.ranks / key / rank_dir.LOCK).write_text("the boot before")
    agent.start()
    assert control.end_of(key).reason == "node_rebooted"


def test_job_that_a_shutdown_of_its_machine_ends_first_has_not_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shutdown sends SIGTERM to all processes. Here the job handles it, and exits with 0, before its supervisor does."""
    leave = supervisor._leave

    def leave_in_a_shutdown(rank: supervisor.Rank) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        leave(rank)

    monkeypatch.setattr(supervisor, "_leave", leave_in_a_shutdown)
    spec = RankSpec(job_id=1, attempt=1, rank=0, ranks=1, name="t", argv=["true"])
    directory = supervised(tmp_path, spec)
    end = rank_dir.read(directory, rank_dir.EXIT)
    assert end is not None and (end["reason"], end["exit_code"]) == ("agent_stopped", 0)


def test_own_jobs_end_with_the_agent(agent: Agent, control: Control) -> None:
    key = control.run("sleep", "60")
    process = agent.start("--own-jobs")
    pid = control.start_of(key).pid
    process.terminate()
    assert process.wait(20) == 0
    assert not is_alive(pid)
    assert control.end_of(key, 1).reason == "agent_stopped"


def test_own_jobs_end_when_the_agent_is_killed(agent: Agent, control: Control) -> None:
    key = control.run("sh", "-c", 'trap "" TERM; while :; do sleep 0.05; done')
    agent.start("--own-jobs")
    pid = control.start_of(key).pid
    agent.kill()
    eventually(lambda: not is_alive(pid), 10, "the job to be gone")
    eventually(lambda: not supervisors(agent.directory), 10, "its supervisor to be gone")
    agent.start("--own-jobs")
    assert control.end_of(key).reason == "agent_stopped"


def test_second_agent_in_a_directory_is_refused(agent: Agent, control: Control) -> None:
    agent.start()
    eventually(lambda: control.syncs, 20, "the first message")
    first = agent.process
    second = agent.start()
    assert second.wait(20) == 1
    agent.process = first


def test_same_directory_joins_as_the_same_node(agent: Agent, control: Control) -> None:
    """A33: the key that the server knows the node by is made once."""
    agent.start()
    eventually(lambda: control.syncs, 20, "the first message")
    agent.kill()
    agent.start("--url", f"{control.url}/")
    syncs_before = len(control.syncs)
    eventually(lambda: len(control.syncs) > syncs_before, 20, "a message after the restart")
    assert len({join.node_key for join in control.joins}) == 1


@pytest.mark.parametrize("is_known", [True, False])
def test_logs_are_complete_when_agent_and_server_are_killed(agent: Agent, control: Control, is_known: bool) -> None:
    """Output of a job that prints through two kills of its agent; what the server does not want is dropped."""
    key = control.run(
        "sh", "-c", "for i in $(seq 2000); do echo line $i; [ $((i % 100)) = 0 ] && sleep 0.1; done; true"
    )
    if not is_known:
        control.unknown.add(key)
    for part in (1, 2):
        agent.start()
        control.start_of(key)
        if is_known:
            eventually(lambda: len(control.logs.get(key, b"")) > part * 4000, 20, "a part of the log")  # noqa: B023
        agent.kill()
    agent.start()
    control.end_of(key)
    eventually(lambda: not list(agent.ranks.iterdir()), 10, "the rank to be forgotten")
    full_log = "".join(f"line {i}\n" for i in range(1, 2001)).encode()
    assert control.logs.get(key, b"") == (full_log if is_known else b"")
