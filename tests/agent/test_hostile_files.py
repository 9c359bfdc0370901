"""Damage that a job can do to its rank's directories: it ends neither the agent nor the supervisor, and costs no other
job."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.agent import identity
from gpusched.agent.rank_files import rank_dir, removal
from gpusched.agent.ranks.journal import Journal
from gpusched.agent.ranks.launcher import Launcher
from gpusched.agent.ranks.ranks import Ranks
from gpusched.protocol.agent_messages import Ended, RankSpec
from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually
from tests.agent.mounts import mount
from tests.agent.ordinary import as_ordinary_user
from tests.agent.test_isolation import needs_root

DEEP = """
import os
os.chdir(os.environ["TMPDIR"])
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
"""


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A directory with a file, of which another directory is a bind mount: same file system, same device."""
    elsewhere, tree = tmp_path / "elsewhere", tmp_path / "tree"
    (tree / "below" / "mount").mkdir(parents=True)
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("kept")
    mount("--bind", elsewhere, tree / "below" / "mount")
    yield tree
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if str(tmp_path) in line:
            subprocess.run(["umount", "-l", line.split()[1]], check=True)


def test_tree_of_any_depth_and_mode_is_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    subprocess.run([sys.executable, "-c", DEEP], env={"TMPDIR": str(tmp_path)}, check=True)
    (tmp_path / "d").rename(tree)
    (tree / "closed" / "below").mkdir(parents=True)
    (tree / "closed" / "below" / "file").touch()
    (tree / "link").symlink_to(tmp_path)
    (tree / "closed" / "below").chmod(0)
    (tree / "closed").chmod(0o500)
    code = "import sys; from gpusched.agent.rank_files import removal; sys.exit(not removal.remove(sys.argv[1]))"
    weak = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner"] if os.geteuid() == 0 else []
    subprocess.run([*weak, sys.executable, "-c", code, tree], check=True, cwd=Path(__file__).parents[2])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spoiled", [rank_dir.EXIT, rank_dir.STARTED, rank_dir.SPEC, rank_dir.LOG_LIMIT])
@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"at": 7, "reason": []}', "[" * 100_000, '{"reason": "\\ud800"}', "fifo", "dir"]
)
def test_invalid_fact_ends_only_its_rank(tmp_path: Path, spoiled: str, text: str) -> None:
    """A job of the agent's own user can write there. Its end is reported as a lost supervisor; the agent continues."""
    journal = Journal(tmp_path, rank_dir.boot_id())
    spec = RankSpec(job_id=1, attempt=1, rank=0, ranks=1, name="x", argv=["true"])
    directory = journal.prepare("1.1.0", spec, "node")
    (directory / rank_dir.LOCK).write_text(rank_dir.boot_id())
    rank_dir.write(directory, rank_dir.STARTED, {"at": rank_dir.now(), "pid": 0, "start": 0})
    (directory / spoiled).unlink(missing_ok=True)
    if text == "fifo":
        os.mkfifo(directory / spoiled)
    elif text == "dir":
        (directory / spoiled).mkdir()
    else:
        (directory / spoiled).write_text(text)
    ranks = Ranks(journal, Launcher(tmp_path / "doorbell", False), "node", 1 << 20)
    [report] = ranks.reports()
    assert isinstance(report, Ended) and report.reason == "supervisor_lost"
    ranks.live(), ranks.busy_devices(), ranks.saved(), ranks.log_limit(ranks.table.all()[0], 2 << 20)
    ranks.remind()


FACTS = (
    rank_dir.EXIT,
    rank_dir.STARTED,
    rank_dir.SPEC,
    rank_dir.STOP,
    rank_dir.LOG_LIMIT,
    rank_dir.LIMIT,
    rank_dir.SIGNALS,
)


@pytest.mark.parametrize("spoiled", [*FACTS, rank_dir.LOG, rank_dir.TMP, ""])
@pytest.mark.parametrize("damage", ["closed", "loop"])
def test_agent_of_an_ordinary_user_starts_and_removes_the_rank_when_a_job_closed_or_looped_a_path(
    spoiled: str, damage: str
) -> None:
    """An empty name is the directory of the rank itself. Root reads whatever is closed, so another user looks here."""

    def start_and_remove(home: Path) -> str:
        directory = _ended_without_supervisor(home)
        _spoil(directory / spoiled, damage)
        ranks = Ranks(Journal(home, rank_dir.boot_id()), Launcher(home / "doorbell", False), "node", 1 << 20)
        reasons = [report.reason for report in ranks.reports() if isinstance(report, Ended)]
        ranks.live(), ranks.busy_devices(), ranks.saved()
        ranks.remind()
        ranks.acknowledge([], [directory.name])
        ranks.table.all()[0].log_dropped = True
        ranks.drop_settled()
        ranks.empty_trash()
        return f"{reasons} {[path.name for folder in ('ranks', 'trash') for path in (home / folder).iterdir()]}"

    assert as_ordinary_user(start_and_remove) == "['supervisor_lost'] []"


@pytest.mark.parametrize("damage", ["closed", "loop"])
def test_agent_keeps_an_identity_that_it_cannot_read(damage: str) -> None:
    """A new key would be another node."""

    def load(home: Path) -> str:
        identity.load(home, "node")
        path = home / identity.FILE
        key = path.read_text()
        path.rename(home / "kept")
        (home / "kept").chmod(0) if damage == "closed" else None
        path.symlink_to(home / "kept" if damage == "closed" else path)
        with pytest.raises(OSError, match=r"Permission denied|symbolic links"):
            identity.load(home, "node")
        (home / "kept").chmod(0o600)
        return str((home / "kept").read_text() == key and path.is_symlink())

    assert as_ordinary_user(load) == "True"


def _ended_without_supervisor(home: Path) -> Path:
    """A rank that started and whose supervisor is gone without a word."""
    journal = Journal(home, rank_dir.boot_id())
    spec = RankSpec(job_id=1, attempt=1, rank=0, ranks=1, name="x", argv=["true"])
    directory = journal.prepare("1.1.0", spec, "node")
    (directory / rank_dir.LOCK).write_text(rank_dir.boot_id())
    rank_dir.write(directory, rank_dir.STARTED, {"at": rank_dir.now(), "pid": 0, "start": 0})
    (directory / rank_dir.LOG).write_text("printed\n")
    return directory


def _spoil(path: Path, damage: str) -> None:
    if damage == "closed":
        path.touch()
        path.chmod(0)
        return
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(path)


@needs_root
def test_removal_does_not_enter_mounts(mounted: Path) -> None:
    (mounted / "file").touch()
    assert not removal.remove(str(mounted))
    assert not (mounted / "file").exists()
    assert (mounted.parent / "elsewhere" / "precious").read_text() == "kept"
    assert not removal.remove(str(next(mounted.rglob("precious")).parent)), "nor if it is the directory itself"
    assert (mounted.parent / "elsewhere" / "precious").exists()


def test_invalid_notification_is_ignored(agent: Agent, control: Control) -> None:
    process = agent.start()
    eventually(lambda: control.syncs, 20, "the first message")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for text in (b"", b"[]", b"{", b"\xff", b"[" * 4000, b'"/nowhere/1.1.0"'):
            sender.sendto(text, str(agent.directory / "doorbell"))
    assert control.end_of(control.run("true")).exit_code == 0
    assert process.poll() is None


@needs_root
def test_agent_survives_depth_and_mounts_in_tmpdir(agent: Agent, control: Control) -> None:
    """Both ends are reported, both ranks are dropped, and the agent continues."""
    deep = control.run(sys.executable, "-c", DEEP, job=1)
    mount = control.run("sh", "-c", "mkdir $TMPDIR/m; mount -t tmpfs none $TMPDIR/m; touch $TMPDIR/m/f", job=2)
    process = agent.start()
    try:
        for key in (deep, mount):
            assert (control.end_of(key).reason, control.end_of(key).exit_code) == ("exited", 0)
        eventually(lambda: not list(agent.ranks.iterdir()), 10, "both ranks to be forgotten")
        reports = len(control.syncs)
        eventually(lambda: len(control.syncs) > reports + 2, 10, "more reports")
        assert process.poll() is None
        after = control.run("true", job=3)
        assert control.end_of(after).exit_code == 0
    finally:
        for line in Path("/proc/self/mounts").read_text().splitlines():
            if str(agent.directory) in line:
                subprocess.run(["umount", "-l", line.split()[1]], check=True)
