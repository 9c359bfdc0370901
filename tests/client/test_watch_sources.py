"""The sources of `gpusched watch`: what they show as new, and what they do when they cannot be read."""

import os
import subprocess
from pathlib import Path

import pytest

from gpusched.client.errors import Invalid
from gpusched.watch import sources
from tests.client.test_watch import rule
from tests.waiting import wait_for


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
    with pytest.raises(sources.CannotLook, match=r"cat ended with 1: .*No such file"):
        list(source.observe())
    queue.write_text("7 RUNNING train\n")
    assert list(source.observe()) == []
    queue.rename(tmp_path / "away")
    with pytest.raises(sources.CannotLook):
        list(source.observe())
    queue.write_text("7 RUNNING train\n8 PENDING eval\n")
    assert list(source.observe()) == ["8 PENDING eval"]


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
