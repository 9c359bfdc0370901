"""Dropped ranks: they never start again, and no server waits for them for ever."""

import time
from pathlib import Path

import pytest

from gpusched.agent.rank_files import rank_dir
from gpusched.agent.ranks import journal as journals
from gpusched.agent.ranks import ranks as rules
from gpusched.agent.ranks.journal import Journal
from gpusched.agent.ranks.launcher import Launcher
from gpusched.agent.ranks.ranks import Ranks
from gpusched.protocol.agent_messages import Ended, RankSpec, Run, Stop

KEY = "1.1.0"
RUN = Run(key=KEY, spec=RankSpec(job_id=1, attempt=1, rank=0, ranks=1, name="x", argv=["true"]))


class Recording(Launcher):
    """Starts nothing."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "doorbell", False)
        self.launched: list[str] = []

    def launch(self, directory: Path) -> None:
        self.launched.append(directory.name)


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    monkeypatch.setenv("GPUSCHED_AGENT_ALLOW_ROOT", "true")
    return Recording(tmp_path)


def node(tmp_path: Path, launcher: Launcher, credential: str = "n1.secret") -> Ranks:
    return Ranks(Journal(tmp_path, rank_dir.boot_id(), credential), launcher, "node", None)


def bury(tmp_path: Path, seconds_ago: float) -> None:
    (tmp_path / "forgotten").unlink(missing_ok=True)
    Journal(tmp_path, rank_dir.boot_id(), "n1.secret").drop(KEY)
    text = (tmp_path / "forgotten").read_text().split()[0]
    (tmp_path / "forgotten").write_text(f"{text} {time.time() - seconds_ago:.0f}\n")


def ends(ranks: Ranks) -> list[tuple[str, str]]:
    return [(report.key, report.reason) for report in ranks.reports() if isinstance(report, Ended)]


@pytest.mark.parametrize(("order", "reason"), [(RUN, "node_lost"), (Stop(key=KEY, reason="cancelled"), "cancelled")])
def test_order_for_a_dropped_rank_is_answered_unless_it_is_just_late(
    tmp_path: Path, launcher: Recording, order: Run | Stop, reason: str
) -> None:
    """A database that was restored does not know of the end; before, it waited for ever."""
    bury(tmp_path, 10)
    ranks = node(tmp_path, launcher)
    ranks.apply([order])
    assert ends(ranks) == []
    bury(tmp_path, journals.LATE_SECONDS + 10)
    ranks = node(tmp_path, launcher)
    ranks.apply([order, order])
    assert ends(ranks) == [(KEY, reason)]
    ranks.acknowledge([], [KEY])
    ranks.drop_settled()
    assert (ends(ranks), launcher.launched, ranks.unacknowledged()) == ([], [], [])


@pytest.mark.parametrize(("reason", "reported"), [("exited", "exited"), ("superseded", "node_lost")])
def test_order_for_a_dropped_rank_is_answered_with_its_end(
    tmp_path: Path, launcher: Recording, reason: str, reported: str
) -> None:
    """A85: the job waited at the backup and has completed since. Its next attempt would have run it twice."""
    directory = Journal(tmp_path, rank_dir.boot_id(), "n1.secret").prepare(KEY, RUN.spec, "node")
    rank_dir.write(directory, rank_dir.EXIT, {"at": rank_dir.now(), "reason": reason, "exit_code": 0})
    bury(tmp_path, journals.LATE_SECONDS + 10)
    ranks = node(tmp_path, launcher)
    ranks.apply([RUN])
    assert (ends(ranks), launcher.launched) == ([(KEY, reported)], [])


def test_another_control_plane_can_use_the_same_ids(tmp_path: Path, launcher: Recording) -> None:
    bury(tmp_path, 10)
    ranks = node(tmp_path, launcher)
    ranks.apply([RUN])
    assert launcher.launched == []
    ranks.joined("n2.other")
    ranks.apply([RUN])
    assert launcher.launched == [KEY]


def test_dropped_keys_are_pruned_while_the_agent_runs(
    tmp_path: Path, launcher: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(tmp_path, 10)
    ranks = node(tmp_path, launcher)
    monkeypatch.setattr(journals, "TOMBSTONE_SECONDS", 5)
    ranks.prune()
    assert (tmp_path / "forgotten").read_text() == ""
    ranks.apply([RUN])
    assert launcher.launched == [KEY]


def test_rank_that_cannot_be_prepared_for_long_is_a_node_fault(
    tmp_path: Path, launcher: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: the server hears of it, and the job goes elsewhere."""
    ranks = node(tmp_path, launcher)
    with monkeypatch.context() as full:
        full.setattr(rank_dir, "write", no_space)
        ranks.apply([RUN])
        assert ends(ranks) == []
        full.setattr(rules, "PREPARE_SECONDS", 0.0)
        ranks.apply([RUN])
        assert ends(ranks) == [(KEY, "node_fault")]
    ranks.apply([RUN])
    assert launcher.launched == [], "a reported end never starts again"


def no_space(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_line_cut_short_by_a_full_disk_spoils_no_later_one(tmp_path: Path) -> None:
    """Else the rank would be unknown after the next start, and could run again."""
    journal = Journal(tmp_path, rank_dir.boot_id(), "n1.secret")
    for key in ("2.1.0", "3.1.0", KEY):
        journal.stop(key, "cancelled", 1)
        journal.drop(key)
        for name in ("forgotten", "ends"):
            text = (tmp_path / name).read_bytes()
            (tmp_path / name).write_bytes(text + text[:9])
    journal = Journal(tmp_path, rank_dir.boot_id(), "n1.secret")
    assert journal.is_dropped(KEY)
    assert [(end.key, end.reason) for end in journal.dropped_ends([KEY])] == [(KEY, "cancelled")]
