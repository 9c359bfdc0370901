"""An agent with the addresses of two heads: it goes to the other one, with what it has not reported (A82)."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually
from tests.agent.test_join import gpusched_agent


@pytest.fixture
def other() -> Iterator[Control]:
    with Control() as running:
        yield running


def test_agent_goes_to_the_other_head_and_reports_there(agent: Agent, control: Control, other: Control) -> None:
    """A82: within 3 s, with the end of a job and its output; it returns when that head fails as well."""
    key = control.run("sh", "-c", "echo before; sleep 2; echo after; exit 5")
    other.orders = control.orders
    agent.start("--url", f"{control.url},{other.url}")
    control.start_of(key)
    eventually(lambda: control.logs.get(key) == b"before\n", 10, "output at the first head")
    assert not other.syncs
    other.logs[key] = control.logs[key]  # as on shared storage
    control.is_away = True
    eventually(lambda: bool(other.syncs), 3, "a message to the other head")
    assert other.end_of(key).exit_code == 5
    eventually(lambda: other.logs[key] == b"before\nafter\n", 10, "the rest of its output")
    assert key not in control.ended
    stays = len(control.syncs)
    control.is_away = False
    eventually(lambda: len(other.syncs) > 40, 20, "more messages")
    assert len(control.syncs) == stays
    other.is_away = True
    eventually(lambda: len(control.syncs) > stays, 3, "a message to the first head again")


def test_agent_joins_at_the_head_that_answers(agent: Agent, control: Control, other: Control) -> None:
    control.is_away = True
    agent.start("--url", f"{control.url},{other.url}")
    eventually(lambda: bool(other.syncs), 10, "a message to the other head")
    assert other.joins and not control.joins


def test_joined_agent_takes_another_list_of_addresses_without_a_token(
    agent: Agent, control: Control, other: Control
) -> None:
    directory = agent.directory
    result = gpusched_agent("join", "--data-dir", str(directory), "--name", "node-a", control.url, "j1.token")
    assert result.returncode == 0
    control.is_away = True
    both = f"{control.url}, {other.url}/"
    agent.start("--url", both, environment={"GPUSCHED_JOIN_TOKEN": ""})
    eventually(lambda: bool(other.syncs), 10, "a message to the other head")
    stored = json.loads((directory / "nodes" / "node-a" / "identity.json").read_text())
    assert stored["url"] == f"{control.url},{other.url}"
    assert not other.joins


def test_failed_join_names_every_address(tmp_path: Path, control: Control) -> None:
    control.is_away = True
    result = gpusched_agent("join", "--data-dir", str(tmp_path), f"{control.url},http://127.0.0.1:1", "j1.token")
    assert result.returncode == 1
    assert f"{control.url} refused node" in result.stderr
    assert "http://127.0.0.1:1 cannot be reached" in result.stderr
