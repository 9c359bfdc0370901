"""A57: an agent and a server that is one version older or newer."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpusched.agent import identity
from gpusched.agent.rank_files import rank_dir
from gpusched.protocol.agent_messages import Desired, Join, Joined, LogAnswer, Run, Sync
from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually
from tests.recorded import messages, with_later_ideas

TYPES: dict[str, tuple[Any, Any]] = {"/agent/join": (Join, Joined), "/agent/sync": (Sync, Desired)}


def older(answer: Any) -> Any:
    """Without what was not known when the messages were recorded."""
    recorded = [message["answer"] for message in messages() if message["path"] == "/agent/sync"]
    expected = set(recorded[0])
    run = recorded[0]["assignments"][0]
    pruned = {name: part for name, part in answer.items() if name in expected or name not in Desired.__struct_fields__}
    pruned.pop("most_bytes", None)
    for order in pruned.get("assignments", ()):
        if order["action"] == "run":
            order["spec"] = {name: order["spec"][name] for name in run["spec"]}
    return pruned


class Skewed(Control):
    """A control plane that answers like another version."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self._change = change

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        status, answer = super().answer(path, body)
        return status, json.dumps(self._change(json.loads(answer))).encode()


@pytest.fixture(params=[older, with_later_ideas])
def control(request: pytest.FixtureRequest) -> Iterator[Skewed]:
    with Skewed(request.param) as running:
        yield running


def test_agent_works_with_a_server_of_another_version(agent: Agent, control: Control) -> None:
    key = control.run("sh", "-c", "echo $LR; exit 3", environment={"LR": "0.1"})
    stopped = control.run("sleep", "60", job=2)
    agent.start()
    control.start_of(stopped)
    control.stop(stopped)
    assert (control.end_of(key).exit_code, control.end_of(stopped).signal) == (3, 15)
    eventually(lambda: control.logs.get(key) == b"0.1\n", 5, "the log")
    control.orders.clear()
    eventually(lambda: not any(agent.ranks.iterdir()), 5, "both to be forgotten")


@pytest.mark.parametrize("change", [lambda message_json: message_json, with_later_ideas])
def test_messages_of_the_previous_version_are_decoded(change: Callable[[Any], Any]) -> None:
    for message in messages():
        if (types := TYPES.get(message["path"])) is not None:
            for text, kind in zip((message["request"], message["answer"]), types, strict=True):
                msgspec.convert(change(text), kind)
        else:
            msgspec.convert(change(message["answer"]), LogAnswer)


def test_rank_keeps_its_limit_and_signals_through_an_upgrade(agent: Agent, control: Control, tmp_path: Path) -> None:
    """The files of a rank that an older agent started lack what was added since; the new one adopts it all the same."""
    key = control.run("sh", "-c", f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 4")
    agent.start()
    control.start_of(key)
    agent.kill()
    path = agent.ranks / key / "spec.json"
    spec = json.loads(path.read_text())
    old = ("argv", "environment", "workdir", "max_runtime_seconds", "grace_seconds", "boot_id")
    path.write_text(json.dumps({name: spec[name] for name in old}))
    agent.start()
    eventually(lambda: control.syncs[-1].running == [key], 10, "it to be adopted")
    (tmp_path / "go").touch()
    assert control.end_of(key).exit_code == 4


def test_order_of_the_previous_version_is_complete() -> None:
    [first] = [m for m in messages() if m["path"] == "/agent/sync" and m["answer"]["assignments"]]
    [order] = msgspec.convert(first["answer"], Desired).assignments
    assert isinstance(order, Run)
    assert (order.spec.image, order.spec.runtime, order.spec.mounts) == (None, "auto", [])


def test_downgraded_agent_reads_the_identity_of_a_newer_one(tmp_path: Path) -> None:
    """A57."""
    loaded = identity.load(tmp_path, "node-a")
    expected = rank_dir.read(tmp_path, identity.FILE)
    rank_dir.write(tmp_path, identity.FILE, {**(expected or {}), "invented_later": 1})
    assert identity.load(tmp_path, "node-a") == loaded
