"""A new credential replaces the old one: an agent that is killed at any step can still connect."""

import json
from pathlib import Path

import pytest

from gpusched.agent import identity as identities
from gpusched.agent.credentials import Credentials
from gpusched.agent.identity import Identity
from gpusched.agent.rank_files import rank_dir
from tests.agent.conftest import Agent
from tests.agent.control import JOINED, Control, eventually, hash_of
from tests.agent.socket_control import SocketControl

OLD = JOINED
IDENTITY = Identity(name="node-a", node_key="key", url="http://127.0.0.1:1", node_id=1, credential=OLD)
# The steps of a rotation at which the agent is killed, in order.
STEPS = ["asked", "offered", "accepted", "used", "worked", "never"]


def stored(agent: Agent) -> Identity:
    return identities.load(agent.directory / "nodes" / "node-a", "node-a")


@pytest.mark.parametrize("step", ["offered", "used", "never"])
def test_credential_is_replaced_under_a_job_and_a_kill(agent: Agent, control: Control, step: str) -> None:
    """The job continues, nothing joins again, and the old credential is refused in the end."""
    key = control.run("sh", "-c", "while [ ! -e stop ]; do sleep 0.1; done; echo done", workdir=str(agent.directory))
    agent.start()
    pid = control.start_of(key).pid
    killed: list[str] = []

    def kill(at: str) -> None:
        if at == step and not killed:
            killed.append(at)
            agent.kill()

    control.on_step = kill
    control.ask_for_credential()
    if step != "never":
        process = agent.process
        assert process is not None
        eventually(lambda: process.poll() is not None, 20, f"the kill at the step {step}")
        agent.start(environment={"GPUSCHED_JOIN_TOKEN": ""})
    eventually(lambda: control.secret_hash != hash_of(OLD), 20, "the first use of the new credential")
    eventually(lambda: stored(agent).credential != OLD, 20, "the new credential on the disk")
    messages = len(control.syncs)
    eventually(lambda: len(control.syncs) > messages + 2, 20, "messages with the new credential")
    assert hash_of(stored(agent).credential) == control.secret_hash
    assert (stored(agent).next_credential, stored(agent).previous_credential) == ("", OLD)
    assert len(control.joins) == 1
    assert not control.admits("/agent/sync", f"Bearer {OLD}")
    (agent.directory / "stop").touch()
    assert control.end_of(key).exit_code == 0
    assert control.started[key].pid == pid


def test_rank_that_ended_before_a_rotation_never_starts_again(agent: Agent, control: Control) -> None:
    """Its records name the control plane by the credential with which the node joined."""
    count = agent.directory / "count"
    key = control.run("sh", "-c", f"echo x >> {count}")
    agent.start()
    control.end_of(key)
    eventually(lambda: not list(agent.ranks.glob("*/spec.json")), 20, "the agent to forget the rank")
    control.ask_for_credential()
    eventually(lambda: stored(agent).credential != OLD, 20, "the new credential on the disk")
    agent.kill()
    agent.start(environment={"GPUSCHED_JOIN_TOKEN": ""})
    messages = len(control.syncs)
    eventually(
        lambda: len(control.syncs) > messages + 5, 20, "messages of the next agent, with the order in each answer"
    )
    assert count.read_text() == "x\n"


def test_agent_uses_its_previous_credential_after_a_restore(agent: Agent, control: Control) -> None:
    """A database restored from a backup knows the old credential alone."""
    agent.start(environment={"GPUSCHED_JOIN_TOKEN": "j1.token"})
    eventually(lambda: control.syncs, 20, "a message")
    control.ask_for_credential()
    eventually(lambda: stored(agent).credential != OLD, 20, "the new credential on the disk")
    control.secret_hash = hash_of(OLD)
    messages = len(control.syncs)
    eventually(lambda: len(control.syncs) > messages + 2, 20, "messages with the previous credential")
    assert stored(agent).credential == OLD
    assert len(control.joins) == 1


class Server:
    """The rules of the server, without a network."""

    def __init__(self) -> None:
        self.present, self.next = hash_of(OLD), ""

    def admits(self, credential: str) -> bool:
        if self.next and hash_of(credential) == self.next:
            self.present, self.next = self.next, ""
        return hash_of(credential) == self.present


@pytest.mark.parametrize("kill_at", STEPS)
@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_each_step_may_be_the_last_one(tmp_path: Path, kill_at: str, is_answer_lost: bool) -> None:
    """After each step, the next agent can connect with the files on disk, and finish."""
    identities.save(tmp_path, IDENTITY)
    server, agent = Server(), Credentials(tmp_path, IDENTITY)
    for run in range(2):
        for step in STEPS:
            if step == "asked":
                agent.prepare_next()
            elif step == "offered":
                server.next = agent.offer if hash_of(agent.presented) == server.present else server.next
            elif step == "accepted" and not is_answer_lost:
                agent.accept(server.next)
            elif step == "used":
                while not server.admits(agent.presented):
                    assert agent.try_another(), "no credential of the agent is valid"
            elif step == "worked":
                agent.worked()
            if run == 0 and step == kill_at:
                agent = Credentials(tmp_path, identities.load(tmp_path, "node-a"))
                while not server.admits(agent.presented):
                    assert agent.try_another(), f"no credential is valid after a kill at {step}"
                agent.worked()
    assert server.admits(agent.presented)
    assert server.admits(identities.load(tmp_path, "node-a").credential)
    assert agent.identity.plane == IDENTITY.plane


def test_full_disk_delays_a_rotation_and_cuts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identities.save(tmp_path, IDENTITY)
    agent = Credentials(tmp_path, IDENTITY)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(rank_dir, "write", full)
        with pytest.raises(OSError, match="space"):
            agent.prepare_next()
        assert (agent.presented, agent.offer) == (OLD, "")
    agent.prepare_next()
    assert json.loads((tmp_path / identities.FILE).read_text())["credential"] == OLD
    assert hash_of(agent.identity.next_credential) == agent.offer


def test_credential_is_replaced_over_a_websocket(tmp_path: Path) -> None:
    with SocketControl() as control:
        agent = Agent(tmp_path / "agent", control)
        agent.start()
        try:
            eventually(lambda: control.syncs, 20, "a message")
            control.ask_for_credential()
            eventually(lambda: stored(agent).credential != OLD, 20, "the new credential on the disk")
            messages = len(control.syncs)
            eventually(lambda: len(control.syncs) > messages + 2, 20, "messages with the new credential")
            assert len(control.joins) == 1
        finally:
            agent.kill()
