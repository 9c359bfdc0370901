"""The sources of `gpusched watch`: what they show as new, and what they do when they cannot be read."""

import json
import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from gpusched.client.errors import Invalid
from gpusched.watch import commands, sources
from gpusched.watch.commands import CannotLook
from tests.client.commandline import start
from tests.client.fakeserver import FakeServer
from tests.client.test_watch import rule
from tests.waiting import assert_stays, wait_for


def test_log_shows_new_whole_lines_through_rotation_and_truncation(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("old\n")
    source = sources.create(rule(log=str(path)))
    assert list(source.observe()) == []
    with path.open("a") as file:
        file.write("epoch 1\nepo")
    assert list(source.observe()) == ["epoch 1"]
    with path.open("a") as file:
        file.write("ch 2\r\n")
    assert list(source.observe()) == ["epoch 2"]
    path.rename(tmp_path / "train.log.1")
    assert list(source.observe()) == []
    path.write_text("a line of the next file that is longer\n")
    assert list(source.observe()) == ["a line of the next file that is longer"]
    with path.open("a") as file:
        file.write("the last line before the rotation\nhal")
    path.rename(tmp_path / "train.log.1")
    path.write_text("a line of the third file\n")
    assert list(source.observe()) == ["the last line before the rotation", "a line of the third file"]
    path.write_text("short\n")
    assert list(source.observe()) == ["short"]


def test_directory_in_place_of_a_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        sources.create(rule(log=str(tmp_path)))
    assert Path(caught.value.filename) == tmp_path


def test_files_that_existed_before_are_not_new(tmp_path: Path) -> None:
    (tmp_path / "1.pt").touch()
    source = sources.create(rule(files=f"{tmp_path}/*.pt"))
    assert list(source.observe()) == []
    (tmp_path / "2.pt").touch()
    assert list(source.observe()) == [f"{tmp_path}/2.pt"]
    assert list(source.observe()) == []


def test_process_is_observed_at_its_start_and_its_end() -> None:
    source = sources.create(rule(process=r"sleep 81\.25"))
    process = subprocess.Popen(["sleep", "81.25"])
    started: list[str] = []

    def has_started() -> bool:
        started.extend(source.observe())
        return bool(started)

    wait_for(has_started)
    assert started == [f"{process.pid} sleep 81.25"]
    process.kill()
    process.wait()
    assert list(source.observe()) == [f"ended {process.pid} sleep 81.25"]


def test_command_and_slurm_queue_show_new_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = tmp_path / "queue"
    queue.write_text("7 PENDING train\n")
    squeue = tmp_path / "squeue"
    squeue.write_text(f'#!/bin/sh\n[ "$2" = --user=ada ] && [ "$3" = "--format=%i %T %j" ] && cat {queue}\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    slurm, command = sources.create(rule(slurm="ada")), sources.create(rule(command=["cat", str(queue)]))
    queue.write_text("7 RUNNING train\n8 PENDING eval\n")
    assert list(slurm.observe()) == list(command.observe()) == ["7 RUNNING train", "8 PENDING eval"]
    with pytest.raises(Invalid, match="no-such-program"):
        sources.create(rule(command=["no-such-program"]))


def test_entries_are_not_new_after_a_command_failed(tmp_path: Path) -> None:
    """Also if it fails at the start: what the first success shows was there before."""
    queue = tmp_path / "queue"
    source = sources.create(rule(command=["cat", str(queue)]))
    with pytest.raises(CannotLook, match=r"cat ended with 1: .*No such file"):
        list(source.observe())
    queue.write_text("7 RUNNING train\n")
    assert list(source.observe()) == []
    queue.rename(tmp_path / "away")
    with pytest.raises(CannotLook):
        list(source.observe())
    queue.write_text("7 RUNNING train\n8 PENDING eval\n")
    assert list(source.observe()) == ["8 PENDING eval"]


def is_over(pid: int) -> bool:
    """Return whether a process has ended, perhaps without a parent that notices."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith(("Z", "X"))
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(
    "script", ["sleep 87 & echo $! > pid; wait", "sleep 87 & echo $! > pid", "exec >&- 2>&-; echo $$ > pid; sleep 87"]
)
def test_command_that_hangs_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Its children do not add up, look after look: those of a pipeline, of the background, and itself without pipes."""
    monkeypatch.setattr(commands, "MAX_SECONDS", 0.5)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CannotLook, match="sh has not ended"):
        commands.output(["sh", "-c", script])
    wait_for(lambda: is_over(int((tmp_path / "pid").read_text())))


def test_second_signal_ends_a_look_that_hangs(server: FakeServer, tmp_path: Path) -> None:
    """The first one lets it end, so that no booking is half made."""
    pid, rules = tmp_path / "pid", tmp_path / "rules.yaml"
    command = ["sh", "-c", f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 86"]
    rules.write_text(json.dumps({"rules": [{"name": "a", "match": "x", "command": command, "reserve": {"gpus": 1}}]}))
    watching = start(server.url, "watch", str(rules))
    wait_for(pid.exists)
    watching.send_signal(signal.SIGINT)
    assert_stays(lambda: watching.poll() is None, 0.3)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(10) == 130
    assert is_over(int(pid.read_text()))


@pytest.mark.parametrize(
    ("script", "message"), [("yes", "prints more than 1 MiB"), ("yes >&2", "has not ended after 2 s")]
)
def test_endless_output_of_a_command_takes_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    monkeypatch.setattr(commands, "MAX_SECONDS", 2.0)
    monkeypatch.setattr(commands, "MAX_BYTES", 1 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CannotLook, match=message):
        commands.output(["sh", "-c", script])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


def test_line_without_an_end_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_BYTES", 10)
    path = tmp_path / "train.log"
    path.touch()
    source = sources.create(rule(log=str(path)))
    for part in ("\r 1 %" * 2, "\r 99 %", "\n"):
        with path.open("a") as file:
            file.write(part)
        texts = list(source.observe())
    assert texts == [" 1 %\r 99 %"]


def test_monitor_of_your_own_is_a_class_with_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "backlog_monitor.py").write_text(
        "class Backlog:\n    def __init__(self, limit): self.limit = limit\n"
        "    def observe(self): return [f'epoch 9{self.limit}']\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    source = sources.create(rule(monitor="backlog_monitor:Backlog", options={"limit": 3}))
    assert list(source.observe()) == ["epoch 93"]
    for wrong in ("no_such_module:X", "backlog_monitor:X", "backlog_monitor:Backlog"):
        with pytest.raises(Invalid, match="is no monitor"):
            sources.create(rule(monitor=wrong))
