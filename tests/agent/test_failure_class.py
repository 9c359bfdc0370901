"""Failure classes that only the node can determine."""

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gpusched.agent.rank_files import log_truncation, rank_dir
from gpusched.agent.ranks.journal import Journal
from gpusched.agent.supervisor import failure_class, supervisor
from tests.agent.conftest import Agent
from tests.agent.control import Control
from tests.agent.test_isolation import needs_root

REAL_FORK = os.fork
TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
)


def classed(
    tmp_path: Path, output: bytes, code: int = 1, kills_before: int | None = 0, after: int | None = 0
) -> str | None:
    log = tmp_path / "output.log"
    log.write_bytes(output)
    return failure_class.failure_class(str(log), code, kills_before, after)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (TORCH, "cuda_oom"),
        ("RuntimeError: CUDA error: out of memory", "cuda_oom"),
        ("pycuda._driver.MemoryError: cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY", "cuda_oom"),
        ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes", "cuda_oom"),
        ("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 214,748,364,800 bytes (allocated so", "cuda_oom"),
        ("OSError: [Errno 28] No space left on device: 'model.pt'", "disk_full"),
        ("cp: error writing 'x': no space left on device", "disk_full"),
        ("write failed: Disk quota exceeded", "disk_full"),
        ("watch out for CUDA and for memory", None),
        ("ValueError: out of memory slots", None),
        ("", None),
    ],
)
def test_output_of_a_failure_determines_its_class(tmp_path: Path, output: str, expected: str | None) -> None:
    assert classed(tmp_path, b"step 1\n" + output.encode() + b"\n") == expected


def test_last_error_in_the_output_counts(tmp_path: Path) -> None:
    errors = [TORCH.encode(), b"No space left on device"]
    assert classed(tmp_path, b"\n".join(errors)) == "disk_full"
    assert classed(tmp_path, b"\n".join(reversed(errors))) == "cuda_oom"


def test_only_the_last_64_kib_of_output_count(tmp_path: Path) -> None:
    assert classed(tmp_path, TORCH.encode() + b"." * failure_class.TAIL_BYTES) is None
    assert classed(tmp_path, b"." * (1 << 20) + TORCH.encode()) == "cuda_oom"


def test_output_does_not_classify_a_success_or_a_crash(tmp_path: Path) -> None:
    assert [classed(tmp_path, TORCH.encode(), code) for code in (0, -11, -15, -6)] == [None, None, None, "cuda_oom"]


def test_sigkill_is_host_oom_only_when_the_kernel_counted_one(tmp_path: Path) -> None:
    counters = [(3, 4), (3, 3), (None, 4), (3, None)]
    assert [classed(tmp_path, b"", -9, *counts) for counts in counters] == ["host_oom", None, None, None]
    assert classed(tmp_path, b"", 137, 0, 1) == "host_oom", "as a shell tells it of its child"
    assert classed(tmp_path, TORCH.encode(), -15, 0, 1) is None, "another signal"


def test_oom_counter_prefers_the_own_cgroup_to_the_machine(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    assert failure_class.oom_kills(str(proc), str(cgroups)) is None
    (proc / "vmstat").write_text("nr_free_pages 7\noom_kill 12\n")
    (proc / "self" / "cgroup").write_text("1:memory:/old\n0::/system.slice/agent\n")
    assert failure_class.oom_kills(str(proc), str(cgroups)) == 12
    (cgroups / "system.slice" / "agent").mkdir(parents=True)
    (cgroups / "system.slice" / "agent" / "memory.events").write_text("low 0\noom 5\noom_kill 2\n")
    assert failure_class.oom_kills(str(proc), str(cgroups)) == 2


def test_agent_reports_the_class_with_the_end(agent: Agent, control: Control) -> None:
    cuda = control.run("sh", "-c", f"echo '{TORCH}' >&2; exit 1", job=1)
    disk = control.run("sh", "-c", "echo 'tar: No space left on device'; exit 2", job=2)
    plain = control.run("sh", "-c", "exit 3", job=3)
    fine = control.run("sh", "-c", f"echo '{TORCH}'; exit 0", job=4)
    agent.start()
    classes = [control.end_of(key).exit_class for key in (cuda, disk, plain, fine)]
    assert classes == ["cuda_oom", "disk_full", None, None]


def test_stop_has_no_class_whatever_was_printed(agent: Agent, control: Control) -> None:
    """A36: an end caused by gpusched has no class from the agent."""
    key = control.run("sh", "-c", f"trap 'echo {TORCH!r}; exit 1' TERM; sleep 60 & wait")
    agent.start()
    control.start_of(key)
    control.stop(key, "preempted")
    assert (control.end_of(key).reason, control.ended[key][0].exit_class) == ("preempted", None)


def test_supervisor_detects_a_kill_for_lack_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([7, 8])
    monkeypatch.setattr(failure_class, "oom_kills", lambda: next(counts))
    fact = supervised(tmp_path, argv=["sh", "-c", "kill -9 $$"])
    assert (fact["signal"], fact["exit_class"]) == (9, "host_oom")


def supervised(tmp_path: Path, **more: object) -> dict[str, Any]:
    """The end as a supervisor writes it that was forked from this process as it is."""
    rank_dir.write(tmp_path, rank_dir.SPEC, {
        "argv": ["true"], "environment": {"PATH": os.environ["PATH"]}, "workdir": "/",
        "max_runtime_seconds": None, "grace_seconds": 1, **more,
    })  # fmt: skip
    if (pid := REAL_FORK()) == 0:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.SIGNALS)
        supervisor.run(str(tmp_path), str(tmp_path / "bell"), None)
        os._exit(0)
    os.waitpid(pid, 0)
    fact = rank_dir.read(tmp_path, rank_dir.EXIT)
    assert fact is not None
    return fact


@pytest.mark.parametrize("is_another", [False, True])
@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.EAGAIN, "node_fault"), (errno.EMFILE, "node_fault"), (errno.ESTALE, "node_fault"),
     (errno.ENOTCONN, "node_fault"),
     (errno.ENOENT, "launch_failed"), (errno.E2BIG, "launch_failed")],
)  # fmt: skip
def test_lack_of_a_node_resource_is_a_node_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_another: bool, number: int, reason: str
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_spawnp", refuse)
    monkeypatch.setattr(os, "fork", refuse)
    account = {"account": {"uid": os.geteuid(), "gid": os.getegid(), "groups": []}} if is_another else {}
    fact = supervised(tmp_path, **account)
    assert (fact["reason"], fact["detail"]) == (reason, f"true: {os.strerror(number)}")


@needs_root
def test_lack_of_a_node_resource_is_a_node_fault_when_starting_as_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "execvpe", refuse)
    fact = supervised(tmp_path, account={"uid": 0, "gid": 0, "groups": []})
    assert (fact["reason"], fact["detail"]) == ("node_fault", "true: Input/output error")


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        ("docker: Error response from daemon: could not select device driver", 125, "node_fault"),
        ("docker: Cannot connect to the Docker daemon at unix:///run/docker.sock.", 125, "node_fault"),
        ("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=GPU-a", 126, "node_fault"),
        ("Error: workdir /none does not exist on container 1234", 126, "exited"),
        ("docker: Error response from daemon: invalid mount config for type", 125, "exited"),
        ("docker: Error response from daemon: could not select device driver", 1, "exited"),
    ],
)
def test_failing_daemon_is_a_node_fault(tmp_path: Path, message: str, code: int, reason: str) -> None:
    fact = supervised(tmp_path, argv=["sh", "-c", f"echo '{message}'; exit {code}"], box=str(tmp_path))
    assert fact["reason"] == reason
    assert fact["detail"] == (message if reason == "node_fault" else None)


def test_log_that_a_job_replaced_by_a_pipe_does_not_block(tmp_path: Path) -> None:
    log = tmp_path / rank_dir.LOG
    fact = supervised(tmp_path, argv=["sh", "-c", f"rm {log}; mkfifo {log}; exit 2"])
    assert (fact["reason"], fact["exit_code"], fact["exit_class"]) == ("exited", 2, None)
    with pytest.raises(OSError, match="seek"):
        log_truncation.read(str(log), [log_truncation.Part(0, 10)], 0, 10)
    assert log_truncation.free_disk(str(log), 1 << 30, 1 << 20, 0) == 0


def test_end_written_by_a_newer_supervisor_is_read(tmp_path: Path) -> None:
    """A57: an agent that was put back one version."""
    journal = Journal(tmp_path, rank_dir.boot_id())
    (journal.ranks / "1.1.0").mkdir()
    fact = {"at": rank_dir.now(), "reason": "exited", "exit_code": 0, "a_later_idea": 1}
    rank_dir.write(journal.ranks / "1.1.0", rank_dir.EXIT, fact)
    ended = journal.inspect("1.1.0")[1]
    assert ended is not None and ended.exit_code == 0
