"""A cgroup per rank: its end, its limits and its counters, by the real kernel as far as this one allows."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpusched.agent.isolation import cgroup, cgroup_base
from gpusched.agent.rank_files import rank_dir
from tests.agent.conftest import Agent, supervisors
from tests.agent.control import Control, eventually
from tests.processes import is_alive

LOOKUP = cgroup_base.find()
needs_cgroups = pytest.mark.skipif(LOOKUP.base is None, reason=f"no cgroup2 of one's own here: {LOOKUP.reason}")
CONTROLLERS = LOOKUP.base.controllers if LOOKUP.base else ()
needs_memory = pytest.mark.skipif(
    "memory" not in CONTROLLERS, reason="the kernel here gives cgroup2 no memory controller, so no limit can be tried"
)
# Leaves no trace but its cgroup: its own session, no environment, no parent of ours.
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
def test_rank_lives_in_its_own_cgroup_and_its_supervisor_does_not(
    agent: Agent, control: Control, tmp_path: Path
) -> None:
    key = control.run("sleep", "600")
    agent.start()
    pid = control.start_of(key).pid
    group = rank_group(agent, key)
    assert group.endswith(group_of(pid)) and group_of(pid) != group_of(os.getpid())
    assert [group_of(supervisor_pid) for supervisor_pid in supervisors(agent.directory)] == [group_of(os.getpid())]
    facts = control.joins[0].facts
    assert facts.isolation is not None and facts.isolation.cgroup
    assert [limit for limit in facts.isolation.limits if limit not in ("devices", "tmp")] == list(CONTROLLERS)
    control.stop(key)
    assert control.end_of(key).signal == 15
    assert not os.path.exists(group)


@needs_cgroups
def test_process_that_escaped_a_killed_supervisor_is_found_by_its_cgroup(
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
def test_process_outside_its_cgroup_is_killed_at_the_time_limit(agent: Agent, control: Control) -> None:
    move = f'echo $$ > {cgroup_base.home_group()}/cgroup.procs && echo moved; trap "" TERM; while :; do sleep 0.1; done'
    key = control.run("sh", "-c", move, max_runtime_seconds=1, grace_seconds=0)
    agent.start()
    pid = control.start_of(key).pid
    end = control.end_of(key, 8)
    assert (end.reason, end.signal, control.logs.get(key)) == ("time_limit", 9, b"moved\n")
    assert not is_alive(pid)


@needs_cgroups
def test_sweep_removes_old_empty_cgroups(tmp_path: Path) -> None:
    assert LOOKUP.base is not None
    base = f"{LOOKUP.base.path}/test-sweep-{os.getpid()}"
    stale, used, recent, other = (f"{base}/{name}" for name in ("a" * 32, "b" * 32, "c" * 32, "other"))
    child = subprocess.Popen(["sleep", "600"])
    try:
        for group in (base, stale, f"{stale}/below", used, recent, other):
            cgroup.make(group, {})
        Path(f"{used}/cgroup.procs").write_text(str(child.pid))
        for group in (stale, used, other):
            os.utime(group, (0, 0))
        cgroup_base.sweep(base)
        assert [os.path.exists(group) for group in (stale, used, recent, other)] == [False, True, True, True]
    finally:
        child.kill()
        child.wait()
        cgroup.remove(base)


@needs_cgroups
def test_cgroup_is_killed_at_once_and_removed_with_its_children(tmp_path: Path) -> None:
    assert LOOKUP.base is not None
    group = f"{LOOKUP.base.path}/test-{os.getpid()}"
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
def test_rank_beyond_its_memory_is_killed_completely_and_reported(agent: Agent, control: Control) -> None:
    key = control.run(sys.executable, "-c", "x = b'x' * (1 << 28)", memory_mb=64)
    agent.start()
    end = control.end_of(key)
    assert (end.signal, end.exit_class, end.peak_memory_of) == (9, "host_oom", "rank")
    assert end.peak_memory_mb is not None and 50 <= end.peak_memory_mb <= 65


def test_peak_memory_is_the_largest_process_when_no_cgroup_counts(agent: Agent, control: Control) -> None:
    if "memory" in CONTROLLERS:
        pytest.skip("the kernel counts the memory of the whole rank here")
    key = control.run(sys.executable, "-c", "x = b'x' * (100 << 20)")
    agent.start()
    end = control.end_of(key)
    assert end.peak_memory_of == "process"
    assert end.peak_memory_mb is not None and 100 <= end.peak_memory_mb < 150


# --- the protocol of the files, where the kernel has no such controllers ----------------------------------------------


def test_limits_are_those_enforced_by_the_kernel_and_requested_by_the_job() -> None:
    every = cgroup_base.limits(("memory", "cpu", "pids"), cpu_cores=2.5, memory_mb=1024)
    assert every == {
        "memory.max": "1073741824",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cpu.weight": "250",
        "pids.max": "16384",
    }
    assert cgroup_base.limits((), 2.5, 1024) == {}
    assert cgroup_base.limits(("memory", "cpu"), 0, 0) == {"cpu.weight": "1"}
    assert cgroup_base.limits(("cpu",), 5000, 0) == {"cpu.weight": "10000"}


def test_config_makes_cpu_a_ceiling() -> None:
    assert cgroup_base.limits(("cpu",), 2.5, 0, has_ceiling=True) == {"cpu.weight": "250", "cpu.max": "250000 100000"}
    assert cgroup_base.limits(("cpu",), 0.001, 0, has_ceiling=True)["cpu.max"] == "1000 100000", (
        "as little as there can be"
    )
    assert "cpu.max" not in cgroup_base.limits(("cpu",), 0, 0, has_ceiling=True), "who asked for none has no ceiling"
    assert cgroup_base.limits(("memory",), 2.5, 0, has_ceiling=True) == {}


def test_limits_are_written_before_a_process_enters_the_cgroup(tmp_path: Path) -> None:
    group = str(tmp_path / "rank")
    cgroup.make(group, {"memory.max": "1048576", "pids.max": "7"})
    cgroup.enter(group)
    assert {path.name: path.read_text() for path in (tmp_path / "rank").iterdir()} == {
        "memory.max": "1048576", "pids.max": "7", "cgroup.procs": "0",
    }  # fmt: skip


def test_unenforceable_limit_is_reported_except_for_swap(tmp_path: Path) -> None:
    (tmp_path / "rank" / "memory.swap.max").mkdir(parents=True)
    cgroup.make(str(tmp_path / "rank"), {"memory.swap.max": "0"})
    (tmp_path / "rank" / "memory.max").mkdir()
    with pytest.raises(OSError, match=r"memory\.max"):
        cgroup.make(str(tmp_path / "rank"), {"memory.max": "1"})


def test_counters_of_a_cgroup_are_read(tmp_path: Path) -> None:
    assert (cgroup.oom_kills(str(tmp_path)), cgroup.peak_memory_mb(str(tmp_path))) == (None, None)
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 1\n")
    (tmp_path / "memory.peak").write_text("1048577\n")
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert (cgroup.oom_kills(str(tmp_path)), cgroup.peak_memory_mb(str(tmp_path))) == (2, 2)
    assert cgroup.is_populated(str(tmp_path))


def machine(tmp_path: Path, mounts: str, own_group: str) -> str:
    (tmp_path / "proc" / "self").mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc" / "self" / "mounts").write_text(mounts)
    (tmp_path / "proc" / "self" / "cgroup").write_text(own_group)
    return str(tmp_path / "proc")


def test_delegated_subgroup_holds_ranks_beside_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = tmp_path / "fs" / "system.slice" / "gpusched-agent.service"
    (service / "agent").mkdir(parents=True)
    (service / "cgroup.subtree_control").write_text("")
    own_group = "0::/system.slice/gpusched-agent.service/agent\n"
    proc = machine(tmp_path, f"proc /proc proc rw 0 0\ncgroup2 {tmp_path}/fs cgroup2 rw 0 0\n", own_group)
    # Unlike the kernel, plain files do not release a process: find reports that, and does not rely on them.
    assert cgroup_base.find(proc=proc) == cgroup_base.Lookup(None, f"{service} lets no process leave")
    monkeypatch.setattr(cgroup_base, "_can_move", lambda base, proc: True)
    lookup = cgroup_base.find(proc=proc)
    assert lookup.base is not None and lookup.base.path == str(service)
    assert (service / "cgroup.subtree_control").read_text() == "+pids", "each controller by itself, the last one here"


@pytest.mark.parametrize(("other_pids", "is_used"), [("", True), ("\n1\n", False)])
def test_scope_is_used_when_the_agent_is_alone_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_pids: str, is_used: bool
) -> None:
    scope = tmp_path / "fs" / "user.slice" / "run-1.scope"
    scope.mkdir(parents=True)
    (scope / "cgroup.procs").write_text(f"{os.getpid()}{other_pids}")
    proc = machine(tmp_path, f"cgroup2 {tmp_path}/fs cgroup2 rw 0 0\n", "0::/user.slice/run-1.scope\n")
    monkeypatch.setattr(cgroup_base, "_can_move", lambda base, proc: True)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    lookup = cgroup_base.find(proc=proc)
    assert (scope / "agent" / "cgroup.procs").exists() == is_used
    if is_used:
        assert lookup.base is not None and lookup.base.path == str(scope)
    else:
        assert lookup == cgroup_base.Lookup(None, "no cgroup is delegated to this user")


@pytest.mark.parametrize(
    ("setting", "mounts", "sentence"),
    [
        ("off", "", "switched off"),
        ("auto", "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n", "no cgroup2 file system is mounted"),
        ("/no/such/place", "", "/no/such/place: No such file or directory"),
    ],
)
def test_find_explains_why_there_are_no_cgroups(tmp_path: Path, setting: str, mounts: str, sentence: str) -> None:
    lookup = cgroup_base.find(setting, proc=machine(tmp_path, mounts, "0::/\n"))
    assert lookup.base is None and sentence in lookup.reason
