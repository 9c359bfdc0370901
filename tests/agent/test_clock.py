"""Reports include the age of an event by a monotonic clock (A53)."""

import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from gpusched.agent.rank_files import rank_dir, removal
from gpusched.agent.ranks.journal import Journal
from gpusched.protocol.agent_messages import Ended, RankSpec, Started
from tests.agent.conftest import Agent, supervised
from tests.agent.control import Control, eventually


def since(text: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds()


def test_events_during_an_outage_are_reported_with_their_age(agent: Agent, control: Control) -> None:
    """A53, A32: across a restart of the agent, and in each repeated report."""
    key, lasts = control.run("sleep", "0.2"), control.run("sleep", "60", job=2)
    control.is_acknowledging = False
    agent.start()
    control.start_of(lasts)
    agent.kill()
    eventually(lambda: (agent.ranks / key / rank_dir.EXIT).exists(), 10, "the end without an agent")
    ended_at = msgspec.json.decode((agent.ranks / key / rank_dir.EXIT).read_bytes())["at"]
    eventually(lambda: since(ended_at) > 1, 10, "a second to pass")
    agent.start()
    for report in (control.end_of(key), control.start_of(lasts)):
        assert report.seconds_ago is not None and report.seconds_ago == pytest.approx(since(report.at), abs=0.8)
    ends = control.ended[key]
    eventually(lambda: len(ends) > 3, 10, "repetitions")
    ages = [end.seconds_ago or 0.0 for end in ends]
    assert ages == sorted(ages) and ages[-1] > ages[0] >= 1


def test_run_time_ends_before_temporary_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may leave a million of them, and is charged for its run time."""
    began = tmp_path / "began"

    def remove(path: str) -> bool:
        if path.endswith(f"/{rank_dir.TMP}"):
            began.write_text(f"{time.monotonic()} {rank_dir.now()}")
        return True

    monkeypatch.setattr(removal, "remove", remove)
    spec = RankSpec(job_id=1, attempt=1, rank=0, ranks=1, name="t", argv=["true"])
    end = rank_dir.read(supervised(tmp_path, spec), rank_dir.EXIT)
    assert end is not None
    monotonic, at = began.read_text().split()
    assert end["monotonic"] <= float(monotonic) and datetime.fromisoformat(end["at"]) <= datetime.fromisoformat(at)


@pytest.mark.parametrize("is_same_boot", [True, False])
def test_monotonic_time_of_another_boot_is_ignored(tmp_path: Path, is_same_boot: bool) -> None:
    journal = Journal(tmp_path, "this boot")
    directory = tmp_path / "ranks" / "1.1.0"
    directory.mkdir()
    clock = {"monotonic": time.monotonic() - 100, "boot_id": "this boot" if is_same_boot else "the boot before"}
    rank_dir.write(directory, rank_dir.STARTED, {"at": rank_dir.now(), "pid": 1, **clock})
    rank_dir.write(directory, rank_dir.EXIT, {"at": rank_dir.now(), "reason": "exited", "exit_code": 0, **clock})
    reports: list[Started | Ended | None] = [*journal.inspect("1.1.0")[:2]]
    ages = [report.seconds_ago for report in reports if report]
    assert ages == ([pytest.approx(100, abs=5)] * 2 if is_same_boot else [None, None])


@pytest.mark.parametrize("more", [{}, {"a_later_word": 1}], ids=["older", "newer"])
def test_ranks_of_a_supervisor_of_another_version_are_read(more: dict[str, int], tmp_path: Path) -> None:
    """A57: supervisors outlive the upgrade of their agent."""
    journal = Journal(tmp_path, rank_dir.boot_id())
    directory = tmp_path / "ranks" / "1.1.0"
    directory.mkdir()
    rank_dir.write(directory, rank_dir.STARTED, {"at": rank_dir.now(), "pid": 1, **more})
    rank_dir.write(directory, rank_dir.EXIT, {"at": rank_dir.now(), "reason": "exited", "exit_code": 3, **more})
    started, ended, is_alive = journal.inspect("1.1.0")
    assert started is not None and ended is not None
    assert (started.pid, ended.exit_code, ended.seconds_ago, is_alive) == (1, 3, None, False)
