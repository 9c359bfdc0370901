"""The file that a job touches when it has saved its work."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path

from gpusched.agent.rank_files import rank_dir
from gpusched.protocol.agent_messages import Ended
from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually

TOUCH = 'touch -d @1700000000 "$GPUSCHED_CHECKPOINT_FILE"'


def last_saved(control: Control) -> dict[str, str]:
    return control.syncs[-1].saved if control.syncs else {}


def test_agent_reports_checkpoints_of_running_ranks_even_after_a_restart(agent: Agent, control: Control) -> None:
    saving, silent = control.run("sh", "-c", f"{TOUCH}; sleep 60", job=1), control.run("sleep", "60", job=2)
    agent.start()
    control.start_of(silent)
    expected = {saving: "2023-11-14T22:13:20+00:00"}
    eventually(lambda: last_saved(control) == expected, 10, "the checkpoint to be reported")
    agent.kill()
    syncs_before = len(control.syncs)
    agent.start()
    eventually(
        lambda: len(control.syncs) > syncs_before and last_saved(control) == expected, 10, "it to be reported again"
    )
    control.stop(saving, grace_seconds=0)
    control.end_of(saving)
    eventually(lambda: not last_saved(control), 10, "the ended rank to be omitted")


def test_checkpoint_of_the_grace_period_is_reported_with_the_end(agent: Agent, control: Control) -> None:
    key = control.run("sh", "-c", f"trap '{TOUCH}; exit 0' TERM; echo ready; while :; do sleep 0.01; done")
    agent.start()
    control.start_of(key)
    eventually(lambda: b"ready" in control.logs.get(key, b""), 10, "the job to handle SIGTERM")
    control.stop(key)
    control.end_of(key)
    [with_end, *_] = [sync for sync in control.syncs if any(isinstance(report, Ended) for report in sync.reports)]
    assert with_end.saved == {key: "2023-11-14T22:13:20+00:00"}


def test_each_attempt_has_its_own_checkpoint_file(agent: Agent, control: Control, tmp_path: Path) -> None:
    for attempt in (1, 2):
        key = control.run("sh", "-c", f'echo "$GPUSCHED_CHECKPOINT_FILE" >> {tmp_path}/names', attempt=attempt)
        agent.process or agent.start()
        control.end_of(key)
    names = (tmp_path / "names").read_text().split()
    assert [re.search(r"ranks/(.*)/checkpoint", name)[1] for name in names] == ["1.1.0", "1.2.0"]  # type: ignore[index]


def test_checkpoint_with_an_invalid_time_is_ignored(tmp_path: Path) -> None:
    assert rank_dir.saved_at(str(tmp_path)) is None
    file = tmp_path / rank_dir.CHECKPOINT
    file.touch()
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    os.utime(file, (moment.timestamp(), moment.timestamp()))
    assert rank_dir.saved_at(str(tmp_path)) == moment.isoformat()
    file.unlink()
    file.symlink_to(tmp_path / "nowhere")
    assert rank_dir.saved_at(str(tmp_path)) is None
