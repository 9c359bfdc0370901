"""Time limits changed while their job runs (A36)."""

import json
from pathlib import Path

from msgspec.structs import replace

from gpusched.agent.rank_files import rank_dir
from gpusched.agent.ranks.journal import Journal
from gpusched.agent.supervisor import time_limit
from gpusched.protocol.agent_messages import RankSpec
from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually
from tests.agent.test_rank_life import seconds_between

LOOP = "while :; do sleep 0.05; done"


def test_raised_limit_applies_and_the_job_can_read_its_deadline(agent: Agent, control: Control, tmp_path: Path) -> None:
    """Also one that an older message contradicts later, and over a restart of the agent."""
    script = f"cp $GPUSCHED_DEADLINE_FILE {tmp_path}/first; echo $GPUSCHED_DEADLINE > {tmp_path}/env"
    then = f"trap 'cp $GPUSCHED_DEADLINE_FILE {tmp_path}/last; exit 0' TERM"
    key = control.run("sh", "-c", f"{script}; {then}; touch {tmp_path}/ready; {LOOP}", max_runtime_seconds=60)
    agent.start()
    eventually(lambda: (tmp_path / "ready").exists(), 10, "the job")
    control.limit(key, 2, 90)
    control.limit(key, 1, 1)
    eventually(lambda: control.syncs[-1].limits == {key: 2}, 10, "the limit to be known")
    agent.kill()
    agent.start()
    syncs_before = len(control.syncs)
    eventually(lambda: len(control.syncs) > syncs_before + 2, 10, "the agent to be back")
    assert control.syncs[-1].limits == {key: 2}
    assert key not in control.ended
    control.stop(key)
    started_at = control.end_of(key).started_at
    assert started_at is not None
    first, last = (json.loads((tmp_path / name).read_text())["deadline_at"] for name in ("first", "last"))
    assert (tmp_path / "env").read_text().strip() == first
    assert round(seconds_between(started_at, first), 3) == 60
    assert round(seconds_between(started_at, last), 3) == 90


def test_limit_that_changed_between_preparation_and_launch_applies(tmp_path: Path) -> None:
    """The agent was killed in between, or could not launch: the server repeats the order, with the new limit."""
    journal = Journal(tmp_path, rank_dir.boot_id())
    spec = RankSpec(
        job_id=1, attempt=1, rank=0, ranks=1, name="x", argv=["true"], max_runtime_seconds=60, limit_version=1
    )
    for version, seconds, expected in ((1, 60, 60), (2, 90, 90), (1, 60, 90)):
        order = replace(spec, max_runtime_seconds=seconds, limit_version=version)
        directory = journal.prepare("1.1.0", order, "node")
        fact = rank_dir.read(directory, rank_dir.SPEC) or {}
        assert time_limit.seconds(directory, fact) == expected


def test_lowered_limit_ends_the_job(agent: Agent, control: Control) -> None:
    """Also one that had no limit, and one whose limit is past by then."""
    limited = control.run("sh", "-c", LOOP, max_runtime_seconds=600)
    unlimited = control.run("sh", "-c", LOOP, job=2)
    agent.start()
    for key in (limited, unlimited):
        control.start_of(key)
        control.limit(key, 1, 1)
    for key in (limited, unlimited):
        end = control.end_of(key)
        assert (end.reason, end.signal) == ("time_limit", 15)


def test_limit_before_its_order_is_superseded_by_the_order(agent: Agent, control: Control) -> None:
    """The order says the newest limit, and with it that no older one counts."""
    control.limit("1.1.0", 3, 1)
    key = control.run("sh", "-c", "sleep 2; exit 4", max_runtime_seconds=60, limit_version=3)
    agent.start()
    assert control.end_of(key).exit_code == 4


def test_limit_that_a_killed_agent_only_wrote_applies_after_its_restart(
    agent: Agent, control: Control, tmp_path: Path
) -> None:
    """It would otherwise report the limit as in force, and the job would end by the old one."""
    key = control.run("sh", "-c", f"touch {tmp_path}/ready; {LOOP}", max_runtime_seconds=600)
    agent.start()
    eventually(lambda: (tmp_path / "ready").exists(), 10, "the job")
    agent.kill()
    time_limit.change(agent.ranks / key, 1, 1)
    agent.start()
    assert control.end_of(key).reason == "time_limit"
