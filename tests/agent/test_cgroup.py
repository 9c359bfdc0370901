"""A cgroup per rank: killed as a whole, its limits and what it counts; by the real kernel as far as this one allows."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpusched.agent.isolation import cgroup
from gpusched.agent.rank_files import rank_dir
from tests.agent.conftest import Agent, supervisors
from tests.agent.control import Control, eventually
from tests.processes import is_alive

FOUND = cgroup.find()
needs_cgroups = pytest.mark.skipif(FOUND.base is None, reason=f"no cgroup2 of one's own here: {FOUND.reason}")
CONTROLLERS = FOUND.base.controllers if FOUND.base else ()
needs_memory = pytest.mark.skipif(
    "memory" not in CONTROLLERS, reason="the kernel here gives cgroup2 no memory controller, so no limit can be tried"
)
# Leaves nothing by which it could be found but its cgroup: a session of its own, no environment, no parent of ours.
HIDE = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.wait()
import time
time.sleep(600)
"""


def group_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text().partition("0::")[2].split("\n")[0]


def rank_group(agent: Agent, key: str) -> str:
    spec = rank_dir.read(agent.ranks / key, rank_dir.SPEC)
    assert spec is not None
    return str(spec["cgroup"]["path"])


@needs_cgroups
def test_a_rank_lives_in_a_group_of_its_own_and_its_supervisor_does_not(
    agent: Agent, control: Control, tmp_path: Path
) -> None:
    key = control.run("sleep", "600")
    agent.start()
    pid = control.start_of(key).pid
    group = rank_group(agent, key)
    assert group.endswith(group_of(pid)) and group_of(pid) != group_of(os.getpid())
    assert [group_of(one) for one in supervisors(agent.directory)] == [group_of(os.getpid())]
    facts = control.joins[0].facts
    assert facts.isolation is not None and facts.isolation.cgroup
    assert [limit for limit in facts.isolation.limits if limit not in ("devices", "tmp")] == list(CONTROLLERS)
    control.stop(key)
    assert control.end_of(key).signal == 15
    assert not os.path.exists(group)


@needs_cgroups
def test_what_hides_from_a_killed_supervisor_is_found_by_its_group(
    agent: Agent, control: Control, tmp_path: Path
) -> None:
    """A34: its environment emptied, in a session of its own, no ancestor of ours left."""
    key = control.run(sys.executable, "-c", HIDE, str(tmp_path / "pid"))
    agent.start()
    eventually(lambda: (tmp_path / "pid").exists(), 10, "the hidden process")
    hidden = int((tmp_path / "pid").read_text())
    group = rank_group(agent, key)
    for pid in supervisors(agent.directory):
        os.kill(pid, signal.SIGKILL)
    assert control.end_of(key).reason == "supervisor_lost"
    assert not is_alive(hidden)
    assert not os.path.exists(group)


@needs_cgroups
def test_what_has_left_its_group_is_killed_at_its_limit_all_the_same(agent: Agent, control: Control) -> None:
    move = f'echo $$ > {cgroup.home_group()}/cgroup.procs && echo moved; trap "" TERM; while :; do sleep 0.1; done'
    key = control.run("sh", "-c", move, max_runtime_seconds=1, grace_seconds=0)
    agent.start()
    pid = control.start_of(key).pid
    end = control.end_of(key, 8)
    assert (end.reason, end.signal, control.logs.get(key)) == ("time_limit", 9, b"moved\n")
    assert not is_alive(pid)


@needs_cgroups
def test_empty_groups_of_long_ago_are_swept(tmp_path: Path) -> None:
    assert FOUND.base is not None
    base = f"{FOUND.base.path}/test-sweep-{os.getpid()}"
    stale, used, fresh, other = (f"{base}/{name}" for name in ("a" * 32, "b" * 32, "c" * 32, "other"))
    child = subprocess.Popen(["sleep", "600"])
    try:
        for group in (base, stale, f"{stale}/below", used, fresh, other):
            cgroup.make(group, {})
        Path(f"{used}/cgroup.procs").write_text(str(child.pid))
        for group in (stale, used, other):
            os.utime(group, (0, 0))
        cgroup.sweep(base)
        assert [os.path.exists(group) for group in (stale, used, fresh, other)] == [False, True, True, True]
    finally:
        child.kill()
        child.wait()
        cgroup.remove(base)


@needs_cgroups
def test_a_group_is_killed_at_once_and_removed_with_those_below_it(tmp_path: Path) -> None:
    assert FOUND.base is not None
    group = f"{FOUND.base.path}/test-{os.getpid()}"
    cgroup.make(group, {})
    os.mkdir(f"{group}/below")
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        Path(f"{group}/below/cgroup.procs").write_text(str(child.pid))
        assert cgroup.is_populated(group)
        assert cgroup.kill(group)
        assert child.wait(5) == -signal.SIGKILL
        assert cgroup.remove(group) and not os.path.exists(group)
        assert not cgroup.kill(group) and not cgroup.is_populated(group)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()


@needs_cgroups
@needs_memory
def test_a_rank_beyond_its_memory_is_killed_as_a_whole_and_says_so(agent: Agent, control: Control) -> None:
    key = control.run(sys.executable, "-c", "x = b'x' * (1 << 28)", memory_mb=64)
    agent.start()
    end = control.end_of(key)
    assert (end.signal, end.exit_class, end.peak_memory_of) == (9, "host_oom", "rank")
    assert end.peak_memory_mb is not None and 50 <= end.peak_memory_mb <= 65


def test_without_a_counter_the_peak_is_that_of_the_largest_process_and_says_so(agent: Agent, control: Control) -> None:
    if "memory" in CONTROLLERS:
        pytest.skip("the kernel counts the memory of the whole rank here")
    key = control.run(sys.executable, "-c", "x = b'x' * (100 << 20)")
    agent.start()
    end = control.end_of(key)
    assert end.peak_memory_of == "process"
    assert end.peak_memory_mb is not None and 100 <= end.peak_memory_mb < 150


# --- the protocol of the files, where the kernel has no such controllers ----------------------------------------------


def test_limits_are_those_that_the_kernel_keeps_and_the_job_asked_for() -> None:
    every = cgroup.limits(("memory", "cpu", "pids"), cpu_cores=2.5, memory_mb=1024)
    assert every == {
        "memory.max": "1073741824",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cpu.weight": "250",
        "pids.max": "16384",
    }
    assert cgroup.limits((), 2.5, 1024) == {}
    assert cgroup.limits(("memory", "cpu"), 0, 0) == {"cpu.weight": "1"}
    assert cgroup.limits(("cpu",), 5000, 0) == {"cpu.weight": "10000"}


def test_the_owner_of_a_node_may_make_cpu_a_ceiling() -> None:
    assert cgroup.limits(("cpu",), 2.5, 0, has_ceiling=True) == {"cpu.weight": "250", "cpu.max": "250000 100000"}
    assert cgroup.limits(("cpu",), 0.001, 0, has_ceiling=True)["cpu.max"] == "1000 100000", "as little as there can be"
    assert "cpu.max" not in cgroup.limits(("cpu",), 0, 0, has_ceiling=True), "who asked for none has no ceiling"
    assert cgroup.limits(("memory",), 2.5, 0, has_ceiling=True) == {}


def test_limits_are_written_before_anything_runs_in_the_group(tmp_path: Path) -> None:
    group = str(tmp_path / "rank")
    cgroup.make(group, {"memory.max": "1048576", "pids.max": "7"})
    cgroup.enter(group)
    assert {path.name: path.read_text() for path in (tmp_path / "rank").iterdir()} == {
        "memory.max": "1048576", "pids.max": "7", "cgroup.procs": "0",
    }  # fmt: skip


def test_a_limit_that_cannot_be_kept_is_told_but_for_swap(tmp_path: Path) -> None:
    (tmp_path / "rank" / "memory.swap.max").mkdir(parents=True)
    cgroup.make(str(tmp_path / "rank"), {"memory.swap.max": "0"})
    (tmp_path / "rank" / "memory.max").mkdir()
    with pytest.raises(OSError, match=r"memory\.max"):
        cgroup.make(str(tmp_path / "rank"), {"memory.max": "1"})


def test_what_a_group_counted_is_read(tmp_path: Path) -> None:
    assert (cgroup.oom_kills(str(tmp_path)), cgroup.peak_memory_mb(str(tmp_path))) == (None, None)
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 1\n")
    (tmp_path / "memory.peak").write_text("1048577\n")
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert (cgroup.oom_kills(str(tmp_path)), cgroup.peak_memory_mb(str(tmp_path))) == (2, 2)
    assert cgroup.is_populated(str(tmp_path))


def machine(tmp_path: Path, mounts: str, own: str) -> str:
    (tmp_path / "proc" / "self").mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc" / "self" / "mounts").write_text(mounts)
    (tmp_path / "proc" / "self" / "cgroup").write_text(own)
    return str(tmp_path / "proc")


def test_a_service_with_a_delegated_subgroup_puts_ranks_beside_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = tmp_path / "fs" / "system.slice" / "gpusched-agent.service"
    (service / "agent").mkdir(parents=True)
    (service / "cgroup.subtree_control").write_text("")
    own = "0::/system.slice/gpusched-agent.service/agent\n"
    proc = machine(tmp_path, f"proc /proc proc rw 0 0\ncgroup2 {tmp_path}/fs cgroup2 rw 0 0\n", own)
    # Plain files do not let go of a process as the kernel does: this is told, and they are not relied on.
    assert cgroup.find(proc=proc) == cgroup.Lookup(None, f"{service} lets no process leave")
    monkeypatch.setattr(cgroup, "_can_move", lambda base, proc: True)
    found = cgroup.find(proc=proc)
    assert found.base is not None and found.base.path == str(service)
    assert (service / "cgroup.subtree_control").read_text() == "+pids", "each controller by itself, the last one here"


@pytest.mark.parametrize(("others", "is_used"), [("", True), ("\n1\n", False)])
def test_a_scope_is_used_if_it_was_made_for_the_agent_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: str, is_used: bool
) -> None:
    scope = tmp_path / "fs" / "user.slice" / "run-1.scope"
    scope.mkdir(parents=True)
    (scope / "cgroup.procs").write_text(f"{os.getpid()}{others}")
    proc = machine(tmp_path, f"cgroup2 {tmp_path}/fs cgroup2 rw 0 0\n", "0::/user.slice/run-1.scope\n")
    monkeypatch.setattr(cgroup, "_can_move", lambda base, proc: True)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    found = cgroup.find(proc=proc)
    assert (scope / "agent" / "cgroup.procs").exists() == is_used
    if is_used:
        assert found.base is not None and found.base.path == str(scope)
    else:
        assert found == cgroup.Lookup(None, "no cgroup is delegated to this user")


@pytest.mark.parametrize(
    ("wanted", "mounts", "words"),
    [
        ("off", "", "switched off"),
        ("auto", "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n", "no cgroup2 file system is mounted"),
        ("/no/such/place", "", "/no/such/place: No such file or directory"),
    ],
)
def test_without_cgroups_it_says_why(tmp_path: Path, wanted: str, mounts: str, words: str) -> None:
    found = cgroup.find(wanted, proc=machine(tmp_path, mounts, "0::/\n"))
    assert found.base is None and words in found.reason
